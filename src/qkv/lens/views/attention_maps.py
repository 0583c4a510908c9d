"""Attention weights of all branches that have them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.lens.record import record
from qkv.lens.views.places import BranchPlace, find_place, list_branches
from qkv.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class AttentionMap(BranchPlace):
    """Attention weights (B, H, N, M) of one execution of a branch, before dropout; see ``BranchPlace``.

    Row n holds what position n reads from the M keys: N = M positions of its own stack, or the M vectors of a memory if
    ``kind`` is "cross". Softmax weights sum to 1; those of a learned sink, of a gated attention unit and of collision
    attention do not. Rows and keys at padding have no meaning. Linformer's keys are mixtures of positions. In windows
    and segments, B counts those of all rows.
    """

    weights: Tensor


@torch.no_grad()
def attention_maps(
    model: Transformer, signal: Signal | Tensor, source: Signal | Tensor | None = None
) -> list[AttentionMap]:
    """Return the attention weights of all branches that have them, in the order of computation, from one pass without
    dropout.

    source: input of the encoder, if the model has one. Branches without weights, such as linear attention, Mamba-2, a
    convolution or a GRU, are left out; ``influence_maps`` shows every branch that mixes positions. Fast attention
    computes the output as usual; the weights are computed beside it by the reference.
    """
    paths = [branch.path_of("weights") for _, branch in list_branches(model, lambda b: "weights" in b.points())]
    if not paths:
        return []
    records = record(model, signal, *paths, source=source).records
    places = ((find_place(model, location), weights) for location, weights in records.items())
    return [AttentionMap(**place.place(), weights=weights) for place, weights in places]
