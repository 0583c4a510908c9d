"""Ending a text at a string, while the text arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes a text on up to the first of ``stop``, wherever the pieces are cut.

    What could be the beginning of a stop string waits until it is clear. The string that is complete first ends the
    text; of several that end at the same character, the longest.
    """

    def __init__(self, stop: Sequence[str] = ()):
        self.stop = tuple(stop)
        self.ended = False
        """True once a stop string was complete; nothing comes after it."""
        self._waiting = ""

    def feed(self, piece: str) -> str:
        """What of the text is now certain to stand before any stop string."""
        if self.ended:
            return ""
        text = self._waiting + piece
        found = [(text.find(s) + len(s), text.find(s)) for s in self.stop if s in text]
        if found:
            self.ended, self._waiting = True, ""
            return text[: min(found)[1]]
        kept = len(text) - self._possible_start(text)
        self._waiting = text[kept:]
        return text[:kept]

    def flush(self) -> str:
        """What still waits when the text ends by itself."""
        rest, self._waiting = self._waiting, ""
        return rest

    def _possible_start(self, text: str) -> int:
        """How many of the last characters may begin a stop string."""
        longest = max(map(len, self.stop), default=1) - 1
        return next((n for n in range(min(longest, len(text)), 0, -1) if any(s.startswith(text[-n:]) for s in self.stop)), 0)
