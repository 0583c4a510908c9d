"""Cost of heads, including their loss. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from qkv.inspection.shares import FLOAT, Setting, Share, formula, linear, share
from qkv.spec import heads
from qkv.spec.errors import UserError

MOST_LOGITS = 1 << 24
"""Above this many logits the loss is computed in chunks of about ``LOSS_SHARE`` logits, at least ``FEWEST_ROWS`` positions each."""
LOSS_SHARE = 1 << 23
FEWEST_ROWS = 256


@formula(heads.LanguageModelHead)
def head(part: heads.LanguageModelHead, at: Setting) -> Share:
    """Logits and cross entropy. The matrix of a tied head is counted as the token embedding table."""
    product = linear(at.width, at.vocab_size, part.bias, at)
    before = _transform(part, at)
    logits = at.tokens * at.vocab_size
    if logits <= MOST_LOGITS:
        # Saved: log probabilities. Working: their gradient, that of the logits and, in bf16, its rounded copy.
        extra = at.item if at.item != FLOAT else 0
        loss = Share(saved=logits * (FLOAT + (at.item if part.softcap else 0)), working=logits * (2 * FLOAT + extra))
    else:
        # Gradients of head and input are computed by chunks in the forward pass and scaled in the backward pass.
        rows = max(FEWEST_ROWS, LOSS_SHARE // at.vocab_size)
        table, vectors = at.vocab_size * at.width * FLOAT, at.tokens * at.width * FLOAT
        product = replace(product, saved=table + vectors)
        loss = Share(working=table + max(vectors, 3 * rows * at.vocab_size * FLOAT))
    tied = at.vocab_size * at.width if part.tied else 0
    return before + replace(product, parameters=product.parameters - tied, matrices=0) + loss + Share(calls=3)


def _transform(part: heads.LanguageModelHead, at: Setting) -> Share:
    """Dense layer before the logits, with activation and norm."""
    if part.transform is None:
        return Share()
    kept = at.tokens * (2 * at.width * at.item + 2 * FLOAT)
    norm = share(part.norm, at).parameters
    return replace(linear(at.width, at.width, part.transform_bias, at), matrices=0) + Share(
        parameters=norm, saved=kept, working=at.tokens * at.width * FLOAT, calls=4, step_calls=4
    )


@formula(heads.ClassificationHead)
def classification_head(part: heads.ClassificationHead, at: Setting) -> Share:
    """Logits per sequence."""
    return _pooled(part, at, _known(part.num_classes))


@formula(heads.RegressionHead)
def regression_head(part: heads.RegressionHead, at: Setting) -> Share:
    """One number per sequence."""
    return _pooled(part, at, 1)


@formula(heads.TokenHead)
def token_head(part: heads.TokenHead, at: Setting) -> Share:
    """Logits per position."""
    return _hidden(part, at) + _answers(at, part.hidden or at.width, _known(part.num_classes), part.dropout, part.bias)


@formula(heads.SpanHead)
def span_head(part: heads.SpanHead, at: Setting) -> Share:
    """Two logits per position."""
    return _hidden(part, at) + _answers(at, part.hidden or at.width, 2, part.dropout, part.bias)


def _pooled(part: heads.ClassificationHead | heads.RegressionHead, at: Setting, outputs: int) -> Share:
    """Pooling over positions, and the layers on the pooled vector."""
    one = replace(at, length=1)
    pooling = Share(working=at.tokens * at.width * FLOAT, calls=6)
    if part.pooling == "attention":
        # Scores and weighted sum of positions, with the saved weights.
        pooling += replace(linear(at.width, 1, True, at), matrices=0) + Share(flops=2 * at.tokens * at.width, saved=at.tokens * FLOAT)
    elif part.pooling == "max":
        pooling += Share(saved=at.tokens * at.width + 2 * one.tokens * at.width * FLOAT)
    return pooling + _hidden(part, one) + _answers(one, part.hidden or at.width, outputs, part.dropout, part.bias)


def _hidden(part: heads.ClassificationHead | heads.RegressionHead | heads.TokenHead | heads.SpanHead, at: Setting) -> Share:
    """Hidden layer with activation and norm."""
    if part.hidden is None:
        return Share()
    size = at.tokens * part.hidden * at.item
    dense = replace(linear(at.width, part.hidden, part.hidden_bias, at), matrices=0)
    return dense + Share(saved=size, calls=1) + share(part.norm, replace(at, width=part.hidden))


def _answers(at: Setting, inputs: int, outputs: int, dropout: float, bias: bool = True) -> Share:
    """Dropout, output layer and loss."""
    answers, drawn = at.tokens * outputs * FLOAT, at.tokens * inputs * at.item if dropout else 0
    return replace(linear(inputs, outputs, bias, at), matrices=0) + Share(saved=answers + drawn, working=2 * answers, calls=3)


def _known(count: int | None) -> int:
    if count is None:
        raise UserError("model.head.num_classes is unknown without the data; give it, as in head.num_classes=2")
    return count
