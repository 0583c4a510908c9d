"""Output on pages: blocks are found, cut out and written anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from making.outputs import Printed, cut, renewed, shown
from making.pictures.spreadsheet import FOLDER, MESSAGE
from tests.docs.blocks import PAGES, ROOT

PAGE = """\
before
<!-- messages: qkv a --b "c" -->
```text
old
```
between
<!-- output: qkv a --b "c"; from two; to four -->

```text
old
```
<!-- output: qkv d -->
```text
```
after
"""


def test_blocks_are_written_anew_and_each_command_runs_once() -> None:
    commands = []

    def run(command: str) -> Printed:
        commands.append(command)
        return Printed("one\n\ntwo 2\nthree\n\nfour\n", "note\n")

    written = renewed(PAGE, run)
    assert commands == ['qkv a --b "c"', "qkv d"]
    assert [block.text for block in shown(written)] == ["note\n", "two 2\nthree\n", "one\n\ntwo 2\nthree\n\nfour\n"]
    assert re.sub("```text\n.*?```", "", written, flags=re.DOTALL) == re.sub(
        "```text\n.*?```", "", PAGE, flags=re.DOTALL
    )


def test_a_line_that_is_missing_is_an_error() -> None:
    assert cut("a\nb\na\n", "a", "a") == "a\nb\n"
    with pytest.raises(ValueError, match="no line begins with 'c'"):
        cut("a\nb\n", "c", "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_block_of_output_is_empty_or_overlooked(page: Path) -> None:
    text = page.read_text("utf-8")
    assert len(re.findall("<!-- (?:output|messages): ", text)) == len(shown(text))
    assert all(block.text.strip() for block in shown(text))


def test_the_page_on_tables_explains_the_message_of_its_picture() -> None:
    page = (ROOT / "docs" / "start" / "spreadsheet.md").read_text("utf-8")
    assert f'qkv predict {FOLDER} "{MESSAGE}" --why' in page
