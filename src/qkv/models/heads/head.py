"""Heads, mapping the final vectors to the model's outputs. Each is called with x (B, N, D) and lengths (B) or None."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import Context
from qkv.layers.layout import ROWS, WHOLE, Declared, Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.linear.quantized import matrix_of
from qkv.layers.norms import build_norm
from qkv.layers.pooling import pooled
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.models.heads.cross_entropy import cross_entropy
from qkv.models.heads.forecasts import build_forecast
from qkv.ops.at_least_single import at_least_single
from qkv.ops.crf import Transitions, best_sequence, log_partition, sequence_score
from qkv.ops.dropout import dropout
from qkv.ops.linear.choose import linear
from qkv.spec import heads as spec
from qkv.spec.register import implementation, implements
from qkv.system.errors import UserError

_Answering = (
    spec.ClassificationHead
    | spec.LabelsHead
    | spec.RegressionHead
    | spec.TokenHead
    | spec.CRFHead
    | spec.CTCHead
    | spec.SpanHead
)
_NOWHERE = Context(torch.zeros(1, 1, dtype=torch.long))
"""Dummy context: norms of a head do not use positions."""


class Head(Declared):
    """Base class of heads, the output layers of a model. Constructor: ``cls(part, width, table)``.

    ``table`` (V, D): the model's token embeddings, which a tied head uses; None for input without tokens.
    """

    num_outputs: int
    """Number of outputs per row or position, C."""

    def initialise(self, std: float) -> None:
        """Initialise tables that belong to the head alone, if it has any, from N(0, std²)."""

    @abstractmethod
    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Compute outputs from vectors x (B, N, D); ``lengths`` (B): unpadded positions, None without padding."""

    @abstractmethod
    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        """Draw random targets on the CPU for ``rows`` rows of ``length`` positions, to measure speed and memory."""

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the loss, summed over targets; by default ``cross_entropy`` over the last axis of the outputs."""
        return cross_entropy(outputs.flatten(0, -2), targets.flatten(), smoothing)

    def of_rows(self, x: Tensor, lengths: Tensor | None, context: Context) -> Tensor:
        """Compute outputs from vectors x (B, N, D) and their context; by default, call ``forward``."""
        return self(x, lengths)

    def shaped(self, outputs: Tensor) -> Tensor:
        """Reshape outputs of rows (B, C) to the shape that ``forward`` returns; by default, return them unchanged."""
        return outputs

    def decode(self, outputs: Tensor, mask: Tensor) -> Tensor:
        """Predict classes (B, N) from outputs (B, N, C) at the positions where ``mask`` (B, N) is True.

        By default, the class with the highest output at each position. Classes at other positions are undefined.
        """
        return outputs.argmax(-1)


@implements(spec.LanguageModelHead)
class LanguageModelHead(Head):
    """Language model head: logits = (scale · f(x)) W^T + b, optionally cap · tanh(logits / cap) (Gemma 2, 2024).

    x (B, N, D), W (V, D) -> (B, N, V). f: the identity, or norm(φ(x W_t + b_t)) (Devlin et al. 2019), or
    norm(φ(φ(x W_h + b_h) W_t + b_t)).
    """

    def __init__(self, part: spec.LanguageModelHead, width: int, table: nn.Parameter):
        super().__init__()
        self.part = part
        self.cap, self.scale, self.tied, vocab_size = part.softcap, part.scale, part.tied, table.shape[0]
        self.transform = _Transform(part, part.transform, width) if part.transform else None
        self.num_outputs = vocab_size
        self.weight = table if part.tied else nn.Parameter(torch.empty(vocab_size, part.table_width(width)))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if part.bias else None

    def layouts(self) -> Layouts:
        return {"weight": ROWS, "bias": ROWS}

    def initialise(self, std: float) -> None:
        if not self.tied:
            nn.init.normal_(self.weight, std=std)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.weight.shape[0], (rows, length), generator=generator)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.transform is not None:
            x = self.transform(x)
        logits = linear(x if self.scale == 1.0 else x * self.scale, matrix_of(self.weight), self.bias)
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()


class _Transform(nn.Module):
    """Hidden layers before the logits: norm(φ(x W + b)), or norm(φ(φ(x W_h + b_h) W + b)), x (…, D)."""

    def __init__(self, part: spec.LanguageModelHead, activation: str, width: int):
        super().__init__()
        hidden, out, bias = part.transform_hidden, part.table_width(width), part.transform_bias
        self.first = Linear(width, hidden, bias=bias) if hidden else None
        self.dense, self.activation = Linear(hidden or width, out, bias=bias), ACTIVATIONS[activation]
        self.norm = build_norm(part.norm, out)

    def forward(self, x: Tensor) -> Tensor:
        if self.first is not None:
            x = self.activation(self.first(x))
        return self.norm(self.activation(self.dense(x)), _NOWHERE)


class Pool(nn.Module):
    """Pooling of the unpadded vectors of each row, (B, N, D) -> (B, D · poolings), see ``qkv.layers.pooling``.

    ``attention``: Σ_i softmax_i(w·x_i) x_i with learned w. leading: number of first positions, of which ``mean_first``
    is the mean, and which ``mean_rest`` omits.
    """

    def __init__(self, how: Sequence[str], width: int, leading: int = 1):
        super().__init__()
        self.how, self.leading = tuple(how), leading
        self.width = width * len(self.how)
        self.score = Linear(width, 1) if "attention" in how else None

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        vectors = [self._pooled(x, lengths, how) for how in self.how]
        return torch.cat(vectors, -1) if len(vectors) > 1 else vectors[0]

    def _pooled(self, x: Tensor, lengths: Tensor | None, how: str) -> Tensor:
        if how == "attention":
            return self._attended(x, lengths)
        if how == "mean_first":
            return x[:, : self.leading].mean(1)
        left_out = self.leading - 1 if how == "mean_rest" else 0
        return pooled(x[:, left_out:], None if lengths is None else lengths - left_out, how)

    def _attended(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        assert self.score is not None
        scores = at_least_single(self.score(x)[..., 0])
        if lengths is not None:
            scores = scores.masked_fill(torch.arange(x.shape[1], device=x.device) >= lengths[:, None], -torch.inf)
        return (scores.softmax(-1).to(x.dtype)[:, None] @ x)[:, 0]


class PredictionHead(Head):
    """Base class of prediction heads: y = dropout(g(x)) W^T + b, (B, N, D) -> (B, N, C), or pooled (B, C).

    g: norm(x) or norm(φ(x W_h + b_h)).
    """

    def __init__(self, part: _Answering, width: int, outputs: int, pool: Pool | None = None):
        super().__init__()
        self.pool, width = pool, pool.width if pool else width
        self.hidden = Linear(width, part.hidden, bias=part.hidden_bias) if part.hidden else None
        self.activation, self.norm = ACTIVATIONS[part.activation], build_norm(part.norm, part.hidden or width)
        self.num_outputs = outputs
        self.output = Linear(part.hidden or width, outputs, bias=part.bias)
        self.dropout = part.dropout

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.pool is not None:
            x = self.pool(x, lengths)
        if self.hidden is not None:
            x = self.activation(self.hidden(x))
        return self.output(dropout(self.norm(x, _NOWHERE), self.dropout, self.training))


@implements(spec.ClassificationHead)
class Classifier(PredictionHead):
    """Classification head: logits (B, C) of each row, from its pooled vector."""

    def __init__(self, part: spec.ClassificationHead, width: int, table: object):
        super().__init__(part, width, _require_count(part.num_classes), Pool(part.poolings, width, part.leading))

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.output.out_features, (rows,), generator=generator)


@implements(spec.DistilledHead)
class DistilledClassifier(Head):
    """Head of two linear classifiers, on the first and the second position; logits (B, C) are their mean."""

    def __init__(self, part: spec.DistilledHead, width: int, table: object):
        super().__init__()
        self.num_outputs = _require_count(part.num_classes)
        self.first, self.second = Linear(width, self.num_outputs), Linear(width, self.num_outputs)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if x.shape[1] < 2:
            raise UserError("the head 'distilled' reads two positions, but a row has only one; use 'classification'")
        return (self.first(x[:, 0]) + self.second(x[:, 1])) / 2

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.num_outputs, (rows,), generator=generator)


@implements(spec.LabelsHead)
class Labeller(PredictionHead):
    """Multi-label head: logits (B, C) of each row, one per label. Targets (B, C): 1 if the label applies."""

    def __init__(self, part: spec.LabelsHead, width: int, table: object):
        super().__init__(part, width, _require_count(part.num_classes), Pool(part.poolings, width, part.leading))

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(2, (rows, self.output.out_features), generator=generator, dtype=torch.float32)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Binary cross-entropy -Σ (y log σ(z) + (1 - y) log (1 - σ(z))) over rows and labels; no smoothing.

        Logits beyond the width of ``targets``, for labels that do not occur in the data, are ignored.
        """
        logits = at_least_single(outputs[:, : targets.shape[1]])
        return F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="sum")


