"""Logit filters for sampling: temperature, top-k, top-p, min-p, repetition penalty; and the draw itself.

Pure functions from logits (B, V) to new logits (B, V); removed tokens get -inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.at_least_single import at_least_single
from qkv.spec.generation import FILTERS, Generation
from qkv.system.errors import UserError

BELOW_ONE = 1.0 - 2.0**-52
"""Factor just below 1: keeps uniform · total mass below the total mass, so rounding never selects a removed token."""


def filtered(logits: Tensor, generation: Generation, text: Tensor | None = None) -> Tensor:
    """Apply repetition penalty, temperature, top-k, top-p and min-p, in this order.

    At temperature 0 only the repetition penalty is applied, as no other filter changes the argmax.
    ``text`` (B, L): tokens so far in any order, repeats allowed; read by the repetition penalty only.
    """
    logits = _heated(logits, generation, text)
    if generation.temperature == 0.0:
        return logits
    if generation.top_k is not None:
        logits = top_k(logits, generation.top_k)
    return _cut(logits, generation)


def pick(logits: Tensor, generation: Generation, text: Tensor | None, uniforms: Tensor) -> Tensor:
    """Sample one token id per row from the filtered logits, (B,); equals ``draw(filtered(logits), uniforms)``.

    With top-k on the CPU, the later filters run on k logits instead of V.
    """
    k = generation.top_k
    # The search for ties below reads a value from the device, which would make other devices synchronise.
    if k is None or k >= logits.shape[-1] or logits.device.type != "cpu":
        return draw(filtered(logits, generation, text), uniforms)
    best, index = _heated(logits, generation, text).topk(k + 1)
    if bool((best[:, k] == best[:, k - 1]).any()):  # ties with the k-th logit are kept
        return draw(filtered(logits, generation, text), uniforms)
    # In the order of the vocabulary, so that a uniform number selects the same token on both paths.
    index, order = index[:, :k].sort(-1)
    place = draw(_cut(best.gather(-1, order), generation), uniforms)
    return F.pad(index, (0, 1), value=logits.shape[-1]).gather(-1, place[:, None])[:, 0]


def _heated(logits: Tensor, generation: Generation, text: Tensor | None) -> Tensor:
    """Apply the repetition penalty to the tokens of ``text``, and the temperature unless it is 0."""
    if generation.repetition_penalty != 1.0 and text is not None:
        logits = repetition_penalty(logits, text, generation.repetition_penalty)
    return temperature(logits, generation.temperature) if generation.temperature > 0.0 else logits


def _cut(logits: Tensor, generation: Generation) -> Tensor:
    """Apply top-p and min-p."""
    if generation.top_p is not None:
        logits = top_p(logits, generation.top_p)
    if generation.min_p is not None:
        logits = min_p(logits, generation.min_p)
    return logits


def repetition_penalty(logits: Tensor, text: Tensor, penalty: float) -> Tensor:
    """Divide positive and multiply negative logits of the tokens in ``text`` (B, L) by ``penalty``, once per token.

    CTRL, Keskar et al. 2019.
    """
    if penalty == 1.0:
        return logits
    values = logits.gather(-1, text)
    return logits.scatter(-1, text, torch.where(values > 0, values / penalty, values * penalty))


def temperature(logits: Tensor, value: float) -> Tensor:
    """Scale logits by temperature: (logits - max) / value, value > 0. Values below 1 sharpen the distribution."""
    if value == 1.0:
        return logits
    # The shift leaves probabilities unchanged and avoids overflow to inf at small temperatures.
    return (logits - logits.amax(-1, keepdim=True)) / max(value, torch.finfo(logits.dtype).tiny)


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits of a row, and ties with the k-th (Fan et al. 2018)."""
    if k >= logits.shape[-1]:
        return logits
    least = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -math.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most probable tokens with total probability >= p, and ties at its border.

    Nucleus sampling, Holtzman et al. 2020.
    """
    if p >= 1.0:
        return logits
    chances = logits.softmax(-1)
    rising = _rising(chances)
    below = rising.cumsum(-1, dtype=torch.float64)
    # Remove as many of the least probable tokens as leave at least p to the rest.
    dropped = torch.searchsorted(below, below[..., -1:] - p, right=True).clamp_(max=logits.shape[-1] - 1)
    return logits.masked_fill(chances < rising.gather(-1, dropped), -math.inf)


def _rising(x: Tensor) -> Tensor:
    """Sort each row in ascending order. numpy has a vectorised fp32 sort on CPUs; torch has none."""
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return torch.from_numpy(np.sort(x.detach().numpy(), axis=-1))
    return x.sort(-1).values


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keep tokens at least p times as probable as the best one (Nguyen et al. 2024)."""
    if p <= 0.0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Sample one token id per row, (B,), from softmax(logits): its inverse CDF at ``uniforms`` (B,) in [0, 1), float64.

    A row depends on its own logits and uniform number alone. Rows with NaN or infinite logits return V.
    """
    return draw_by(at_least_single(logits).softmax(-1), uniforms)


def probabilities(logits: Tensor, generation: Generation, text: Tensor | None = None) -> Tensor:
    """Compute the probabilities (B, V) of sampling each token: softmax(``filtered`` logits), float64, temperature > 0.

    ``text``: see ``filtered``.
    """
    return filtered(at_least_single(logits), generation, text).double().softmax(-1)


def draw_by(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Sample one token id per row, (B,), with probabilities in proportion to ``weights`` (B, V) >= 0; see ``draw``."""
    # Cumulative sums in float64: in float32 rounding errors exceed the tail probabilities of a large vocabulary.
    reached = weights.cumsum(-1, dtype=torch.float64)
    aim = uniforms.unsqueeze(-1) * (reached[..., -1:] * BELOW_ONE)
    return torch.searchsorted(reached, aim, right=True).squeeze_(-1)


