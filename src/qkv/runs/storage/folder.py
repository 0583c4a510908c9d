"""Folder of a run: names of its files, its lock, and checks that training succeeded and the best weights exist."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from qkv.runs.storage.checkpoint import Checkpoint
from qkv.runs.storage.files import clear_errors
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.system.world import ALONE, World

try:
    import fcntl
except ImportError:  # not on Unix: a second process in the same folder is not detected
    fcntl = None

SPEC = "spec.yaml"
WEIGHTS = "model.safetensors"
FAILURE = "failure.txt"
"""File with the error that ended the training of a run. Removed when the run is trained again; not written after an
interruption.
"""


@contextmanager
def locked(folder: Path, world: World = ALONE) -> Iterator[None]:
    """Return a context manager that creates ``folder`` and locks it, for all processes of ``world``. Raises UserError
    if it is not writable, or another process trains in it.
    """
    with ExitStack() as stack:
        world.lead(lambda: stack.enter_context(_lock(folder)))
        yield


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with clear_errors(f"the run folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY) if fcntl else None
    try:
        if fcntl and handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"another process is training in {folder}; wait until it ends, or name another folder"
                ) from None
            except OSError:  # a file system without locks
                pass
        yield
    finally:
        if handle is not None:
            os.close(handle)  # releases the lock, as the end of the process would


def check_succeeded(folder: Path) -> None:
    """Raise ``UserError`` if the training of the run in ``folder`` ended with an error."""
    with suppress(FileNotFoundError):
        reason = (folder / FAILURE).read_text(encoding="utf-8").strip()
        raise UserError(
            f"the training of {folder} failed ({reason}); train it again, or load its weights anyway in Python "
            "with load(…, accept_changes=True)"
        )


def had_best(checkpoint: Checkpoint | None, recipe: Recipe, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the newest checkpoint of a run, or its metrics ``rows``, show that its best weights were saved."""
    if checkpoint and checkpoint.state.get("standing", {}).get("best_figure") is not None:
        return True
    figures = [row.get(f"val_{recipe.training.validation.best}") for row in rows]
    return any(figure is not None and math.isfinite(figure) for figure in figures)


def check_kept(folder: Path, had: bool) -> None:
    """Raise UserError if the file of the best weights in ``folder`` is missing although they were saved (``had``)."""
    path = folder / WEIGHTS
    if had and not path.exists():
        raise UserError(
            f"{path}, the file of the run's best weights, is missing; "
            f"restore it, or use the weights of the newest checkpoint instead with 'qkv accept {folder}', "
            "in Python load(…, accept_changes=True)"
        )
