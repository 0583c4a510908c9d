"""Wide path: a linear map from features of the whole row, beside a model, the deep path (Cheng et al. 2016).

It belongs to a run and not to its model, which does not know it: the task joins the outputs of both.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import Memories, Memory
from qkv.layers.features import FeatureBag, features_of
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.layers.times import WINDOW_EPS, TimedSignal
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.models import wide as spec
from qkv.spec.register import implementation, implements
from qkv.system.errors import UserError

DEEP, WIDE = 0, 1
"""Indices of the deep and the wide path in ``share`` and ``used``."""


class WidePath(nn.Module):
    """Base class of wide paths. Constructor: ``cls(part, num_outputs)``.

    ``qkv.training.wide`` fits them; they are not trained by gradient descent.   share (2): factors a and b of the deep
    and the wide path, fitted after training; (1, 0) until then.   used (2): 1 for each path that evaluation computes,
    0 for a path whose factor is 0.
    """

    share: Tensor
    used: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("share", torch.tensor([1.0, 0.0]))
        self.register_buffer("used", torch.tensor([1, 0]))

    def reads(self, path: int) -> bool:
        """Return True if ``path``, DEEP or WIDE, is computed in evaluation."""
        return bool(self.used[path])

    def set_share(self, deep: float, wide: float) -> None:
        """Set the factors a and b of the deep and the wide path."""
        self.share.copy_(torch.tensor([deep, wide]))
        self.used.copy_((self.share != 0).long())


class LinearPath(WidePath):
    """Base class of linear maps with table (F, C) and bias (C), whose outputs are added to those of the model.

    outputs = a · deep + b · wide.
    """

    per_position: bool = False
    """True if the path has outputs for each position, (B, N, C), instead of each row."""

    def __init__(self, features: int, num_outputs: int):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(features, num_outputs), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(num_outputs), requires_grad=False)

    @abstractmethod
    def forward(self, signal: Signal) -> Tensor:
        """Compute outputs (B, C) from the features of each row. Raises ``UserError`` if the signal has no features."""

    @property
    def num_outputs(self) -> int:
        """Number of outputs per row, C."""
        return self.table.shape[1]

    def joined(
        self, model: Transformer, signal: Signal, tap: Tap | None = None, memory: Memory | Memories | None = None
    ) -> Tensor:
        """Run ``model``, the deep path; return a · deep + b · wide in the shape of its outputs, (B, C) or per position.
        A path with the factor 0 is not computed.
        """
        deep = model(signal, tap=tap, memory=memory)[0] if self.reads(DEEP) else None
        return model.head.shaped(self._sum(deep, signal))

    def _sum(self, deep: Tensor | None, signal: Signal) -> Tensor:
        """Return a · deep + b · wide, (B, C) or per position; ``deep``: outputs of the head, None if a is 0."""
        if deep is not None and not self.per_position:
            deep = deep.flatten(1)
        if not self.reads(WIDE):
            assert deep is not None
            return deep * self.share[DEEP].to(deep.dtype)
        wide = self.share[WIDE] * self(signal)
        return wide if deep is None else wide + self.share[DEEP] * deep


def _features(signal: Signal) -> Signal:
    """Return the features of the wide path, an input of ``signal``. Raises ``UserError`` if the signal has none."""
    features = features_of(signal)
    if features is None:
        raise UserError("the run has a wide path, but the signal has no features; pass them as its input 'wide'")
    return features


def _bag(signal: Signal) -> FeatureBag:
    return FeatureBag.of(_features(signal))


@implements(spec.Ngrams)
class Ngrams(LinearPath):
    """Linear map of TF-IDF weights of hashed n-grams: (B, F) ids and counts -> Σ_f t_f W[id_f] + c, (B, C).

    The spec defines t_f. idf is fitted, too.
    """

    idf: Tensor

    def __init__(self, part: spec.Ngrams, num_outputs: int):
        super().__init__(2 * part.buckets, num_outputs)
        self.buckets = part.buckets
        self.register_buffer("idf", torch.ones(2 * part.buckets))

    def forward(self, signal: Signal) -> Tensor:
        bag = _bag(signal)
        weights = self.weights(bag.values, bag.amounts)
        return F.embedding_bag(bag.values, self.table, per_sample_weights=weights, mode="sum") + self.bias

    def weights(self, bag: Tensor, counts: Tensor) -> Tensor:
        """Return the TF-IDF weights (B, F) of features; 0 where the count is 0."""
        return _tf_idf(bag, counts, self.idf, self.buckets)


def _tf_idf(bag: Tensor, counts: Tensor, idf: Tensor, buckets: int) -> Tensor:
    weights = torch.where(counts > 0, (1 + counts.clamp(min=1).log()) * idf[bag], 0)
    words = bag < buckets
    squares = weights.square()
    norms = [torch.where(group, squares, 0).sum(-1, keepdim=True).sqrt() for group in (words, ~words)]
    return weights / torch.where(words, *norms).clamp(min=1e-12)


@implements(spec.Features)
class Features(LinearPath):
    """Linear map of the simple features of a value: (B, F) -> ((x - mean) / deviation) W + c, (B, C).

    mean and deviation (F) are fitted, too.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, part: spec.Features, num_outputs: int):
        if part.count is None:
            raise UserError("wide.count is unknown: set it, or build the path together with its data")
        super().__init__(part.count, num_outputs)
        self.register_buffer("mean", torch.zeros(part.count))
        self.register_buffer("deviation", torch.ones(part.count))

    def forward(self, signal: Signal) -> Tensor:
        return self.scaled(self.features(signal)) @ self.table + self.bias

    def features(self, signal: Signal) -> Tensor:
        """Return the features (B, F) of the rows of ``signal``. Raises ``UserError`` if it has no features."""
        return _features(signal).values

    def scaled(self, features: Tensor) -> Tensor:
        """Standardise features (B, F)."""
        return (features.to(self.table.dtype) - self.mean) / self.deviation


