"""Copy of a run's wide path from before the final fit, which includes the validation rows, in
``before_refit.safetensors``.

The validation split is always evaluated with this copy: metrics on rows to which a path was fitted do not show how well
it generalises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from qkv.models.wide import WidePath
from qkv.runs.storage.files import clear_errors, read_tensors, write_tensors

BEFORE_REFIT = "before_refit.safetensors"
NOTE = (
    "validation metrics are measured with the wide path fitted to the training rows only; the run's wide path was "
    "fitted to the validation rows, too"
)
_KEPT = ("table", "bias", "idf", "mean", "deviation")


def keep_wide(wide: WidePath, folder: Path) -> None:
    """Write the fitted tensors of the wide path into the run's folder. Raises ``UserError`` on disk errors."""
    path = folder / BEFORE_REFIT
    with clear_errors(str(path)):
        write_tensors(path, _tensors(wide), {})


def drop_wide(folder: Path) -> None:
    """Remove the stored copy from a run whose wide path was not fitted again. Raises ``UserError`` on disk errors."""
    path = folder / BEFORE_REFIT
    with clear_errors(str(path)):
        path.unlink(missing_ok=True)


def restore_wide(wide: WidePath, folder: Path) -> bool:
    """Load the stored copy, if the run has one, into its wide path; return True if it has one."""
    path = folder / BEFORE_REFIT
    if not path.is_file():
        return False
    _copy(wide, read_tensors(path)[0])
    return True


@contextmanager
def without_validation_rows(wide: WidePath | None, folder: Path) -> Iterator[bool]:
    """Return a context manager in which the run's wide path is that from before the fit to the validation rows; it
    yields True if the run stores that path.
    """
    if wide is None:
        yield False
        return
    tensors, restored = _tensors(wide), restore_wide(wide, folder)
    try:
        yield restored
    finally:
        if restored:
            _copy(wide, tensors)


def _tensors(wide: WidePath) -> dict[str, Tensor]:
    state = wide.state_dict()
    return {name: state[name].clone() for name in _KEPT if name in state}


@torch.no_grad()
def _copy(wide: WidePath, tensors: dict[str, Tensor]) -> None:
    state = wide.state_dict()
    for name in _KEPT:
        if name in state:
            state[name].copy_(tensors[name])
