"""Operations on states: trees of tuples, named tuples and mappings of batch-first tensors, stores and counts.

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


def _parts(state: Any) -> list[Any]:
    """Return the children of an inner node of the tree; an empty list for a leaf."""
    if isinstance(state, Mapping):
        return list(state.values())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    inner = isinstance(state, (tuple, list)) and not isinstance(state, Counts)
    return list(state) if inner else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _rebuilt(state: Any, parts: list[Any]) -> Any:
    """Return a node like ``state`` with the children ``parts``; a leaf unchanged."""
    if isinstance(state, Mapping):
        return dict(zip(state, parts, strict=True))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if hasattr(state, "_fields"):
        return type(state)(*parts)
    return type(state)(parts) if isinstance(state, (tuple, list)) else state  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _each(state: Any, tensor: Callable[[Tensor], Any], node: Callable[[Store | Counts], Any]) -> Any:
    """Apply ``tensor`` to the tensors of a tree, and ``node`` to its stores and counts; return the new tree."""
    if isinstance(state, Tensor):
        return tensor(state)
    if isinstance(state, (Store, Counts)):
        return node(state)
    return _rebuilt(state, [_each(part, tensor, node) for part in _parts(state)])


def map_tensors(f: Callable[[Tensor], Tensor], state: S) -> S:
    """Apply ``f`` to each tensor of a state, including tensors in stores; counts are unchanged."""
    return _each(state, f, lambda node: node.map(f) if isinstance(node, Store) else node)


def tensors(state: Any) -> Iterator[Tensor]:
    """Iterate over the tensors of a state, in order; counts are converted to int64 tensors on the CPU."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Store):
        yield from state.tensors()
    elif isinstance(state, Counts):
        yield state.tensor()
    else:
        for part in _parts(state):
            yield from tensors(part)


def stores(state: Any) -> Iterator[Store]:
    """Iterate over the stores of a state, in order."""
    if isinstance(state, Store):
        yield state
    for part in _parts(state):
        yield from stores(part)


def rows(state: S, index: Tensor | list[int]) -> S:
    """Copy the rows ``index`` of a state, in any order and with repeats, so as to reorder, fork or drop rows."""
    listed = list(Counts.of(index))
    places: dict[torch.device, Tensor] = {}

    def on(device: torch.device) -> Tensor:
        if device not in places:
            places[device] = torch.tensor(listed, dtype=torch.long, device=device)
        return places[device]

    def chosen(node: Store | Counts) -> Store | Counts:
        return node.rows(listed) if isinstance(node, Counts) else node.rows(on(next(node.tensors()).device))

    return _each(state, lambda t: t.index_select(0, on(t.device)), chosen)


def one_row(state: S, row: int, length: int | None = None) -> S:
    """Copy one row of a state. ``length``: number of its positions; if given, stores may leave out slots beyond it."""

    def chosen(node: Store | Counts) -> Store | Counts:
        return node.rows([row]) if isinstance(node, Counts) else node.one_row(row, length)

    return _each(state, lambda t: t[row : row + 1].clone(), chosen)


def overwrite(state: S, to: list[int], source: list[int]) -> S:
    """Copy rows ``source`` over rows ``to``, in place; no other row is copied.

    ``to`` must have no repeats and no row of ``source``. Consumes ``state``: its tensors are overwritten, except
    non-contiguous ones such as expanded tensors, which are copied first.
    """
    return _each(state, lambda t: overwritten(t, to, source), lambda node: node.overwrite(to, source)) if to else state


def join(first: S, second: S) -> S:
    """Concatenate the rows of two states of the same model to a new state.

    If buffers of the states have different numbers of positions, such as memories of different lengths, the shorter
    ones are padded with zeros. Leaves that belong to the batch are taken from ``first``.
    """
    return _joined(first, second)


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, Tensor):
        return joined(first, second)
    if isinstance(first, (Store, Counts)):
        return first.join(second)
    return _rebuilt(first, [_joined(a, b) for a, b in zip(_parts(first), _parts(second), strict=True)])


def cut(state: S, lengths: Counts) -> S:
    """Truncate a state of ``rewindable`` branches to ``lengths`` (B) positions per row. Consumes ``state``."""
    return _each(state, lambda t: t, lambda node: node.cut(lengths) if isinstance(node, Store) else node)


def nbytes(state: Any) -> int:
    """Return the size in bytes of all tensors and counts; a page that several stores hold is counted once.

    A tensor outside of stores is counted once for each node that holds it, because each node gets a separate copy as
    soon as rows are added or removed.
    """
    distinct = {id(t): t for store in stores(state) for t in store.tensors()}
    return sum(t.nbytes for t in distinct.values()) + _outside_of_stores(state)


def _outside_of_stores(state: Any) -> int:
    return state.nbytes if isinstance(state, (Tensor, Counts)) else sum(map(_outside_of_stores, _parts(state)))


def to(state: S, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> S:
    """Move a state to a device, and cast its floating-point tensors to ``dtype``. Counts stay in host memory."""
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