@implements(spec.Gradients)
class Gradients(Features):
    """Linear map of averaged pixels and histograms of gradients, as ``Features``."""


@implements(spec.Subtrees)
class Subtrees(Features):
    """Linear map of a bag of features of a graph: (B, D + F) ids and counts -> Σ_i t_i W[id_i] + c, (B, C).

    The first D counts are simple features with t = (x - mean) / deviation; all others have t = ln(1 + count).
    """

    def __init__(self, part: spec.Subtrees, num_outputs: int):
        super().__init__(part, num_outputs)
        self.first = len(self.mean)
        self.table = nn.Parameter(torch.zeros(self.first + part.buckets, num_outputs), requires_grad=False)

    def forward(self, signal: Signal) -> Tensor:
        bag = _bag(signal)
        dense, counts = bag.amounts[:, : self.first], bag.amounts[:, self.first :]
        weights = torch.cat((self.scaled(dense), counts.to(self.table.dtype).log1p()), 1)
        return F.embedding_bag(bag.values, self.table, per_sample_weights=weights, mode="sum") + self.bias


@implements(spec.AllInputs)
class AllInputs(Features):
    """Linear map of features of several inputs: (B, D + F) ids and counts -> Σ_i t_i W[id_i] + c, (B, C).

    The first D counts are features of signals and cells with t = (x - mean) / deviation; the others are n-grams of the
    text, with ids from D on and TF-IDF weights as in ``Ngrams``.
    """

    idf: Tensor

    def __init__(self, part: spec.AllInputs, num_outputs: int):
        super().__init__(part, num_outputs)
        self.first, self.buckets = len(self.mean), part.text.buckets if part.text else 0
        self.table = nn.Parameter(torch.zeros(self.first + 2 * self.buckets, num_outputs), requires_grad=False)
        self.register_buffer("idf", torch.ones(2 * self.buckets))

    def forward(self, signal: Signal) -> Tensor:
        bag, first = _bag(signal), self.first
        outputs = self.scaled(bag.amounts[:, :first]) @ self.table[:first] + self.bias
        if not self.buckets:
            return outputs
        ids, counts = (bag.values[:, first:] - first).clamp(min=0), bag.amounts[:, first:]
        weights = self.weights(ids, counts.to(self.table.dtype))
        return outputs + F.embedding_bag(ids, self.table[first:], per_sample_weights=weights, mode="sum")

    def weights(self, bag: Tensor, counts: Tensor) -> Tensor:
        """Return the TF-IDF weights (B, F) of n-grams; 0 where the count is 0."""
        return _tf_idf(bag, counts, self.idf, self.buckets)


@implements(spec.Columns)
class Columns(Features):
    """Linear map of the columns of each node: (B, N, F) -> ((x - mean) / deviation) W + c, (B, N, C)."""

    per_position = True

    def features(self, signal: Signal) -> Tensor:
        return signal.values


@implements(spec.PairFeatures)
class PairFeatures(Features):
    """Linear map of the features of node pairs: (P, F) -> ((x - mean) / deviation) W + c, (P, C)."""

    per_position = True


