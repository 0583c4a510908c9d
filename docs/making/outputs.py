"""Write what commands print into the pages that show it: ``python docs/making/outputs.py [PAGE ...]``.

A page names the command in a comment before a block of text: ``<!-- output: qkv … -->`` for standard output,
``<!-- messages: qkv … -->`` for standard error. ``; from WORDS`` and ``; to WORDS`` after the command cut out the lines
from the first that begins with the words up to the next one. The commands of a page run once each, in order, in a new
folder, after the page's blocks of Python above the first of them. Pictures of the page's runs are drawn into
``docs/pictures``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from making.pictures.spreadsheet import pictures as spreadsheet_pictures

ROOT = Path(__file__).resolve().parents[2]
PICTURES: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {"docs/start/spreadsheet.md": spreadsheet_pictures}
"""By page, functions from the folder of its commands to the (file, content) of its pictures."""
_BLOCK = re.compile(
    r"^<!-- (?P<stream>output|messages): (?P<command>qkv .+?)(?:; from (?P<first>.+?))?(?:; to (?P<last>.+?))? -->\n+"
    r"```text\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Shown(NamedTuple):
    """Block of output on a page: stream, command, words at the start of the first line and of the line after the last,
    and its text at the characters [begin, end) of the page.
    """

    stream: str
    command: str
    first: str
    last: str
    text: str
    begin: int
    end: int


class Printed(NamedTuple):
    """Text on standard output and on standard error."""

    output: str
    messages: str


def shown(page: str) -> list[Shown]:
    """Blocks of output in the text of a page, in order."""
    found = []
    for m in _BLOCK.finditer(page):
        groups = [m[name] or "" for name in ("stream", "command", "first", "last", "text")]
        found.append(Shown(*groups, *m.span("text")))
    return found


def cut(text: str, first: str, last: str) -> str:
    """Lines of ``text`` from the first that begins with ``first`` up to the next that begins with ``last``, without
    empty lines around them; "": from the start, to the end. Raises ``ValueError`` if a line is missing.
    """
    lines = text.splitlines()
    begin = _at(lines, first, 0) if first else 0
    end = _at(lines, last, begin + bool(first)) if last else len(lines)
    return "\n".join(line.rstrip() for line in lines[begin:end]).strip("\n") + "\n"


def _at(lines: list[str], words: str, begin: int) -> int:
    for i in range(begin, len(lines)):
        if lines[i].startswith(words):
            return i
    raise ValueError(f"no line begins with {words!r}:\n" + "\n".join(lines))


def renewed(page: str, run: Callable[[str], Printed]) -> str:
    """Text of a page with the blocks of output written anew; ``run``: runs one command."""
    printed: dict[str, Printed] = {}
    pieces, done = [], 0
    for block in shown(page):
        if block.command not in printed:
            printed[block.command] = run(block.command)
        text = getattr(printed[block.command], block.stream)
        pieces += [page[done : block.begin], cut(text, block.first, block.last)]
        done = block.end
    return "".join([*pieces, page[done:]])


def _run(folder: Path) -> Callable[[str], Printed]:
    """Function that runs a command in ``folder``; it raises ``CalledProcessError`` if the command fails."""

    def run(command: str) -> Printed:
        print(command, flush=True)
        words = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, encoding="utf-8")
        if done.returncode:
            sys.stderr.write(done.stderr)
            done.check_returncode()
        return Printed(done.stdout, done.stderr)

    return run


def write(page: Path) -> None:
    """Write the outputs and the pictures of a page anew."""
    text = page.read_text(encoding="utf-8")
    blocks = shown(text)
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        for source in _PYTHON.findall(text[: blocks[0].begin] if blocks else ""):
            exec(source, {})
        page.write_text(renewed(text, _run(Path(scratch))), encoding="utf-8")
        for file, content in PICTURES.get(page.relative_to(ROOT).as_posix(), lambda _: iter(()))(Path(scratch)):
            (ROOT / "docs" / "pictures" / file).write_text(content, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="pages; default: all with such blocks")
    given: list[Path] = [page.resolve() for page in parser.parse_args().pages]
    pages = given or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    os.environ.setdefault("COLUMNS", "120")
    for page in pages:
        if shown(page.read_text(encoding="utf-8")):
            write(page)


if __name__ == "__main__":
    main()
