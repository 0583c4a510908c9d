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
    """Fenced code block with its language, text and first line."""

    page: Path
    language: str
    text: str
    line: int

    @property
    def where(self) -> str:
        """Page and line, for messages and tracebacks."""
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def file(self) -> str:
        """File named in a first comment such as ``# small.yaml``; "" without one."""
        found = _FILE.match(self.text)
        return found[1] if found else ""


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(page, m["language"], m["text"], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]
