"""The one error that bad input raises: where it is, what was given, what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class Problem(NamedTuple):
    """One thing wrong: ``path`` into the spec (keys and indices) and a sentence without its path."""

    path: tuple[str | int, ...]
    sentence: str

    def under(self, *prefix: str | int) -> Problem:
        """The same problem, seen from further up the tree."""
        return Problem((*prefix, *self.path), self.sentence)


class UserError(ValueError):
    """Input that cannot be used. Its text is one sentence for a person; the command line prints it and exits with 2."""


class SpecError(UserError):
    """A spec that cannot be used; ``problems`` lists all that was found, the text says the first."""

    def __init__(self, problems: Iterable[Problem], source: str = "", lines: dict[tuple[str | int, ...], int] | None = None):
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
        """The line of the longest known prefix of ``path``."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return str(self.lines[path[:end]])
        return ""


def dotted(path: Iterable[str | int]) -> str:
    """``("model", "blocks", 0, "norm")`` as ``model.blocks.0.norm``."""
    return ".".join(str(part) for part in path)


def nearest(word: str, known: Iterable[str]) -> str:
    """A clause that names the closest of ``known``, or all of them when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "allowed: " + ", ".join(names)
