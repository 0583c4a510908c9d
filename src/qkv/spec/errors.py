"""Errors in specs: their paths and sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from qkv.system.errors import UserError, dotted


class Problem(NamedTuple):
    """One error in a spec: its ``path`` (keys and indices) and a sentence without the path."""

    path: tuple[str | int, ...]
    sentence: str

    def under(self, *prefix: str | int) -> Problem:
        """Return the problem with ``prefix`` before its path."""
        return Problem((*prefix, *self.path), self.sentence)


class SpecError(UserError):
    """Invalid spec. ``problems``: all problems found; the message describes the first."""

    def __init__(
        self, problems: Iterable[Problem], source: str = "", lines: dict[tuple[str | int, ...], int] | None = None
    ):
        self.problems = list(problems)
        self.source = source
        self.lines = lines or {}
        first = self.problems[0]
        where = ":".join(filter(None, (source, self._line(first.path))))
        name = dotted(first.path)
        text = f"{name}: {first.sentence}" if name else first.sentence
        if where:
            text = f"{where}: {text}"
        more = len(self.problems) - 1
        if more:
            text += f" (and {more} more problem{'s' if more > 1 else ''})"
        super().__init__(text)

    def _line(self, path: tuple[str | int, ...]) -> str:
        """Return the line number of the longest prefix of ``path`` that has one, as text; "" if none has."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return str(self.lines[path[:end]])
        return ""
