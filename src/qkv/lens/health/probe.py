"""Sizes of the values inside a model on some batches: residual stream, attention scores, heads, units, logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.layers.branch import Branch
from qkv.layers.observable import list_points
from qkv.layers.tap import Location, Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.ops.linear.precision import autocast
from qkv.tasks.task import Task

STREAM, LARGEST, LOGIT = "stream", "largest", "logit"
"""Quantities: root mean square of the residual stream after a branch; largest magnitude in it; largest logit."""
SCORE, ENTROPY, HEAD, DEAD = "score", "entropy", "head", "dead"
"""Quantities: largest attention score; entropy of a head's weights, as a share of that of equal weights; size of a
head's output, relative to the mean head of its layer; share of units that are never active.
"""
SILENT = 1e-3
"""A unit is dead if it never exceeds this share of the root mean square of its layer."""
_MOST_SCORES = 1 << 25
"""Maximum number of scores of one layer and head; with more, attention is not measured."""
_FEWEST_KEYS = 4
"""Minimum number of visible keys of a query whose entropy is counted."""


def key(quantity: str, place: str, index: int | None = None) -> str:
    """Return the name of a quantity of a layer, or of its head number ``index``, in a record."""
    return f"{quantity} {place}" if index is None else f"{quantity} {place} {index}"


@torch.no_grad()
def probe(model: Transformer, task: Task, batches: Sequence[Batch], number_format: str) -> dict[str, float]:
    """Run ``model`` on ``batches`` without dropout, and return the measured quantities by ``key``.

    Fast implementations step aside for the values that a tap reads. Attention scores are left out where they would
    take too much memory.
    """
    tap = _Sizes(model, batches)
    with evaluating(model), autocast(number_format, model.device):
        for batch in batches:
            task.summed_loss(model, batch, tap)
    return tap.figures()


class _Sizes(Tap):
    """Tap that reduces every value to a few numbers at once, and keeps no value."""

    def __init__(self, model: Transformer, batches: Sequence[Batch]) -> None:
        names = ["residual_after", "head_outputs", "activation"]
        rows = max(batch.input.num_rows for batch in batches)
        length = max(_positions(model, batch) for batch in batches)
        if rows * length * length <= _MOST_SCORES:
            names.append("scores")
        paths = list_points(model)
        here = {path.rpartition(".")[2] for path in paths}
        super().__init__(*(name for name in names if name in here), *(p for p in paths if p == "head.output"))
        self._branches = {m.name: m for m in model.modules() if isinstance(m, Branch) and m.name is not None}
        self._most: dict[str, Tensor] = {}
        self._sums: dict[str, list[Tensor]] = {}
        self._units: dict[str, tuple[Tensor, Tensor, int]] = {}

    def at(self, location: Location, value: Tensor) -> None:
        value = at_least_single(value.detach())
        measure = {
            "residual_after": self._stream,
            "scores": self._scores,
            "head_outputs": self._heads,
            "activation": self._activation,
            "output": self._logits,
        }
        measure[location.point](location.module, value)

    def _stream(self, place: str, x: Tensor) -> None:
        self._add(key(STREAM, place), x.square().mean())
        self._raise(key(LARGEST, place), x.abs().max())

    def _logits(self, place: str, logits: Tensor) -> None:
        self._raise(key(LOGIT, place), logits.abs().max())

    def _scores(self, place: str, scores: Tensor) -> None:
        """Measure masked scores (B, H, N, M), -inf where a key is hidden."""
        seen = scores.isfinite()
        count = seen.sum(-1)
        if scores.dim() != 4 or not bool(seen.any()):
            return
        self._raise(key(SCORE, place), scores.masked_fill(~seen, 0).abs().max())
        p = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        entropy = -torch.special.xlogy(p, p).sum(-1)
        counted = count >= _FEWEST_KEYS
        share = (entropy / count.clamp(min=2).log()).masked_fill(~counted, 0)
        total = counted.expand_as(share).sum((0, 2)).clamp(min=1)
        if bool(counted.any()):
            self._add(key(ENTROPY, place), share.nan_to_num().sum((0, 2)) / total)

    def _heads(self, place: str, out: Tensor) -> None:
        """Measure the outputs of heads (B, H, N, Dv) behind the output projection."""
        if out.dim() != 4 or out.shape[1] < 2:
            return
        weight = getattr(self._branches[place].ending(), "weight", None) if place in self._branches else None
        heads, size = out.shape[1], out.shape[3]
        if isinstance(weight, Tensor) and weight.dim() == 2 and weight.shape[1] == heads * size:
            maps = at_least_single(weight.detach()).unflatten(1, (heads, size))
            gram = torch.einsum("dhv,dhw->hvw", maps, maps)
            squares = torch.einsum("bhnv,hvw,bhnw->h", out, gram, out)
        else:
            squares = out.square().sum((0, 2, 3))
        self._add(key(HEAD, place), squares.clamp(min=0))

    def _activation(self, place: str, a: Tensor) -> None:
        """Collect the largest magnitude of each unit of activations (…, F)."""
        a = a.flatten(0, -2)
        if not len(a):
            return
        most, squares = a.abs().amax(0), a.square().sum()
        before = self._units.get(place)
        if before is not None:
            most, squares = torch.maximum(most, before[0]), squares + before[1]
        self._units[place] = most, squares, a.numel() + (before[2] if before else 0)

    def _add(self, name: str, value: Tensor) -> None:
        self._sums.setdefault(name, []).append(value)

    def _raise(self, name: str, value: Tensor) -> None:
        self._most[name] = torch.maximum(value, self._most[name]) if name in self._most else value

    def figures(self) -> dict[str, float]:
        """Return all quantities of the batches seen."""
        figures = {name: value.item() for name, value in self._most.items()}
        for name, values in self._sums.items():
            quantity, place = name.split(" ")
            mean = torch.stack(values).mean(0)
            if quantity == STREAM:
                figures[name] = math.sqrt(mean.item())
            else:
                sizes = mean.sqrt() / mean.sqrt().mean().clamp(min=1e-30) if quantity == HEAD else mean
                figures |= {key(quantity, place, i): size for i, size in enumerate(sizes.tolist())}
        for place, (most, squares, count) in self._units.items():
            size = (squares / count).sqrt()
            figures[key(DEAD, place)] = (most <= SILENT * size).double().mean().item()
        return figures


def _positions(model: Transformer, batch: Batch) -> int:
    """Return the largest number of positions of a row that the model or its encoder reads."""
    counts = [model.frontend.computed(batch.input) // max(1, batch.input.num_rows)]
    if batch.source is not None and model.encoder is not None:
        counts.append(model.encoder.frontend.computed(batch.source) // max(1, batch.source.num_rows))
    return max(counts)
