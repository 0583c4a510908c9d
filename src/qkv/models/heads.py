"""Heads: from the final vectors to the model's outputs. Each is called with x (B, N, D) and lengths (B) or None."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.activations import ACTIVATIONS
from qkv.layers.context import Context
from qkv.layers.layout import ROWS, Declared, Layouts
from qkv.layers.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.pooling import pooled
from qkv.ops.at_least_single import at_least_single
from qkv.ops.dropout import dropout
from qkv.ops.linear.choose import linear
from qkv.spec import heads as spec
from qkv.spec.errors import UserError
from qkv.spec.register import implementation, implements

_Answering = spec.ClassificationHead | spec.RegressionHead | spec.TokenHead | spec.SpanHead
_NOWHERE = Context(torch.zeros(1, 1, dtype=torch.long))
"""Dummy context: the norms of a head ignore positions."""


class LanguageModelHead(Declared):
    """logits = (scale · f(x)) W^T + b, optionally cap · tanh(logits / cap) (Gemma 2, 2024). x (B, N, D), W (V, D) ->
    (B, N, V).

    f: the identity, or norm(φ(x W_t + b_t)) (Devlin et al. 2019).
    """

    def __init__(self, part: spec.LanguageModelHead, vocab_size: int, width: int, table: nn.Parameter | None):
        super().__init__()
        self.cap, self.scale = part.softcap, part.scale
        self.transform = _Transform(part, part.transform, width) if part.transform else None
        self.weight = table if table is not None else nn.Parameter(torch.empty(vocab_size, width))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if part.bias else None

    def layouts(self) -> Layouts:
        return {"weight": ROWS, "bias": ROWS}

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.transform is not None:
            x = self.transform(x)
        logits = linear(x if self.scale == 1.0 else x * self.scale, self.weight, self.bias)
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()


class _Transform(nn.Module):
    """norm(φ(x W + b)) of (…, D)."""

    def __init__(self, part: spec.LanguageModelHead, activation: str, width: int):
        super().__init__()
        self.dense, self.activation = Linear(width, width, bias=part.transform_bias), ACTIVATIONS[activation]
        self.norm = build_norm(part.norm, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)), _NOWHERE)


class Pool(nn.Module):
    """(B, N, D) -> (B, D), see ``qkv.layers.pooling``; ``attention``: Σ_i softmax_i(w·x_i) x_i without padding."""

    def __init__(self, how: str, width: int):
        super().__init__()
        self.how = how
        self.score = Linear(width, 1) if how == "attention" else None

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if self.score is None:
            return pooled(x, lengths, self.how)
        scores = at_least_single(self.score(x)[..., 0])
        if lengths is not None:
            scores = scores.masked_fill(torch.arange(x.shape[1], device=x.device) >= lengths[:, None], -torch.inf)
        return (scores.softmax(-1).to(x.dtype)[:, None] @ x)[:, 0]


class Answer(nn.Module):
    """y = dropout(g(x)) W^T + b, g the identity or norm(φ(x W_h + b_h)). (B, N, D) -> (B, N, C), or pooled (B, C)."""

    def __init__(self, part: _Answering, width: int, outputs: int, pool: Pool | None = None):
        super().__init__()
        self.pool = pool
        self.hidden = Linear(width, part.hidden, bias=part.hidden_bias) if part.hidden else None
        self.activation, self.norm = ACTIVATIONS[part.activation], build_norm(part.norm, part.hidden or width)
        self.output = Linear(part.hidden or width, outputs, bias=part.bias)
        self.dropout = part.dropout

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.pool is not None:
            x = self.pool(x, lengths)
        if self.hidden is not None:
            x = self.norm(self.activation(self.hidden(x)), _NOWHERE)
        return self.output(dropout(x, self.dropout, self.training))


def _known(count: int | None) -> int:
    if count is None:
        raise UserError("model.head.num_classes is not known: give it, or build the model together with its data")
    return count


@implements(spec.LanguageModelHead)
def _language_model(part: spec.LanguageModelHead, width: int, table: nn.Parameter) -> nn.Module:
    return LanguageModelHead(part, table.shape[0], width, table if part.tied else None)


@implements(spec.ClassificationHead)
def _classification(part: spec.ClassificationHead, width: int, table: object) -> nn.Module:
    return Answer(part, width, _known(part.num_classes), Pool(part.pooling, width))


@implements(spec.RegressionHead)
def _regression(part: spec.RegressionHead, width: int, table: object) -> nn.Module:
    return Answer(part, width, 1, Pool(part.pooling, width))


@implements(spec.TokenHead)
def _tokens(part: spec.TokenHead, width: int, table: object) -> nn.Module:
    return Answer(part, width, _known(part.num_classes))


@implements(spec.SpanHead)
def _spans(part: spec.SpanHead, width: int, table: object) -> nn.Module:
    return Answer(part, width, 2)


def build_head(part: spec.Head, width: int, table: nn.Parameter | None) -> nn.Module:
    """Build the module of a head. ``table`` (V, D): token embeddings, shared with a tied head; None without tokens."""
    return implementation(part, "qkv.models")(part, width, table)
