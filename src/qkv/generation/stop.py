"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Filter that ends a stream of text pieces at the first stop string, even if it is split over several pieces.

    Characters that may be the start of a stop string are held back until later text decides this. The stop string that
    is complete first ends the text; of several that end at the same character, the longest is removed.
    """

    def __init__(self, stop: Sequence[str] = ()):
        self.stop = tuple(stop)
        self.ended = False
        """True once a stop string was found."""
        self._waiting = ""

    def feed(self, piece: str) -> str:
        """Add a piece of text; return the text that can no longer belong to a stop string."""
        if self.ended:
            return ""
        text = self._waiting + piece
        places = [(text.find(s) + len(s), text.find(s)) for s in self.stop if s in text]
        if places:
            self.ended, self._waiting = True, ""
            return text[: min(places)[1]]
        length = len(text) - self._possible_start(text)
        self._waiting = text[length:]
        return text[:length]

    def flush(self) -> str:
        """Return the text that is still held back when the stream ends."""
        rest, self._waiting = self._waiting, ""
        return rest

    def _possible_start(self, text: str) -> int:
        """Return the number of trailing characters that may be the start of a stop string."""
        longest = max(map(len, self.stop), default=1) - 1
        return next(
            (n for n in range(min(longest, len(text)), 0, -1) if any(s.startswith(text[-n:]) for s in self.stop)), 0
        )
