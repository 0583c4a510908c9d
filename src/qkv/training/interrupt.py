"""Signal handling: Ctrl-C and SIGTERM stop training after the current step instead of raising in the middle of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from qkv.system.world import ALONE, World

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Exception raised after a signal stopped the training, once the current step was finished and saved. ``number``:
    the signal.

    Like any KeyboardInterrupt, it ends the program unless caught explicitly, so scripts never continue with a
    half-trained model.
    """

    def __init__(self, number: signal.Signals, message: str):
        super().__init__(message)
        self.number = number


class StopNow(BaseException):
    """Exception that a signal raises inside ``StopRequest.at_once``, to leave that block immediately. A
    ``BaseException``, so that no ``except Exception`` catches it.
    """


class StopRequest:
    """Context manager that turns the first SIGINT or SIGTERM into a request to stop, recorded in ``signal``; a second
    SIGINT raises KeyboardInterrupt at once.

    Work that can be discarded, such as an evaluation, runs inside ``at_once``, where a signal raises ``StopNow``.
    Previous handlers are restored on exit. Outside the main thread, where Python allows no handlers, none are
    installed.

    If one process of ``world`` receives a signal, all processes stop when they next read ``signal``. Each read is a
    collective operation, so all processes must read equally often.
    """

    def __init__(self, world: World = ALONE) -> None:
        self._world = world
        self._received: signal.Signals | None = None
        self._agreed: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._at_once = False

    @property
    def signal(self) -> signal.Signals | None:
        """Signal received by this or another process, None if there was none."""
        if self._agreed is None:
            counts = self._world.sum([self._received is number for number in _SIGNALS])
            self._agreed = next((number for number, count in zip(_SIGNALS, counts, strict=True) if count), None)
        return self._agreed

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Return a context manager in which a signal raises ``StopNow`` immediately; a signal received earlier raises
        it on entry.

        With several processes, ``StopNow`` is only raised on entry, so that all processes leave the block together.
        """
        self._at_once = self._world.size == 1
        try:
            if self:
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
            self._previous = {s: signal.signal(s, self._receive) for s in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None means that the previous handler was not set from Python; Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = signal.Signals(number)
        if self._at_once:
            self._at_once = False  # a second signal must not interrupt the cleanup
            raise StopNow
