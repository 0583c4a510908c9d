"""Copy of a run's wide path from before the final fit, which includes the validation rows, in
``before_refit.safetensors``.

The validation split is always evaluated with this copy: metrics on rows to which a path was fitted do not show how well
it generalises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.runs.storage.files import clear_errors, read_tensors, write_tensors

BEFORE_REFIT = "before_refit.safetensors"
NOTE = (
    "validation metrics are measured with the wide path fitted to the training rows only; the run's wide path was "
    "fitted to the validation rows, too"
)
_KEPT = ("table", "bias", "idf", "mean", "deviation")


def keep_wide(model: Any, folder: Path) -> None:
    """Write the fitted tensors of the model's wide path into the run's folder. Raises ``UserError`` on disk errors."""
    path = folder / BEFORE_REFIT
    with clear_errors(str(path)):
        write_tensors(path, _tensors(model), {})


def drop_wide(folder: Path) -> None:
    """Remove the stored copy from a run whose wide path was not fitted again. Raises ``UserError`` on disk errors."""
    path = folder / BEFORE_REFIT
    with clear_errors(str(path)):
        path.unlink(missing_ok=True)


def restore_wide(model: Any, folder: Path) -> bool:
    """Load the stored copy, if the run has one, into the model's wide path; return True if it has one."""
    path = folder / BEFORE_REFIT
    if getattr(model, "wide", None) is None or not path.is_file():
        return False
    _copy(model, read_tensors(path)[0])
    return True


@contextmanager
def without_validation_rows(model: Any, folder: Path) -> Iterator[bool]:
    """Return a context manager in which the model has the wide path from before the fit to the validation rows; it
    yields True if the run stores that path.
    """
    own = None if getattr(model, "wide", None) is None else _tensors(model)
    found = own is not None and restore_wide(model, folder)
    try:
        yield found
    finally:
        if own is not None and found:
            _copy(model, own)


def _tensors(model: Any) -> dict[str, Tensor]:
    state = model.wide.state_dict()
    return {name: state[name].clone() for name in _KEPT if name in state}


@torch.no_grad()
def _copy(model: Any, tensors: dict[str, Tensor]) -> None:
    state = model.wide.state_dict()
    for name in _KEPT:
        if name in state:
            state[name].copy_(tensors[name])
