"""The measures of the source count what they say."""

from __future__ import annotations

import pytest
from tests.house.measures import (
    PATTERNS,
    code_lines,
    crowded,
    described,
    import_cycle,
    module_imports,
    mutual,
    riddles,
)
from tests.house.source import ROOT, Source


class Written(Source):
    """Source that no file holds."""

    text = (
        '"""What it is.\n\nMore."""\n\n# why\nx = (\n    1,\n)\n\n\ndef f():\n    """How."""\n    return """a\nb"""\n'  # pyright: ignore
    )


def test_only_code_is_counted() -> None:
    source = Written(ROOT / "written.py")
    assert code_lines(source) == 6
    assert [node.lineno for node in described(source)] == [1, 12]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = riddles()
    assert not found, "\n".join(found)


def test_no_two_folders_import_each_other() -> None:
    assert mutual() == []


def test_no_modules_import_each_other() -> None:
    imports = module_imports()
    assert sum(map(len, imports.values())) > 2 * len(imports)  # the graph is read
    assert import_cycle(imports) == []
    imports["qkv.spec.errors"].add("qkv.training.loop")
    assert "qkv.spec.errors" in import_cycle(imports)


def test_no_folder_is_crowded() -> None:
    assert crowded() == []
    assert crowded(14)  # the count sees folders


@pytest.mark.parametrize(
    "line", ["isinstance(spec.frontend, Text)", "isinstance(a.b(c), (Sound, Text))", "isinstance(x, spec.Text)"]
)
def test_a_question_for_the_front_end_is_found(line: str) -> None:
    assert PATTERNS["isinstance(…, Text)"].search(line)
    assert not PATTERNS["isinstance(…, Text)"].search(line.replace("Text", "TextTask"))
