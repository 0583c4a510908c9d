"""Operations on states: trees of tuples, named tuples and mappings of tensors with the batch axis first, stores and counts.

All other leaves, such as a fixed capacity, belong to the batch and not to a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from qkv.state.arrival import Counts
from qkv.state.store import Store, joined, overwritten

S = TypeVar("S")


def _each(state: Any, tensor: Callable[..., Any], node: Callable[..., Any], *others: Any) -> Any:
    """Apply functions to the leaves of a tree: ``tensor`` to tensors, ``node`` to stores and counts.

    others: trees of the same structure, whose leaves are further arguments.
    """
    if isinstance(state, Tensor):
        return tensor(state, *others)
    if isinstance(state, (Store, Counts)):
        return node(state, *others)
    if isinstance(state, Mapping):
        return {key: _each(part, tensor, node, *(other[key] for other in others)) for key, part in state.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if not isinstance(state, (tuple, list)):
        return state
    parts = [_each(part, tensor, node, *rest) for part, *rest in zip(state, *others, strict=True)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def map_tensors(f: Callable[[Tensor], Tensor], state: S) -> S:
    """Apply ``f`` to each tensor of a state, those in stores included; counts are unchanged."""
    return _each(state, f, lambda node: node.map(f) if isinstance(node, Store) else node)


def tensors(state: Any) -> Iterator[Tensor]:
    """Iterate over the tensors of a state, in order; counts as int64 tensors on the host."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Store):
        yield from state.tensors()
    elif isinstance(state, Counts):
        yield state.tensor()
    elif isinstance(state, (tuple, list, Mapping)):
        for part in state.values() if isinstance(state, Mapping) else state:  # pyright: ignore[reportUnknownVariableType]
            yield from tensors(part)


def rows(state: S, index: Tensor | list[int]) -> S:
    """Select rows ``index``, in any order and with repeats: reorder, fork, drop. Always a copy."""
    listed: list[int] = index.tolist() if isinstance(index, Tensor) else index
    places: dict[torch.device, Tensor] = {}

    def on(device: torch.device) -> Tensor:
        if device not in places:
            places[device] = torch.tensor(listed, dtype=torch.long, device=device)
        return places[device]

    def chosen(node: Store | Counts) -> Store | Counts:
        return node.rows(listed) if isinstance(node, Counts) else node.rows(on(next(node.tensors()).device))

    return _each(state, lambda t: t.index_select(0, on(t.device)), chosen)


def overwrite(state: S, to: list[int], source: list[int]) -> S:
    """Copy rows ``source`` over rows ``to``; nothing else is copied.

    ``to`` must have no repeats and no row of ``source``. Consumes ``state``: its tensors are overwritten, except
    non-contiguous ones such as expanded tensors, which are copied first.
    """
    return _each(state, lambda t: overwritten(t, to, source), lambda node: node.overwrite(to, source)) if to else state


def join(first: S, second: S) -> S:
    """Concatenate the rows of two states of the same model. Always a copy.

    Where they have room for different numbers of positions, or memories of different lengths, the smaller is padded
    with zeros. Leaves that belong to the batch are those of the first.
    """
    return _each(first, joined, lambda node, other: node.join(other), second)


def cut(state: S, lengths: Counts) -> S:
    """Drop the positions from ``lengths`` (B) on from a state of ``rewindable`` branches. Consumes ``state``."""
    return _each(state, lambda t: t, lambda node: node.cut(lengths) if isinstance(node, Store) else node)


def nbytes(state: Any) -> int:
    """Total size in bytes of all tensors and counts; storage shared by several rows is counted once."""
    if isinstance(state, (Tensor, Store, Counts)):
        return state.nbytes
    if isinstance(state, (tuple, list)):
        return sum(nbytes(part) for part in state)  # pyright: ignore[reportUnknownVariableType]
    return sum(map(nbytes, state.values())) if isinstance(state, Mapping) else 0  # pyright: ignore[reportUnknownArgumentType]


def to(state: S, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> S:
    """Move the state to a device, and cast its floating-point tensors to ``dtype``. Counts stay on the host."""
    return map_tensors(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None), state)


def save(state: Any, path: str | Path) -> None:
    """Write the tensors of a state to a safetensors file, numbered in order."""
    from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

    save_file({f"{i:05d}": t.contiguous().clone() for i, t in enumerate(tensors(state))}, str(path))


def load(like: S, path: str | Path) -> S:
    """Load a state written by ``save`` into a tree with the structure of ``like``."""
    from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

    stored = iter(t for _, t in sorted(load_file(str(path)).items()))
    return _each(
        like,
        lambda _: next(stored),
        lambda node: node.map(lambda _: next(stored)) if isinstance(node, Store) else Counts.of(next(stored)),
    )
