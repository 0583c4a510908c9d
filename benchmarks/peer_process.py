"""Sides of a benchmark in processes of their own. One that dies is named in its row, and the run goes on."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from multiprocessing.connection import Connection
from typing import Any, TypeVar

READY = "ready"
_LONGEST = 30
"""Seconds that a process whose pipe is closed is given to end."""

Side = TypeVar("Side")
Result = TypeVar("Result")


class Died(RuntimeError):
    """The process of a side ended before it replied. The message says how, such as "died: signal 11"."""

    def __init__(self, side: str, code: int | None):
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        super().__init__(f"died: {how}")
        self.side = side


@contextlib.contextmanager
def process(side: str, work: Callable[..., None], *args: Any) -> Iterator[Callable[[Any], Any]]:
    """Function that sends a question to a new process and returns its reply. The process runs ``work(pipe, *args)``,
    which sends ``READY`` or why it cannot run, and then replies to each question. Raises ``Died`` if the process ends,
    and ``RuntimeError`` if it cannot run.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=work, args=(there, *args), daemon=True)
    worker.start()
    there.close()  # the last other end is the worker's, so that its end is noticed

    def reply() -> Any:
        try:
            return here.recv()
        except (EOFError, ConnectionError):
            worker.join(_LONGEST)
            raise Died(side, worker.exitcode) from None

    def ask(question: Any) -> Any:
        with contextlib.suppress(ConnectionError):  # of a dead process: said by the reply
            here.send(question)
        return reply()

    try:
        said = reply()
        if said != READY:
            raise RuntimeError(said)
        yield ask
    finally:
        worker.terminate()
        worker.join()


def serve(pipe: Connection, start: Callable[[], Callable[[Any], Any]]) -> None:
    """Reply to each question by the function that ``start`` returns, or say why it cannot start."""
    try:
        answer = start()
    except Exception as error:  # whatever a library raises for a model that it cannot open
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send(READY)
    while True:
        pipe.send(answer(pipe.recv()))


def living(
    run: Callable[[Mapping[str, Side]], Result], sides: MutableMapping[str, Side], died: MutableMapping[str, str]
) -> Result:
    """Result of ``run(sides)``. A side that dies in it goes from ``sides`` to ``died``, with how it died, and the rest
    runs again.
    """
    while True:
        try:
            return run(sides)
        except Died as error:
            died[error.side] = str(error)
            del sides[error.side]
            print(f"{error.side} {error}; the others go on")
