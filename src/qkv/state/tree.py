"""Operations on states: trees of tuples, named tuples and tensors with the batch axis first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")


def map_tensors(f: Callable[[Tensor], Tensor], state: S) -> S:
    """Apply ``f`` to each tensor of the tree."""
    if isinstance(state, Tensor):
        return f(state)  # type: ignore[return-value]
    parts: list[Any] = [map_tensors(f, part) for part in state]  # type: ignore[attr-defined]
    return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)  # type: ignore[call-arg,return-value]


def tensors(state: Any) -> Iterator[Tensor]:
    """Yield all tensors, in order."""
    if isinstance(state, Tensor):
        yield state
    else:
        for part in state:
            yield from tensors(part)


def rows(state: S, index: Tensor | list[int]) -> S:
    """Select rows ``index``, in any order and with repeats: reorder, fork, drop. Always a copy."""
    return map_tensors(lambda t: t.index_select(0, torch.as_tensor(index, dtype=torch.long, device=t.device)), state)


def overwrite(state: S, to: list[int], source: list[int]) -> S:
    """Copy rows ``source`` over rows ``to``; nothing else is copied.

    ``to`` must have no repeats and no row of ``source``. Consumes ``state``: its tensors are overwritten, except
    non-contiguous ones such as expanded tensors, which are copied first.
    """

    def written(t: Tensor) -> Tensor:
        t = t.contiguous()
        held = t.unbind(0)
        # Row by row: index operations would copy twice.
        torch._foreach_copy_([held[row] for row in to], [held[row] for row in source])  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        return t

    return map_tensors(written, state) if to else state


def nbytes(state: Any) -> int:
    """Total bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors(state))


def to(state: S, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> S:
    """Move the state to a device, and cast its floating-point tensors to ``dtype``."""
    return map_tensors(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None), state)


def save(state: Any, path: str | Path) -> None:
    """Write the tensors as safetensors, numbered in order."""
    from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

    save_file({f"{i:05d}": t.contiguous().clone() for i, t in enumerate(tensors(state))}, str(path))


def load(like: S, path: str | Path) -> S:
    """Load a state written by ``save`` into a tree with the structure of ``like``."""
    from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

    stored = iter(sorted(load_file(str(path)).items()))
    return map_tensors(lambda _: next(stored)[1], like)
