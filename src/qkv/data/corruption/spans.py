"""Span corruption (Raffel et al. 2020, "T5"): spans are cut out, a sentinel marks each gap, and the model writes what was cut.

text      Thank you for inviting me to your party last week
inputs    Thank you <0> me to your party <1> week <end>
targets   <0> for inviting <1> last <end>

The paper's figure ends the targets with one more sentinel; its published code, and the models trained with it, end them with the end token
alone, and so does this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qkv.data.corruption.checks import check_at_least, check_one_row, check_share
from qkv.spec.errors import UserError


def corrupt_spans(
    ids: np.ndarray,
    rng: np.random.Generator,
    sentinels: Sequence[int],
    end_id: int,
    density: float = 0.15,
    mean_length: float = 3.0,
) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and the targets of one text, ``ids`` (N,) without special tokens; both int64, with ``end_id`` as their last token.

    How many tokens and spans are cut is fixed by N (``counts``), so ``lengths_of`` tells both lengths beforehand; where, is uniform.
    Span k is marked by ``sentinels[k]``. A text of fewer than two tokens is left whole, and its target is ``end_id`` alone.

    ``UserError``: a ``density`` outside of [0, 1], a ``mean_length`` below 1, fewer sentinels than spans, ``ids`` that are not one row.
    """
    check_one_row(ids)
    return cut(ids, noise_mask(len(ids), rng, density, mean_length), sentinels, end_id)


def counts(length: int, density: float = 0.15, mean_length: float = 3.0) -> tuple[int, int]:
    """How many of ``length`` tokens are noise, and in how many spans.

    noise = round(length · density), at least 1 and at most length - 1;  spans = round(noise / mean_length), at least 1.
    Halves are rounded to even. As published, but for one case: there are never more spans than tokens around them, which the published
    form asks for when nearly all is noise, and then cuts fewer spans than it counts. Under two tokens there is no noise.
    """
    check_share("density", density)
    check_at_least("mean_length", mean_length, 1)
    if length < 2:
        return 0, 0
    noise = min(max(round(length * density), 1), length - 1)
    return noise, min(max(round(noise / mean_length), 1), length - noise)


def noise_mask(length: int, rng: np.random.Generator, density: float = 0.15, mean_length: float = 3.0) -> np.ndarray:
    """(N,) bool: which tokens are cut. Kept and cut spans take turns, a kept one first and a cut one last, none of them empty."""
    noise, spans = counts(length, density, mean_length)
    if not spans:
        return np.zeros(length, bool)
    cut_lengths, kept_lengths = segments(noise, spans, rng), segments(length - noise, spans, rng)
    turns = np.stack([kept_lengths, cut_lengths], axis=1).ravel()
    return np.repeat(np.arange(2 * spans) % 2 == 1, turns)


def segments(items: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """(parts,): lengths of at least 1 that add up to ``items``, uniform among all such sequences."""
    borders = np.sort(rng.choice(items - 1, parts - 1, replace=False)) + 1
    return np.diff(borders, prepend=0, append=items)


def cut(ids: np.ndarray, noise: np.ndarray, sentinels: Sequence[int], end_id: int) -> tuple[np.ndarray, np.ndarray]:
    """``corrupt_spans`` with ``noise`` (N,) bool given: nothing is drawn here. Each run of noise is one span."""
    first = noise & ~np.append(False, noise[:-1])
    spans = int(first.sum())
    if spans > len(sentinels):
        raise UserError(f"a text of {len(ids)} tokens has {spans} spans, but there are {len(sentinels)} sentinels; give one for each span")
    marks = np.asarray(sentinels[:spans], np.int64)
    inputs = np.array(ids, np.int64)
    inputs[first] = marks
    kept = ~noise | first
    cut_out = ids[noise].astype(np.int64)
    targets = np.insert(cut_out, np.flatnonzero(first[noise]), marks)
    return np.append(inputs[kept], end_id), np.append(targets, end_id)


def lengths_of(length: int, density: float = 0.15, mean_length: float = 3.0) -> tuple[int, int]:
    """The lengths of the inputs and of the targets, sentinels and end tokens included, that a text of ``length`` tokens gives."""
    noise, spans = counts(length, density, mean_length)
    return length - noise + spans + 1, noise + spans + 1


def input_length_for(target_length: int, density: float = 0.15, mean_length: float = 3.0) -> int:
    """How long to cut texts so that inputs need no padding: the most tokens whose inputs are no longer than ``target_length``.

    568 tokens give T5's inputs of 512, with targets of 114. The published code goes one lower at a density of exactly 0.5, so that inputs
    and targets come out alike; this does not.

    ``UserError``: a ``density`` of 1, where any text gives inputs of three tokens; a ``target_length`` below 1.
    """
    check_at_least("target_length", target_length, 1)
    if not density < 1:
        raise UserError(f"density is {density}, but inputs of one length need a density below 1")
    low, high = 0, 2
    while lengths_of(high, density, mean_length)[0] <= target_length:
        low, high = high, 2 * high
    while high - low > 1:  # inputs never get shorter as the text gets longer
        middle = (low + high) // 2
        fits = lengths_of(middle, density, mean_length)[0] <= target_length
        low, high = (middle, high) if fits else (low, middle)
    return low
