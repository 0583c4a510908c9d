"""Span corruption (Raffel et al. 2020, "T5"): spans are replaced by sentinels, and the targets are the removed spans.

text      Thank you for inviting me to your party last week
inputs    Thank you <0> me to your party <1> week <end>
targets   <0> for inviting <1> last <end>

The paper's figure ends the targets with another sentinel; the published code and models, like this module, end them
with the end token only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qkv.data.checks import check_at_least, check_one_row, check_share
from qkv.system.errors import UserError


def corrupt_spans(
    ids: np.ndarray,
    rng: np.random.Generator,
    sentinels: Sequence[int],
    end_id: int,
    density: float = 0.15,
    mean_length: float = 3.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Corrupt a text ``ids`` (N,) without special tokens; return (inputs, targets), int64, ending with ``end_id``.

    The numbers of removed tokens and spans depend only on N (``counts``), so ``lengths_of`` gives both lengths in
    advance; positions are uniformly random. Span k is replaced by ``sentinels[k]``. A text of fewer than two tokens is
    unchanged, and its target is ``end_id``.

    Raises ``UserError`` for a ``density`` outside [0, 1], ``mean_length`` below 1, fewer sentinels than spans, or
    ``ids`` that are not one-dimensional.
    """
    check_one_row(ids)
    return cut(ids, noise_mask(len(ids), rng, density, mean_length), sentinels, end_id)


def counts(length: int, density: float = 0.15, mean_length: float = 3.0) -> tuple[int, int]:
    """Compute (number of noise tokens, number of spans) of a text of ``length`` tokens.

    noise = round(length · density), at least 1 and at most length - 1;  spans = round(noise / mean_length), at least 1.
    Halves are rounded to even. This follows the published code, except that there are never more spans than kept
    tokens: at very high densities the published code removes fewer spans than it counts. A text of fewer than two
    tokens has no noise.
    """
    check_share("density", density)
    check_at_least("mean_length", mean_length, 1)
    if length < 2:
        return 0, 0
    noise = min(max(round(length * density), 1), length - 1)
    return noise, min(max(round(noise / mean_length), 1), length - noise)


def noise_mask(length: int, rng: np.random.Generator, density: float = 0.15, mean_length: float = 3.0) -> np.ndarray:
    """Sample a noise mask (N,), bool: non-empty kept spans and noise spans alternate, and the first span is kept."""
    noise, spans = counts(length, density, mean_length)
    if not spans:
        return np.zeros(length, bool)
    cut_lengths, kept_lengths = segments(noise, spans, rng), segments(length - noise, spans, rng)
    turns = np.stack([kept_lengths, cut_lengths], axis=1).ravel()
    return np.repeat(np.arange(2 * spans) % 2 == 1, turns)


def segments(items: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Sample lengths (parts,) of at least 1 with sum ``items``, uniformly among all such sequences."""
    borders = np.sort(rng.choice(items - 1, parts - 1, replace=False)) + 1
    return np.diff(borders, prepend=0, append=items)


def cut(ids: np.ndarray, noise: np.ndarray, sentinels: Sequence[int], end_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Corrupt a text as ``corrupt_spans`` does, with a given ``noise`` mask (N,) bool; each run of noise is a span."""
    first = noise & ~np.append(False, noise[:-1])
    spans = int(first.sum())
    if spans > len(sentinels):
        raise UserError(
            f"a text of {len(ids)} tokens has {spans} spans, but there are {len(sentinels)} sentinels; "
            "give one per span"
        )
    marks = np.asarray(sentinels[:spans], np.int64)
    inputs = np.array(ids, np.int64)
    inputs[first] = marks
    mask = ~noise | first
    cut_out = ids[noise].astype(np.int64)
    targets = np.insert(cut_out, np.flatnonzero(first[noise]), marks)
    return np.append(inputs[mask], end_id), np.append(targets, end_id)


def lengths_of(length: int, density: float = 0.15, mean_length: float = 3.0) -> tuple[int, int]:
    """Compute (input length, target length) for a text of ``length`` tokens, with sentinels and end tokens."""
    noise, spans = counts(length, density, mean_length)
    return length - noise + spans + 1, noise + spans + 1


def input_length_for(target_length: int, density: float = 0.15, mean_length: float = 3.0) -> int:
    """Find the maximum text length whose inputs have at most ``target_length`` tokens, to split texts without padding.

    568 tokens give T5's inputs of 512 and targets of 114. At a density of exactly 0.5, the published code takes one
    token less, to make inputs and targets equally long; this function does not.

    Raises ``UserError`` for a ``density`` of 1, where every text gives inputs of three tokens, or a ``target_length``
    below 1.
    """
    check_at_least("target_length", target_length, 1)
    if not density < 1:
        raise UserError(f"density is {density}, but inputs of fixed length need a density below 1")
    low, high = 0, 2
    while lengths_of(high, density, mean_length)[0] <= target_length:
        low, high = high, 2 * high
    while high - low > 1:  # input length is monotonic in text length
        middle = (low + high) // 2
        fits = lengths_of(middle, density, mean_length)[0] <= target_length
        low, high = (middle, high) if fits else (low, middle)
    return low
