"""Masked language modelling (Devlin et al. 2019, "BERT"): predict tokens that were masked or replaced."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.data.batching.batch import IGNORED
from qkv.data.checks import check_rows, check_share
from qkv.system.errors import UserError


class Draws(NamedTuple):
    """Random numbers of one batch, all (B, N).

    ``chosen``: uniform in [0, 1); the token, or the word that starts with it, is a target if this is below the rate.
    ``kind``: uniform in [0, 1), decides how a target is corrupted. ``other``: random token id for replacement.
    """

    chosen: np.ndarray
    kind: np.ndarray
    other: np.ndarray


def draw(rng: np.random.Generator, shape: tuple[int, ...], vocab_size: int) -> Draws:
    """Draw the random numbers for rows of ``shape`` (B, N)."""
    return Draws(rng.random(shape), rng.random(shape), rng.integers(0, vocab_size, shape))


def mask_tokens(
    ids: np.ndarray,
    special: np.ndarray,
    mask_id: int,
    vocab_size: int,
    rng: np.random.Generator,
    rate: float = 0.15,
    replaced: float = 0.8,
    random: float = 0.1,
    words: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask tokens; return (corrupted ids, targets), both (B, N) int64; targets are ``IGNORED`` where not selected.

    Each token of ``ids`` (B, N) that is not ``special`` (B, N) is a target with probability ``rate``, independently. A
    target becomes ``mask_id`` with probability ``replaced``, a uniformly random token of the vocabulary (special ones
    included, as in BERT) with probability ``random``, and is unchanged otherwise. A row may have no target.

    With ``words`` (B, N), whole words are selected with probability ``rate``. Tokens of a row with equal numbers in
    ``words`` form a word; special tokens and negative numbers belong to no word and are never targets. Each token of a
    selected word is corrupted independently, as in BERT's whole-word masking.

    Raises ``UserError`` for a rate outside [0, 1], ``replaced`` + ``random`` > 1, ``mask_id`` outside the vocabulary,
    or wrong shapes.
    """
    check_rows(ids, special=special, words=words)
    if not 0 <= mask_id < vocab_size:
        raise UserError(f"mask_id is {mask_id}, but the vocabulary has the ids 0 to {vocab_size - 1}")
    return apply(ids, special, mask_id, draw(rng, ids.shape, vocab_size), rate, replaced, random, words)


def apply(
    ids: np.ndarray,
    special: np.ndarray,
    mask_id: int,
    draws: Draws,
    rate: float = 0.15,
    replaced: float = 0.8,
    random: float = 0.1,
    words: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask tokens as ``mask_tokens`` does, with the given random numbers ``draws``; deterministic."""
    for name, value in (("rate", rate), ("replaced", replaced), ("random", random)):
        check_share(name, value)
    if replaced + random > 1 + 1e-9:  # rounding may push a sum of 1 slightly above 1
        raise UserError(f"replaced is {replaced} and random is {random}, but their sum must be at most 1")
    free = ~special.astype(bool)
    chosen = draws.chosen if words is None else of_word(draws.chosen, words, free)
    target = free & (chosen < rate)
    corrupted = np.where(target & (draws.kind < replaced + random), draws.other, ids)
    corrupted[target & (draws.kind < replaced)] = mask_id
    return corrupted.astype(np.int64), np.where(target, ids, IGNORED).astype(np.int64)


def of_word(uniform: np.ndarray, words: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Give all tokens of a word the same random number (B, N), so that whole words are masked together.

    Each token gets the number of its word's first token in ``uniform``. Tokens that are not ``free`` or belong to no
    word get 1, which no rate exceeds, so that they are never selected.
    """
    row, column = np.nonzero(free & (words >= 0))
    _, number = np.unique(words[row, column], return_inverse=True)
    _, first, word = np.unique(row * (len(row) + 1) + number, return_index=True, return_inverse=True)
    numbers = np.ones(uniform.shape)
    numbers[row, column] = uniform[row[first], column[first]][word]
    return numbers
