"""Masked language modelling (Devlin et al. 2019, "BERT"): some tokens are hidden, and the model says which they were."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.data.batch import IGNORED
from qkv.data.corruption.checks import check_rows, check_share
from qkv.spec.errors import UserError


class Draws(NamedTuple):
    """The random numbers of one batch, all (B, N).

    ``chosen``: a token, or the word that begins at it, is a target if this uniform number of [0, 1) is below the rate.
    ``kind``: a uniform number of [0, 1) that says what becomes of a target. ``other``: the random token that may take its place.
    """

    chosen: np.ndarray
    kind: np.ndarray
    other: np.ndarray


def draw(rng: np.random.Generator, shape: tuple[int, ...], vocab_size: int) -> Draws:
    """The random numbers for rows of ``shape`` (B, N)."""
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
    """The corrupted ids and their targets, both (B, N) int64; a target is ``IGNORED`` where nothing is asked.

    Each token of ``ids`` (B, N) that is not ``special`` (B, N) is a target with probability ``rate``, independently. A target becomes
    ``mask_id`` with probability ``replaced``, one of all ``vocab_size`` tokens, special ones among them as in BERT, with probability
    ``random``, and stays what it is otherwise. A row may get no target.

    With ``words`` (B, N), whole words are chosen, each with probability ``rate``. Tokens of one number in a row are one word; tokens that
    are special or have a negative number are in none, and are never targets. What becomes of each token of a chosen word is drawn for
    itself, as BERT's whole-word masking does.

    ``UserError``: a share outside of [0, 1], ``replaced`` + ``random`` above 1, a ``mask_id`` outside of the vocabulary, other shapes.
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
    """``mask_tokens`` with the random numbers given: nothing is drawn here."""
    for name, value in (("rate", rate), ("replaced", replaced), ("random", random)):
        check_share(name, value)
    if replaced + random > 1 + 1e-9:  # two shares that make a whole may add up to a little more
        raise UserError(f"replaced is {replaced} and random is {random}, but a target is one or the other: their sum is at most 1")
    free = ~special.astype(bool)
    chosen = draws.chosen if words is None else of_word(draws.chosen, words, free)
    target = free & (chosen < rate)
    corrupted = np.where(target & (draws.kind < replaced + random), draws.other, ids)
    corrupted[target & (draws.kind < replaced)] = mask_id
    return corrupted.astype(np.int64), np.where(target, ids, IGNORED).astype(np.int64)


def of_word(uniform: np.ndarray, words: np.ndarray, free: np.ndarray) -> np.ndarray:
    """(B, N): for each token the uniform number of its word's first token, and 1, which no rate exceeds, for tokens of no word."""
    row, column = np.nonzero(free & (words >= 0))
    _, number = np.unique(words[row, column], return_inverse=True)
    _, first, word = np.unique(row * (len(row) + 1) + number, return_index=True, return_inverse=True)
    found = np.ones(uniform.shape)
    found[row, column] = uniform[row[first], column[first]][word]
    return found
