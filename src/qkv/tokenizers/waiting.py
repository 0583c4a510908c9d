"""Native work that hears nothing of signals, run so that Ctrl-C ends the wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_EVERY = 0.1
"""Seconds between two looks at whether it is done."""


def interruptible(work: Callable[[], T]) -> T:
    """Run ``work``, and return or raise what it does. In the main thread it runs in another one, and a signal's exception is raised here at once;
    the work then goes on unheard until it, or the program, ends."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_EVERY)
    if failed:
        raise failed[0]
    return found[0]