@implements(spec.LinearWindow)
class LinearWindow(LinearPath):
    """Linear map of the standardised window of one channel, (B, S, 1 + K) -> W^T z + c, (B, C); it ignores K
    covariates.

    z = (x, μ/σ, 1/σ), where x is the values minus their mean μ, divided by their standard deviation σ, as in the front
    end ``series_patches``. With μ/σ and 1/σ, an affine map of z can express any affine map of the raw values, in units
    of σ above μ. If the values come with their times and some steps have none, x repeats the latest value at these
    steps.
    """

    def __init__(self, part: spec.LinearWindow, num_outputs: int):
        if part.steps is None:
            raise UserError("wide.steps is unknown: set it, or build the path together with its data")
        super().__init__(part.steps + 2, num_outputs)
        self.steps = part.steps

    def forward(self, signal: Signal) -> Tensor:
        with torch.autocast(signal.values.device.type, enabled=False):  # μ/σ may be large
            return self.window(signal) @ self.table + self.bias

    def window(self, signal: Signal) -> Tensor:
        """Return z (B, T + 2) of each window."""
        values = at_least_single(signal.values[..., 0])
        shift, scale = values.mean(1, keepdim=True), (values.var(1, correction=0, keepdim=True) + WINDOW_EPS).sqrt()
        times = TimedSignal.of(signal).times
        if times is not None:
            values = values.gather(1, self._before(times).expand(len(values), -1))
        return torch.cat(((values - shift) / scale, shift / scale, 1 / scale), 1).to(self.table.dtype)

    def _before(self, times: Tensor) -> Tensor:
        """Return the index (B, T) of the latest value at or before each step, or of the first value if there is none.

        times (B, S): times of the values in units of the window's length, 0 at the last step.
        """
        places = (times * self.steps).round().long() + self.steps - 1
        steps = torch.arange(self.steps, device=times.device).expand(len(times), -1)
        return (torch.searchsorted(places.contiguous(), steps.contiguous(), right=True) - 1).clamp(min=0)


@implements(spec.PairMap)
class PairMap(WidePath):
    """Linear maps of the features of two inputs into one space: v = L(features) / |L(features)|, (B, A).

    first, second: the linear map of each input. A deep vector u of an input and v are joined to (√a u, √b v), whose
    similarity is a · that of the deep path + b · that of this path; a + b = 1.

    keys, values (R, A), in fp16: of training rows, the first input on its principal axes and the vector of the second
    one, of which the first ``kept`` are filled. With ``by_rows`` 1, v of a first input is the value of the row whose
    key is most similar to lookup(features). Runs of older versions have no rows.
    """

    keys: Tensor
    values: Tensor
    kept: Tensor
    by_rows: Tensor

    def __init__(self, part: spec.PairMap, num_outputs: int):
        super().__init__()
        self.first, self.second = (build_linear(each, part.axes) for each in (part.first, part.second))
        self.lookup = None if part.rows is None else build_linear(part.first, part.axes)
        if part.rows is not None:
            self.register_buffer("keys", torch.zeros(part.rows, part.axes, dtype=torch.float16))
            self.register_buffer("values", torch.zeros(part.rows, part.axes, dtype=torch.float16))
            self.register_buffer("kept", torch.tensor(0))
            self.register_buffer("by_rows", torch.tensor(0))

    @property
    def finds_rows(self) -> bool:
        """True if the vector of a first input is that of the nearest training row."""
        return self.lookup is not None and bool(self.by_rows)

    def find_rows(self, on: bool) -> None:
        """Set whether the vector of a first input is that of the nearest training row."""
        if self.lookup is not None:
            self.by_rows.fill_(int(on))

    def keep(self, keys: Tensor, values: Tensor) -> None:
        """Keep rows: first inputs on the axes of ``lookup``, and vectors of second ones, (n, a), a ≤ A."""
        for place, rows in ((self.keys, keys), (self.values, values)):
            place.zero_()
            place[: len(rows), : rows.shape[1]] = F.normalize(rows, dim=-1).to(place.dtype)
        self.kept.fill_(len(keys))

    def nearest(self, signal: Signal) -> Tensor:
        """Return the vector (B, A) of the training row that is nearest to each first input."""
        assert self.lookup is not None
        keys = F.normalize(self.lookup(signal), dim=-1)
        rows = (keys @ self.keys[: int(self.kept)].to(keys.dtype).T).argmax(-1)
        return self.values[rows].to(keys.dtype)

    def joined(self, deep: Tensor | None, signal: Signal, path: LinearPath) -> Tensor:
        """Join the deep vectors (B, P), None if a is 0, with those of ``path``, first or second, for its ``signal``."""
        if not self.reads(WIDE):
            assert deep is not None
            return deep
        by_rows = path is self.first and self.finds_rows
        vectors = F.normalize(self.nearest(signal) if by_rows else path(signal), dim=-1)
        if deep is None:
            return vectors
        a, b = self.share.sqrt()
        return torch.cat((a * deep, b * vectors), -1)


def num_parameters(model: Transformer, wide: WidePath | None) -> int:
    """Return the number of parameters of a model and of the wide path beside it."""
    modules = [model] if wide is None else [model, wide]
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def build_wide(part: spec.WidePath, num_outputs: int) -> WidePath:
    """Build the module of a wide path beside a model with ``num_outputs`` outputs per row."""
    return implementation(part, "qkv.models")(part, num_outputs)


def build_linear(part: spec.WidePath, num_outputs: int) -> LinearPath:
    """Build the module of a linear map with ``num_outputs`` outputs per row."""
    path = build_wide(part, num_outputs)
    assert isinstance(path, LinearPath)
    return path