@implements(spec.TokenHead)
class Tagger(PredictionHead):
    """Token classification head: logits (B, N, C) of each position."""

    def __init__(self, part: spec.TokenHead | spec.CRFHead, width: int, table: object):
        super().__init__(part, width, _require_count(part.num_classes))

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.output.out_features, (rows, length), generator=generator)


@implements(spec.CRFHead)
class CRFTagger(Tagger):
    """Head of a linear-chain conditional random field (CRF); see ``qkv.ops.crf``.

    Its outputs are the emissions (B, N, C). The chain skips positions without a target, or in ``decode`` positions
    where ``asked`` is False: if only the first token of each word has a tag, the chain runs over words. Transition
    scores are initialised to 0.
    """

    def __init__(self, part: spec.CRFHead, width: int, table: object):
        super().__init__(part, width, table)
        count = self.output.out_features
        self.between = nn.Parameter(torch.zeros(count, count))
        self.start, self.end = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.zeros(count))

    def layouts(self) -> Layouts:
        return {"between": WHOLE}

    @property
    def _transitions(self) -> Transitions:
        return Transitions(*(at_least_single(scores) for scores in (self.between, self.start, self.end)))

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return -log p(targets | outputs) of each row's targets >= 0, summed over rows; labels are not smoothed."""
        order, lengths = _first(targets >= 0)
        emissions = _ordered(at_least_single(outputs), order)
        classes = targets.gather(1, order).clamp(min=0)
        score = sequence_score(emissions, classes, lengths, self._transitions)
        return (log_partition(emissions, lengths, self._transitions) - score).sum()

    def decode(self, outputs: Tensor, mask: Tensor) -> Tensor:
        """Find the best sequence of classes over the positions where ``mask`` is True, by the Viterbi algorithm."""
        order, lengths = _first(mask)
        best = best_sequence(_ordered(at_least_single(outputs), order), lengths, self._transitions)
        return torch.zeros_like(best).scatter(1, order, best)