def checked(tokens: list[int], size: int, sound: bool = True) -> list[int]:
    """Return ``tokens``, each sampled from ``size`` logits. Raises ``UserError`` if one is ``size`` or above, which
    ``draw`` returns for logits that are not finite.

    ``sound``: False if the caller has found logits that are not finite.
    """
    if not sound or max(tokens) >= size:
        raise UserError(
            "the model's logits are not finite, so no token can be sampled; "
            "its weights are damaged or its training diverged"
        )
    return tokens


def sampled(logits: Tensor, generation: Generation, text: Tensor | None, uniforms: Sequence[float]) -> list[int]:
    """Sample one token id per row of logits (B, V): the argmax at temperature 0, else with random numbers ``uniforms``
    (B).

    ``text``: see ``filtered``. Raises ``UserError`` for logits that are not finite.
    """
    if generation.temperature == 0.0:
        best, tokens = _largest(filtered(logits, generation, text))
        return checked(tokens, logits.shape[-1], all(map(math.isfinite, best)))
    numbers = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)
    return checked(pick(logits, generation, text, numbers).tolist(), logits.shape[-1])


def _largest(logits: Tensor) -> tuple[list[float], list[int]]:
    """Return (largest logit of each row of (B, V), its token); the logit is NaN if the row has a NaN."""
    if logits.is_cpu:  # NumPy takes a tenth of the time here
        array = logits.detach().numpy()
        tokens = array.argmax(-1).tolist()  # a NaN counts as the largest
        return [float(row[token]) for row, token in zip(array, tokens, strict=True)], tokens
    best, tokens = logits.max(-1)
    return best.tolist(), tokens.tolist()


def alike(settings: Iterable[Generation]) -> list[tuple[Generation, list[int]]]:
    """Group rows with equal filter settings; return (settings, indices of the rows) of each group."""
    several = list(settings)
    if all(generation is several[0] for generation in several):  # the usual case; comparing fields takes longer
        return [(several[0], list(range(len(several))))] if several else []
    groups: dict[tuple[object, ...], tuple[Generation, list[int]]] = {}
    for place, generation in enumerate(several):
        key = tuple(getattr(generation, name) for name in FILTERS)
        groups.setdefault(key, (generation, []))[1].append(place)
    return list(groups.values())


def history(texts: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    """Return the tokens of each text, (B, L), for the repetition penalty, on the device of ``like``. Texts are padded
    with their first token, so that padding penalises no other token. Placeholders (negative ids) are left out.
    """
    texts = [text if min(text) >= 0 else [token for token in text if token >= 0] or [0] for text in texts]
    longest = max(map(len, texts))
    padded = [[*[text[0]] * (longest - len(text)), *text] for text in texts]
    return torch.tensor(padded, device=like.device)
