"""Feed-forward neurons and memory slots, with the tokens that fire them most over many rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.layers.tap import matches
from qkv.lens.record import record
from qkv.lens.views.places import BranchPlace, find_place, list_branches
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.system.errors import UserError

_POINTS = ("activation", "slot_weights")
"""Points whose last axis counts neurons or memory slots."""

Rows = Signal | Tensor | tuple[Signal | Tensor, Signal | Tensor]
"""Batch of inputs; of a model with an encoder, the pair of its own input and the encoder's source."""


@dataclass(frozen=True, kw_only=True)
class Neurons(BranchPlace):
    """F neurons or memory slots of a branch over all rows that were read; see ``BranchPlace``.

    point: where they are read, such as "activation". values (F, k): highest values, rows and positions (F, k): where
    they are, tokens (F, k): the token there, -1 if positions are no tokens. mean (F): mean value; share (F): share of
    positions with a value above 0. Places that do not exist, with fewer than k positions, have the row -1.
    """

    point: str
    values: Tensor
    rows: Tensor
    positions: Tensor
    tokens: Tensor
    mean: Tensor
    share: Tensor


@torch.no_grad()
def neurons(
    model: Transformer,
    rows: Iterable[Rows],
    k: int = 5,
    branches: Sequence[str] = ("*",),
) -> list[Neurons]:
    """Return all feed-forward neurons and memory slots of the position-wise branches of the model and of its encoder,
    with the k positions that fire them most, in the order of computation.

    rows: batches of inputs, read one after the other; only the k best places are kept. Neurons are the activations that
    the last linear map reads, which act as values of a key–value memory (Geva et al. 2021). branches: paths of
    branches; "*" for all. Raises ``UserError`` for k < 1, without rows, or if no branch has neurons.
    """
    if k < 1:
        raise UserError(f"k is {k}; allowed: at least 1 place of each neuron")
    tables, first = dict[tuple[str, int], _Table](), 0
    points = _points(model, branches)
    for batch in rows:
        inputs, source = map(Signal.of, batch) if isinstance(batch, tuple) else (Signal.of(batch), None)
        for location, values in record(model, inputs, *points, source=source).records.items():
            table = tables.setdefault(
                (location.path, location.call), _Table(find_place(model, location), location.point, k)
            )
            signal, frontend = inputs, model.frontend
            if table.place.stack == "encoder" and model.encoder is not None and source is not None:
                signal, frontend = source, model.encoder.frontend
            table.add(at_least_single(values), signal, frontend.lengths(signal), first)
        first += inputs.num_rows
    if not first:
        raise UserError("there are no rows; give at least one row of the model's input")
    return [table.result() for table in tables.values()]


def _points(model: Transformer, branches: Sequence[str]) -> list[str]:
    """Return the points of the neurons of the selected branches."""
    wise = list_branches(model, lambda b: not b.spec.mixes and not b.spec.reads_memory)
    points = [f"{b.name}.{p}" for stack, b in wise if stack in ("model", "encoder") for p in _POINTS if p in b.points()]
    chosen = [p for p in points if any(name == "*" or matches(name, p.rpartition(".")[0]) for name in branches)]
    if not chosen:
        names = ", ".join(point.rpartition(".")[0] for point in points) or "none"
        raise UserError(f"no branch at {', '.join(branches)} has neurons or memory slots; those that do: {names}")
    return chosen


class _Table:
    """Highest values of the neurons of one branch, over the batches that were added."""

    def __init__(self, place: BranchPlace, point: str, k: int):
        self.place, self.point, self.k, self.count = place, point, k, 0
        self.best = torch.empty(0)
        self.places = torch.empty(0, dtype=torch.long)
        self.total = self.above = torch.zeros(())

    def add(self, values: Tensor, signal: Signal, lengths: Tensor | None, first: int) -> None:
        """Add values (B, N, F) of rows that are numbered from ``first``. lengths (B): unpadded positions; None: all."""
        values = values.flatten(2)
        batch, count, _ = values.shape
        real = torch.ones(batch, count, dtype=torch.bool, device=values.device)
        if lengths is not None and int(lengths.max()) <= count:
            real = torch.arange(count, device=values.device) < lengths[:, None]
        ids, words = signal.values, signal.values.dim() == 2 and not signal.values.is_floating_point()
        tokens = ids if words and ids.shape == real.shape else torch.full_like(real, -1, dtype=torch.long)
        steps = torch.arange(count, device=values.device).expand(batch, -1)
        rows = torch.arange(first, first + batch, device=values.device)[:, None].expand(-1, count)
        x, places = values[real], torch.stack((rows[real], steps[real], tokens[real]), -1)  # (M, F), (M, 3)
        best, index = x.topk(min(self.k, len(x)), 0)
        self.total, self.above = self.total + x.sum(0), self.above + (x > 0).sum(0)
        self.count += len(x)
        if self.best.numel():
            best, places = torch.cat((self.best, best)), torch.cat((self.places, places[index]))
            best, order = best.topk(min(self.k, len(best)), 0)
            self.best, self.places = best, places.gather(0, order[..., None].expand(-1, -1, 3))
        else:
            self.best, self.places = best, places[index]

    def result(self) -> Neurons:
        """Return the table, (F, k)."""
        missing = self.k - len(self.best)
        values = torch.cat((self.best, torch.full_like(self.best[:1], torch.nan).expand(missing, -1))).T
        places = torch.cat((self.places, torch.full_like(self.places[:1], -1).expand(missing, -1, -1))).transpose(0, 1)
        rows, positions, tokens = places.unbind(-1)
        return Neurons(
            **self.place.place(),
            point=self.point,
            values=values,
            rows=rows,
            positions=positions,
            tokens=tokens,
            mean=self.total / self.count,
            share=self.above / self.count,
        )
