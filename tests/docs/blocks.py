"""The code blocks of a Markdown page, in order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.(?:yaml|json|txt))\n")


@dataclass(frozen=True)
class Block:
    """One fenced block: what it is written in, its text, and the line it begins in."""

    page: Path
    language: str
    text: str
    line: int

    @property
    def where(self) -> str:
        """For messages and as a file name of tracebacks."""
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def file(self) -> str:
        """The name in a first comment such as ``# small.yaml``, "" if there is none."""
        found = _FILE.match(self.text)
        return found[1] if found else ""


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(page, m["language"], m["text"], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]
