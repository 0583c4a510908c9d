"""Linear-chain conditional random fields: score of a sequence of classes, log-partition function, best sequence.

    s(y) = start_{y_1} + Σ_t e_t,{y_t} + Σ_{t>1} T_{y_{t-1}, y_t} + end_{y_n}
    p(y) = exp(s(y)) / Σ_{y'} exp(s(y'))

Lafferty et al. 2001. Emissions e (B, N, C); lengths (B), 0 to N: number of unpadded positions; classes of padding have
no influence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Transitions(NamedTuple):
    """Scores ``between`` (C, C) of transitions, from row to column, and of the first and last class, (C) each."""

    between: Tensor
    start: Tensor
    end: Tensor


def sequence_score(emissions: Tensor, classes: Tensor, lengths: Tensor, transitions: Transitions) -> Tensor:
    """Compute the score s(y) of each row's ``classes`` (B, N), (B); 0 for an empty row. Padding: any valid class."""
    inside = torch.arange(emissions.shape[1], device=emissions.device) < lengths[:, None]
    at = emissions.gather(-1, classes[..., None])[..., 0]
    moves = transitions.between[classes[:, :-1], classes[:, 1:]]
    last = classes.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
    ends = transitions.start[classes[:, 0]] + transitions.end[last]
    return (at * inside).sum(1) + (moves * inside[:, 1:]).sum(1) + ends * inside[:, 0]


def log_partition(emissions: Tensor, lengths: Tensor, transitions: Transitions) -> Tensor:
    """Compute log Σ_y exp(s(y)) over all sequences of each row's length, (B); 0 for an empty row. Forward algorithm:

    α_1 = start + e_1        α_t,j = log Σ_i exp(α_{t-1},i + T_{i, j}) + e_t,j        log Σ_j exp(α_n,j + end_j)
    """
    alpha = transitions.start + emissions[:, 0]
    for place in range(1, emissions.shape[1]):
        after = (alpha[:, :, None] + transitions.between).logsumexp(1) + emissions[:, place]
        alpha = torch.where((place < lengths)[:, None], after, alpha)
    return (alpha + transitions.end).logsumexp(-1) * (lengths > 0)


def best_sequence(emissions: Tensor, lengths: Tensor, transitions: Transitions) -> Tensor:
    """Compute the sequence with the highest score of each row, (B, N) int64, by Viterbi's algorithm; 0 for padding.

    This is the forward algorithm with maxima instead of sums; ties are broken arbitrarily.
    """
    best, came = transitions.start + emissions[:, 0], []
    for place in range(1, emissions.shape[1]):
        scores, source = (best[:, :, None] + transitions.between).max(1)
        inside = (place < lengths)[:, None]
        best = torch.where(inside, scores + emissions[:, place], best)
        came.append(torch.where(inside, source, torch.arange(source.shape[1], device=source.device)))
    path = [(best + transitions.end).argmax(-1)]
    for source in reversed(came):
        path.append(source.gather(1, path[-1][:, None])[:, 0])
    inside = torch.arange(emissions.shape[1], device=emissions.device) < lengths[:, None]
    return torch.stack(path[::-1], 1) * inside
