"""Meeting of the processes of a run: how each learns its rank, joins the others, and leaves a sentence if it fails."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from qkv.system.errors import UserError
from qkv.system.world import ALONE, World

MEETING = "QKV_MEETING"
"""Environment variable of the processes that ``launch`` starts: the folder where they meet."""
LOST = 75
"""Exit code of a process that lost contact to the others, and so is not the cause of the end."""


class LostContactError(UserError):
    """Another process of the run ended, or did not answer in time."""

    code = LOST


def rank_of_process() -> tuple[int, int]:
    """Return (rank, number of processes) from the environment that torchrun or ``launch`` sets; (0, 1) without it."""
    names = {"RANK", "WORLD_SIZE"}
    meets = {MEETING, "MASTER_ADDR"} & os.environ.keys()
    if not (meets and names <= os.environ.keys()):
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextmanager
def joined(timeout: float) -> Iterator[World]:
    """Return a context manager with the world of this process: ``ALONE``, or that of the processes started together.

    timeout: seconds after which an exchange that another process does not join raises ``LostContactError``.
    """
    rank, size = rank_of_process()
    if size == 1:
        yield ALONE
        return
    import torch.distributed as dist

    from qkv.system.world import ProcessGroupWorld

    if MEETING in os.environ:
        _watch_parent()
    backend = "nccl" if _takes_gpu() else "gloo"
    method = f"file://{os.environ[MEETING]}/store" if MEETING in os.environ else "env://"
    with in_contact():
        dist.init_process_group(backend, method, timedelta(seconds=timeout), size, rank)
        yield ProcessGroupWorld(timeout=timeout)
        dist.destroy_process_group()


def _takes_gpu() -> bool:
    """Make the GPU with this process's number on the machine its current one; return False if it trains on the CPU.

    Raises ``UserError`` if there is none of that number.
    """
    import torch

    from qkv.system.device import VARIABLE, training_device

    if training_device().type != "cuda":
        return False
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise UserError(
            f"process {number} of this machine has no GPU, because there are {count}; start as many processes as GPUs, "
            f"or set {VARIABLE}=cpu"
        )
    torch.cuda.set_device(number)
    return True


@contextmanager
def in_contact() -> Iterator[None]:
    """Return a context manager that raises ``LostContactError`` in place of an error of an exchange."""
    try:
        yield
    except RuntimeError as error:
        import torch.distributed as dist

        if not (isinstance(error, dist.DistError) or any(word in str(error) for word in _TRANSPORTS)):
            raise
        raise LostContactError(
            "another process of the run ended or did not answer; the same command resumes the run from its last "
            "checkpoint"
        ) from error


_TRANSPORTS = ("gloo", "NCCL", "Connection closed by peer", "Timed out waiting")
"""Words in the messages of errors of exchanges."""


def report_failure(sentence: str) -> str:
    """Leave the last sentence of this process for ``launch``; return what it prints itself, "" under ``launch``."""
    rank, size = rank_of_process()
    if size == 1:
        return sentence
    if MEETING not in os.environ:
        return f"process {rank} of {size}: {sentence}"
    with suppress(OSError):  # the folder is gone if the process that started this one died
        _failure(Path(os.environ[MEETING]), rank).write_text(sentence, encoding="utf-8")
    return ""


def failure_of(meeting: Path, rank: int) -> str:
    """Read the sentence that process ``rank`` left, "" if it left none."""
    path = _failure(meeting, rank)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _failure(meeting: Path, rank: int) -> Path:
    return meeting / f"failure-{rank}"


def _watch_parent() -> None:
    """Stop this process as by SIGTERM when the process that started it ends: its end of the pipe is then closed."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
