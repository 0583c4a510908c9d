"""Run native code that ignores signals so that Ctrl-C still interrupts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_EVERY = 0.1
"""Polling interval in seconds."""


def interruptible(work: Callable[[], T]) -> T:
    """Run native code ``work``, which would block Ctrl-C, so that signals are still handled at once; return its result.

    When called in the main thread, ``work`` runs in another thread, and continues in the background after a signal
    until it or the program ends.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    results: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_EVERY)
    if failed:
        raise failed[0]
    return results[0]
