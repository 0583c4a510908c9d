"""Start of several processes of one command on this machine, and their end: one that dies or hangs ends all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from qkv.parallel.meeting import LOST, MEETING, failure_of

GRACE = 10.0
"""Seconds that the other processes have to end by themselves after one of them failed; then they are killed."""
_PAUSE = 0.05
_STOPPED = {128 + number for number in (signal.SIGINT, signal.SIGTERM)}
"""Exit codes of processes that ended in order after a signal."""


def launch(arguments: Sequence[str], count: int) -> tuple[int, str]:
    """Run ``python -m qkv`` with ``arguments`` in ``count`` processes; return (exit code, sentence for the user or "").

    A signal to this process is passed on to all of them. If one fails, the others have ``GRACE`` seconds to end. If
    this process dies, they stop as after SIGTERM.
    """
    with tempfile.TemporaryDirectory(prefix="qkv-") as folder, ExitStack() as stack:
        meeting = Path(folder)
        processes = [stack.enter_context(_started(arguments, rank, count, meeting)) for rank in range(count)]
        stack.enter_context(_passing_on(processes))
        _wait(processes)
        return _outcome(processes, meeting)


def environment(rank: int, count: int, meeting: Path) -> dict[str, str]:
    """Return the environment of process ``rank`` of ``count``; the cores are divided among them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = {"OMP_NUM_THREADS": str(max(1, cores // count))}
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, MEETING: meeting}
    return {**threads, **os.environ, **{name: str(value) for name, value in ranks.items()}}


@contextmanager
def _started(arguments: Sequence[str], rank: int, count: int, meeting: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start process ``rank``, and kill it at the end if it still runs. Only the first one shares the terminal."""
    with (meeting / f"output-{rank}").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv", *arguments],
            stdin=subprocess.PIPE,  # it ends with this process
            stdout=None if rank == 0 else output,
            stderr=None if rank == 0 else subprocess.STDOUT,
            env=environment(rank, count, meeting),
            process_group=0,  # a Ctrl-C reaches it through this process only, and so once
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


@contextmanager
def _passing_on(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Return a context manager that passes SIGINT and SIGTERM on to all processes."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have ended, or until ``GRACE`` seconds after one has failed."""
    until = None
    while any(process.poll() is None for process in processes):
        if until is None and any(_failed(process.poll()) for process in processes):
            until = time.monotonic() + GRACE
        if until is not None and time.monotonic() > until:
            return
        time.sleep(_PAUSE)


def _failed(code: int | None) -> bool:
    return code not in (None, 0) and code not in _STOPPED


def _outcome(processes: Sequence[subprocess.Popen[bytes]], meeting: Path) -> tuple[int, str]:
    """Return (exit code of the run, sentence on its cause, or "")."""
    codes: Mapping[int, int | None] = {rank: process.poll() for rank, process in enumerate(processes)}
    silent = [rank for rank, code in codes.items() if code is None]
    causes = [rank for rank, code in codes.items() if _failed(code) and code != LOST]
    ended = causes or [rank for rank, code in codes.items() if code]
    if not ended:
        return 0, ""
    if silent and not causes:
        which = f"process {silent[0]}" if len(silent) == 1 else f"processes {', '.join(map(str, silent))}"
        return 1, f"{which} of {len(codes)} did not answer the others, and all were ended; {_RESUME}"
    code = codes[ended[0]]
    assert code is not None
    if code < 0:
        name = signal.Signals(-code).name
        return 1, f"process {ended[0]} of {len(codes)} was ended by {name}, and all were ended; {_RESUME}"
    sentences = {rank: failure_of(meeting, rank) for rank in ended}
    sentence = sentences[ended[0]]
    same = len(ended) == len(codes) and len(set(sentences.values())) == 1
    return code, sentence if same or not sentence else f"process {ended[0]} of {len(codes)}: {sentence}"


_RESUME = "the same command resumes the run from its last checkpoint"
