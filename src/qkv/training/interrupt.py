"""Signal handling: Ctrl-C and SIGTERM stop training after the current step instead of raising in the middle of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Raised when a signal ended the training after its step was finished and saved; ``number``: the signal.

    Like any KeyboardInterrupt, it ends the program unless caught explicitly, so scripts never continue with a
    half-trained model.
    """

    def __init__(self, number: signal.Signals, message: str):
        super().__init__(message)
        self.number = number


class StopNow(BaseException):
    """Raised by a signal inside ``StopRequest.at_once``, to leave the work there. A ``BaseException``, so that no
    ``except Exception`` catches it.
    """


class StopRequest:
    """Context manager that turns the first SIGINT or SIGTERM into a request to stop, recorded in ``signal``; a second
    SIGINT aborts at once.

    Work that can be discarded, such as an evaluation, runs inside ``at_once``, where a signal raises ``StopNow``.
    Previous handlers are restored on exit. Outside the main thread, where Python allows no handlers, none are
    installed.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._at_once = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Context manager in which a signal raises ``StopNow``; a signal received earlier raises it on entry."""
        self._at_once = True
        try:
            if self.signal is not None:
                raise StopNow
            yield
        finally:
            self._at_once = False

    def __bool__(self) -> bool:
        return self.signal is not None

    def __str__(self) -> str:
        return self.signal.name if self.signal else "nothing"

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._receive) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not set from Python and cannot be put back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        if self._at_once:
            self._at_once = False  # a second signal does not disturb the cleanup
            raise StopNow
