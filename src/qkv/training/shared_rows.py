"""Training on rows that ranks share: each computes its part of every row, and the sums equal those of whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.data.batching.batch import IGNORED, INPUT, Batch
from qkv.layers.signal import Signal
from qkv.mixers.attention.attend import Attend
from qkv.models.block import Slot
from qkv.models.transformer import Transformer
from qkv.parallel.context.heads import HeadExchange
from qkv.parallel.context.layout import RankLayout, places
from qkv.parallel.context.ranks import Ranks
from qkv.parallel.context.relay import Relay
from qkv.parallel.context.ring import RingAttention
from qkv.parallel.context.ways import By, way_of
from qkv.system.errors import UserError, dotted


class SharedRows:
    """Rows of a causal language model that the ranks of a group share."""

    def __init__(self, ranks: Ranks, folded: bool = True, by: By = "ring"):
        """``folded``: see ``RankLayout``. ``by``: how attention meets the keys of other ranks."""
        self.ranks, self.layout = ranks, RankLayout(ranks.size, folded)
        self._attend = (RingAttention if by == "ring" else HeadExchange)(ranks, self.layout)
        self._relay = Relay(ranks, self.layout)

    @contextmanager
    def sharing(self, model: Transformer) -> Iterator[None]:
        """Let ``model`` read this rank's part of rows (``part``) inside, backward passes included.

        Raises ``UserError`` if a part of the model cannot.
        """
        check(model)
        slots = _slots(model)
        ways = [way_of(slot.body).name for slot in slots]
        for slot, way in zip(slots, ways, strict=True):
            slot.relay = self._relay if way == "state" else None
            _meet(slot.body, self._attend if way == "keys" else None)
        try:
            yield
        finally:
            for slot in slots:
                slot.relay = None
                _meet(slot.body, None)

    def part(self, batch: Batch) -> Batch:
        """Return this rank's positions of a batch, whose losses on all ranks add up to that of the batch.

        Rows are padded to a multiple of the number of chunks. Raises ``UserError`` for a batch that has other than one
        input with a target at each position.
        """
        signal = batch.input
        if set(batch.signals) != {INPUT} or batch.targets.shape != signal.values.shape or batch.extras:
            raise UserError("only rows with one input and a target at each position are shared by ranks; set context 1")
        rest = -signal.values.shape[1] % self.layout.chunks
        mine = self.layout.part_of_signal(_longer(signal, rest), self.ranks.rank)
        targets = self.layout.part(F.pad(batch.targets, (0, rest), value=IGNORED), self.ranks.rank)
        return replace(batch, signals={INPUT: mine}, targets=targets, count=None)

    def add_up(self, model: nn.Module) -> None:
        """Replace the gradients of ``model``, of the loss of this rank's part, by those of the sum over the ranks."""
        self.ranks.add_up([_gradient(p) for p in model.parameters() if p.requires_grad])


def _meet(branch: Any, attend: Attend | None) -> None:
    """Let a branch whose positions meet by keys use ``attend``."""
    if branch.only_by_keys:
        branch.elsewhere = attend


def check(model: Transformer) -> None:
    """Raise ``UserError`` if a part of ``model`` needs whole rows."""
    spec = model.spec
    wrong = next((name for name in _WHOLE if getattr(spec, name) is not None), None)
    if wrong:
        raise UserError(f"model.{wrong}: its rows cannot be shared by ranks; set parallel.context=1")
    if not spec.head.per_position:
        raise UserError(f"model.head: {spec.head.kind!r} reads whole rows; set parallel.context=1")
    if any(getattr(norm, "over_batch", False) for norm in model.modules()):
        raise UserError("batch_norm has statistics of whole rows, which ranks share; use layer_norm or rms_norm")
    for slot in _slots(model):
        way = way_of(slot.body)
        if way.name == "state" and model.recompute:
            raise UserError(
                f"training.recompute: blocks are computed twice, but the state of {slot.body.spec.kind!r} goes from "
                "rank to rank once; switch it off"
            )
        if not way.name:
            path = dotted(("model", *spec.first_branch(lambda branch, part=slot.body.spec: branch is part)))
            raise UserError(f"{path}: {slot.body.spec.kind!r} {way.reason}; set parallel.context=1")


_WHOLE = ("encoder", "latents", "segmentation", "queries")
"""Parts of a model that read whole rows."""


def _slots(model: Transformer) -> list[Slot]:
    return [slot for block in model.blocks for slot in block.branches]  # type: ignore[union-attr, misc]


def _longer(signal: Signal, count: int) -> Signal:
    """Append ``count`` positions of padding to the rows of a signal."""
    if not count:
        return signal
    lengths = signal.lengths
    if lengths is None:
        lengths = signal.values.new_full(signal.values.shape[:1], signal.values.shape[1])
    positions, types = (
        None if t is None else torch.cat((t, t[:, -1:].expand(-1, count)), 1) for t in (places(signal), signal.types)
    )
    # A document of its mine: a causal mask alone would show padding at the last position to the query there.
    segments = torch.zeros_like(signal.values) if signal.segments is None else signal.segments
    segments = F.pad(segments, (0, count), value=-1)
    values = F.pad(signal.values, (0, count))
    return replace(signal, values=values, lengths=lengths, positions=positions, segments=segments, types=types)


def _gradient(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter, zeros if this rank's part gives none."""
    if parameter.grad is None:
        parameter.grad = parameter.new_zeros(parameter.shape)
    return parameter.grad