def _first(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return (order of positions (B, N) with those where ``mask`` is True first, number of these in each row (B))."""
    return mask.logical_not().long().argsort(dim=1, stable=True), mask.sum(1)


def _ordered(outputs: Tensor, order: Tensor) -> Tensor:
    return outputs.gather(1, order[..., None].expand_as(outputs))


@implements(spec.SpanHead)
class SpanFinder(PredictionHead):
    """Span head: logits (B, N, 2) that a span begins or ends at each position. Targets (B, 2): first and last."""

    def __init__(self, part: spec.SpanHead, width: int, table: object):
        super().__init__(part, width, 2)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(length, (rows, 2), generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return super().loss(outputs.transpose(1, 2), targets, smoothing)


@implements(spec.RegressionHead)
class Regressor(PredictionHead):
    """Regression head: value (B, 1) of each row, from its pooled vector."""

    def __init__(self, part: spec.RegressionHead, width: int, table: object):
        super().__init__(part, width, 1, Pool(part.poolings, width, part.leading))

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Squared error Σ (y - target)²; ``smoothing`` is ignored, because targets are numbers."""
        return (at_least_single(outputs[:, 0]) - targets).square().sum()


@implements(spec.EdgesHead)
class EdgeScorer(Head):
    """Head for edges: logits (P, 1) of pairs of nodes; without pairs, (B, N, 1) of each node with itself."""

    num_outputs = 1

    def __init__(self, part: spec.EdgesHead, width: int, table: object):
        super().__init__()
        size = part.hidden or width
        self.map, self.dropout = Linear(width, size), part.dropout
        self.weight, self.bias = nn.Parameter(torch.full((size,), size**-0.5)), nn.Parameter(torch.zeros(1))

    def layouts(self) -> Layouts:
        return {"weight": WHOLE, "bias": WHOLE}

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        h = self._mapped(x)
        return self._scores(h, h)

    def of_rows(self, x: Tensor, lengths: Tensor | None, context: Context) -> Tensor:
        graph = context.graph
        if graph is None or graph.pairs is None:
            return self(x, lengths)
        h = self._mapped(x).flatten(0, 1)
        return self._scores(*(h.index_select(0, end) for end in graph.pairs))

    def _mapped(self, x: Tensor) -> Tensor:
        return self.map(dropout(x, self.dropout, self.training))

    def _scores(self, h: Tensor, other: Tensor) -> Tensor:
        return (h * other * self.weight).sum(-1, keepdim=True) + self.bias

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(2, (rows, length), generator=generator, dtype=torch.float32)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Binary cross-entropy of targets 1 (an edge) and 0, summed over pairs; no smoothing."""
        logits = at_least_single(outputs[..., 0])
        return F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="sum")


@implements(spec.VectorsHead)
class Vectors(Head):
    """Head without an output layer: returns the final vectors (B, N, D). Targets are vectors (B, N, D)."""

    def __init__(self, part: spec.VectorsHead, width: int, table: object):
        super().__init__()
        self.num_outputs = width

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return x

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, length, self.num_outputs, generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Squared error Σ (y - target)²; ``smoothing`` is ignored, because targets are numbers."""
        return (at_least_single(outputs) - targets).square().sum()


@implements(spec.ForecastHead)
class Forecaster(Head):
    """Forecasting head: outputs (B, C, H, Q) for H future values of C channels, from the vectors of each row.

    If positions are concatenated or averaged, C is the number of channels of the row; with one position per channel, C
    = N; with one position per step, H = N.
    """

    def __init__(self, part: spec.ForecastHead, width: int, table: object):
        super().__init__()
        self.form, self.over, self.dropout = build_forecast(part.form), part.over, part.dropout
        self.horizon, self.channels, self.each = part.horizon or 1, part.channels or 1, part.form.outputs
        if part.over == "flatten" and part.positions is None:
            raise UserError("model.head.positions is unknown: set it, or build the model together with its data")
        read = width * (part.positions or 1) if part.over == "flatten" else width
        values = {"channels": self.horizon, "steps": self.channels}.get(part.over, self.horizon * self.channels)
        self.num_outputs = values * self.each
        self.output = Linear(read, self.num_outputs)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.over == "flatten":
            if x.shape[1] * x.shape[2] != self.output.in_features:
                count = self.output.in_features // x.shape[2]
                raise UserError(f"the head reads {count} positions, but the input has {x.shape[1]}; pass whole windows")
            x = x.flatten(1)
        elif self.over == "mean":
            x = pooled(x, lengths, "mean")
        y = self.output(dropout(x, self.dropout, self.training))
        if self.over == "channels":
            return y.unflatten(-1, (self.horizon, self.each))
        if self.over == "steps":
            return y.unflatten(-1, (self.channels, self.each)).transpose(1, 2)
        return self.shaped(y)

    def shaped(self, outputs: Tensor) -> Tensor:
        return outputs.unflatten(-1, (self.channels, self.horizon, self.each))

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        channels = length if self.over == "channels" else self.channels
        return torch.randn(rows, channels, length if self.over == "steps" else self.horizon, generator=generator)

    def restored(self, outputs: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Convert outputs for values (x - shift) / scale to outputs for x; shift and scale (B, C)."""
        return self.form.restored(at_least_single(outputs), shift[..., None], scale[..., None])

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the summed loss of normalised outputs for targets (B, C, H), except NaN; ``smoothing`` is ignored."""
        ones = torch.ones(outputs.shape[:2], device=outputs.device)
        return self.summed(self.restored(outputs, torch.zeros_like(ones), ones), targets)

    def summed(self, restored: Tensor, targets: Tensor) -> Tensor:
        """Return the summed loss of denormalised outputs (B, C, H, Q) for targets (B, C, H), except NaN."""
        seen = ~targets.isnan()
        return torch.where(seen, self.form.loss(restored, targets.nan_to_num()), 0).sum()


def _require_count(count: int | None) -> int:
    if count is None:
        raise UserError("model.head.num_classes is unknown: set it, or build the model together with its data")
    return count


def build_head(part: spec.Head, width: int, table: nn.Parameter | None) -> Head:
    """Build the module of a head. ``table`` (V, D): token embeddings, which a tied head shares; None without tokens."""
    return implementation(part, "qkv.models")(part, width, table)
