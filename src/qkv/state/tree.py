"""What can be done to any state: a tree of tuples, named tuples and tensors, the batch axis first on every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")


def map_tensors(f: Callable[[Tensor], Tensor], state: S) -> S:
    """The same tree with ``f`` applied to each tensor."""
    if isinstance(state, Tensor):
        return f(state)  # type: ignore[return-value]
    parts: list[Any] = [map_tensors(f, part) for part in state]  # type: ignore[attr-defined]
    return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)  # type: ignore[call-arg,return-value]


def tensors(state: Any) -> Iterator[Tensor]:
    """Every tensor, in order."""
    if isinstance(state, Tensor):
        yield state
    else:
        for part in state:
            yield from tensors(part)


def rows(state: S, index: Tensor | list[int]) -> S:
    """The state of rows ``index`` (any order, any number of times): reorder, fork, drop. Always a copy."""
    return map_tensors(lambda t: t.index_select(0, torch.as_tensor(index, dtype=torch.long, device=t.device)), state)


def overwrite(state: S, to: list[int], source: list[int]) -> S:
    """``state`` with what rows ``source`` hold in rows ``to`` as well; the other rows are not touched, and nothing else is copied.

    No row may be in both, none twice in ``to``. Consumes ``state``: its tensors are written, except where several of their elements
    share a place in memory.
    """

    def written(t: Tensor) -> Tensor:
        t = t.contiguous()
        held = t.unbind(0)
        # From row to row: through an index, the rows would be copied twice.
        torch._foreach_copy_([held[row] for row in to], [held[row] for row in source])  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        return t

    return map_tensors(written, state) if to else state


def nbytes(state: Any) -> int:
    """Bytes that the tensors take."""
    return sum(t.numel() * t.element_size() for t in tensors(state))


def to(state: S, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> S:
    """The state on another device, or its floating-point tensors in another precision."""
    return map_tensors(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None), state)


def save(state: Any, path: str | Path) -> None:
    """Write the tensors as safetensors, numbered in order."""
    from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

    save_file({f"{i:05d}": t.contiguous().clone() for i, t in enumerate(tensors(state))}, str(path))


def load(like: S, path: str | Path) -> S:
    """Read what ``save`` wrote into a tree of the same form as ``like``."""
    from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

    stored = iter(sorted(load_file(str(path)).items()))
    return map_tensors(lambda _: next(stored)[1], like)
