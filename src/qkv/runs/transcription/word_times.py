"""Times of words: the path through the cross-attention weights along which tokens follow the sound.

The weights of some heads, standardised over the tokens and smoothed by a median filter over time, are averaged; dynamic
time warping finds the monotone path of tokens and positions with the largest sum (Radford et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.models.transformer import Transformer
from qkv.runs.transcription.segments import TIME_STEP
from qkv.system.errors import UserError

_FILTER = 7
"""Width of the median filter, in positions."""
_BEFORE, _AFTER = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the next word, and to the one before."""


class TimedToken(NamedTuple):
    """Token with its times in seconds from the window's start, and its probability."""

    token: int
    start: float
    end: float
    probability: float


def time_tokens(
    model: Transformer,
    memory: Memory,
    begin: Sequence[int],
    tokens: Sequence[int],
    end: int,
    heads: Sequence[tuple[int, int]],
    positions: int,
) -> list[TimedToken]:
    """Return the times of the text ``tokens`` that were written from one window, the only row of ``memory``.

    begin: ids before the text, such as those of the language, with the one for no timestamps at their end. end: id of
    the end token. heads: (layer, head) of cross-attention; empty for all of the second half of the layers. positions:
    number of the encoder's positions that are sound, not padding.
    """
    if not tokens:
        return []
    logits, weights = _read(model, memory, [*begin, *tokens, end], heads)
    weights = weights[:, len(begin) - 1 : -1, : max(1, positions)]
    rows, columns = warp(-focused(weights).double().numpy())
    starts = columns[np.append(True, rows[1:] != rows[:-1])] * TIME_STEP
    chances = logits[len(begin) - 1 : -2].softmax(-1)[range(len(tokens)), list(tokens)].tolist()
    return [TimedToken(token, float(starts[i]), float(starts[i + 1]), chances[i]) for i, token in enumerate(tokens)]


@torch.no_grad()
def _read(
    model: Transformer, memory: Memory, ids: Sequence[int], heads: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Return (logits (N, V), weights (heads, N, M)) of a pass over ``ids``."""
    branches = [[b for b in block.branches if b.body.spec.reads_memory] for block in model.blocks]  # type: ignore[attr-defined,union-attr]
    paths = [several[0].body.path_of("weights") for several in branches if several]
    if not heads:
        count = [several[0].body.spec.num_heads for several in branches if several]
        heads = [(layer, head) for layer in range(len(paths) // 2, len(paths)) for head in range(count[layer])]
    if any(layer >= len(paths) for layer, _ in heads):
        raise UserError(f"alignment_heads names a layer that the decoder of {len(paths)} layers does not have")
    tap = Recorder(*{paths[layer] for layer, _ in heads})
    logits, _ = model(Signal(torch.tensor([list(ids)], device=model.device)), memory=memory, tap=tap)
    chosen = torch.stack([tap[paths[layer]][0, head] for layer, head in heads])
    return logits[0].cpu(), chosen.to("cpu", torch.float32)


def focused(weights: Tensor) -> Tensor:
    """Return the mean over heads (N, M) of weights (heads, N, M), standardised over tokens and smoothed over time."""
    mean, deviation = weights.mean(-2, keepdim=True), weights.std(-2, keepdim=True, unbiased=False)
    standard = (weights - mean) / deviation.clamp(min=1e-12)
    width = _FILTER // 2
    if standard.shape[-1] <= width:
        return standard.mean(0)
    windows = pad(standard, (width, width), mode="reflect").unfold(-1, _FILTER, 1)
    return windows.sort(-1).values[..., width].mean(0)


def warp(costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, columns) of the path through costs (N, M), from the first to the last corner, of the smallest sum.

    Each step goes to the next row, column, or both (Sakoe and Chiba 1978). Computed by diagonals, whose elements do not
    depend on each other.
    """
    count, width = costs.shape
    total = np.full((count + 1, width + 1), np.inf)
    total[0, 0] = 0.0
    steps = np.zeros((count + 1, width + 1), np.int8)
    for diagonal in range(2, count + width + 1):
        i = np.arange(max(1, diagonal - width), min(count, diagonal - 1) + 1)
        j = diagonal - i
        both, down, right = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        kind = np.where((both < down) & (both < right), 0, np.where((down < both) & (down < right), 1, 2))
        steps[i, j] = kind
        total[i, j] = costs[i - 1, j - 1] + np.choose(kind, (both, down, right))
    steps[0, :], steps[:, 0] = 2, 1
    path, i, j = list[tuple[int, int]](), count, width
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        i, j = i - (steps[i, j] != 2), j - (steps[i, j] != 1)
    rows, columns = np.array(path[::-1]).T
    return rows, columns


def group_words(
    timed: Sequence[TimedToken], decode: Callable[[list[int]], str], spaces: bool
) -> list[tuple[str, list[TimedToken]]]:
    """Group tokens to words: (text, tokens). spaces: True if spaces divide words; else every character is one.

    Punctuation belongs to the word beside it.
    """
    words = list[tuple[str, list[TimedToken]]]()
    for text, several in _characters(timed, decode):
        last = words[-1][0] if words else ""
        opened = last.startswith(" ") and last.strip() and last.strip() in _BEFORE
        closes = text and text in _AFTER
        if words and (opened or closes or (spaces and not text.startswith(" "))):
            words[-1] = last + text, [*words[-1][1], *several]
        else:
            words.append((text, several))
    return words


def _characters(timed: Sequence[TimedToken], decode: Callable[[list[int]], str]) -> list[tuple[str, list[TimedToken]]]:
    """Return (text, tokens) of the smallest groups of tokens that are whole characters."""
    groups, waiting = list[tuple[str, list[TimedToken]]](), list[TimedToken]()
    for each in timed:
        waiting.append(each)
        text = decode([one.token for one in waiting])
        if "\ufffd" not in text:
            groups.append((text, waiting))
            waiting = []
    if waiting:
        groups.append((decode([one.token for one in waiting]), waiting))
    return groups
