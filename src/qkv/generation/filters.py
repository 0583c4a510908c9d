"""What is done to logits (B, V) before a token is drawn. Pure functions: each returns new logits, a token that is dropped has -inf."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.at_least_single import at_least_single
from qkv.spec.generation import Generation

BELOW_ONE = 1.0 - 2.0**-52
"""Keeps the largest uniform number times the whole mass below the whole mass, so that rounding draws no dropped token."""


def filtered(logits: Tensor, generation: Generation, text: Tensor | None = None) -> Tensor:
    """The filters of ``generation`` in its order. At temperature 0 only the repetition penalty acts, as no other changes the best token.

    ``text`` (B, L) holds the row's tokens so far, in any order and number; the repetition penalty alone reads it.
    """
    logits = _heated(logits, generation, text)
    if generation.temperature == 0.0:
        return logits
    if generation.top_k is not None:
        logits = top_k(logits, generation.top_k)
    return _cut(logits, generation)


def pick(logits: Tensor, generation: Generation, text: Tensor | None, uniforms: Tensor) -> Tensor:
    """``draw`` of ``filtered``, (B,), without looking twice at a vocabulary of which only the top k can be drawn."""
    k = generation.top_k
    if k is None or k >= logits.shape[-1]:
        return draw(filtered(logits, generation, text), uniforms)
    best, index = _heated(logits, generation, text).topk(k + 1)
    if bool((best[:, k] == best[:, k - 1]).any()):  # what ties with the k-th stays too
        return draw(filtered(logits, generation, text), uniforms)
    # In the order of the vocabulary, so that a number in [0, 1) means the same token either way.
    index, order = index[:, :k].sort(-1)
    place = draw(_cut(best.gather(-1, order), generation), uniforms)
    return F.pad(index, (0, 1), value=logits.shape[-1]).gather(-1, place[:, None])[:, 0]


def _heated(logits: Tensor, generation: Generation, text: Tensor | None) -> Tensor:
    """Repetition penalty and, above 0, temperature."""
    if generation.repetition_penalty != 1.0 and text is not None:
        logits = repetition_penalty(logits, text, generation.repetition_penalty)
    return temperature(logits, generation.temperature) if generation.temperature > 0.0 else logits


def _cut(logits: Tensor, generation: Generation) -> Tensor:
    """Top-p and min-p."""
    if generation.top_p is not None:
        logits = top_p(logits, generation.top_p)
    if generation.min_p is not None:
        logits = min_p(logits, generation.min_p)
    return logits


def repetition_penalty(logits: Tensor, text: Tensor, penalty: float) -> Tensor:
    """The logits of the tokens in ``text`` (B, L), however often they stand there, divided by ``penalty`` if positive and
    multiplied by it if negative (CTRL, Keskar et al. 2019)."""
    if penalty == 1.0:
        return logits
    found = logits.gather(-1, text)
    return logits.scatter(-1, text, torch.where(found > 0, found / penalty, found * penalty))


def temperature(logits: Tensor, value: float) -> Tensor:
    """(logits - max) / value. Below 1 the distribution is sharper; ``value`` is positive, as 0 stands for the best token alone."""
    if value == 1.0:
        return logits
    # The shift changes no probability and keeps a small temperature from making two infinities.
    return (logits - logits.amax(-1, keepdim=True)) / max(value, torch.finfo(logits.dtype).tiny)


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits of a row; what ties with the k-th stays too (Fan et al. 2018)."""
    if k >= logits.shape[-1]:
        return logits
    least = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -math.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most probable tokens whose probabilities add up to p or more (nucleus, Holtzman et al. 2020).

    Of tokens that tie at the border of the set, all stay: which of them comes first is no property of the model.
    """
    if p >= 1.0:
        return logits
    chances = logits.softmax(-1)
    rising = _rising(chances)
    below = rising.cumsum(-1, dtype=torch.float64)
    # Dropped are as many of the least probable as together leave p to the rest.
    dropped = torch.searchsorted(below, below[..., -1:] - p, right=True).clamp_(max=logits.shape[-1] - 1)
    return logits.masked_fill(chances < rising.gather(-1, dropped), -math.inf)


def _rising(x: Tensor) -> Tensor:
    """The values of each row in rising order. numpy sorts fp32 on a CPU with vector instructions, torch does not."""
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return torch.from_numpy(np.sort(x.detach().numpy(), axis=-1))
    return x.sort(-1).values


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keep tokens at least p times as probable as the best one (Nguyen et al. 2024)."""
    if p <= 0.0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """One token (B,) a row from softmax(logits), by inverting its distribution function at ``uniforms`` (B,) in [0, 1), float64.

    A row depends on its own logits and number alone. Where logits are NaN or infinite no token is reached, and the answer is V.
    """
    # Sums in float64: in float32 the tail of a large vocabulary would drown in rounding.
    reached = at_least_single(logits).softmax(-1).cumsum(-1, dtype=torch.float64)
    aim = uniforms.unsqueeze(-1) * (reached[..., -1:] * BELOW_ONE)
    return torch.searchsorted(reached, aim, right=True).squeeze_(-1)
