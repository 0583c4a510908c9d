"""Decoding state of a model, and the result of a decoding call."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from qkv.state.arrival import Counts


class State(NamedTuple):
    """Decoding state of a model (the KV cache in attention).

    positions (B): number of positions read.   limit (B): fixed capacity; 0 if the state grows.   blocks: state of each
    branch, or of the segmentation.   prefix (B): length of the prefix, on which masks at later positions may depend.
    behind (B): by how many the next position on several axes is behind the number of positions, see ``Context.places``.

    Counts are on the host, so that decoding does not wait for the device.
    """

    positions: Counts
    limit: Counts
    blocks: Any
    prefix: Counts
    behind: Counts


class Decoded(NamedTuple):
    """Result of ``decode``: logits (M, V) after each of the M new tokens of all rows, row by row; next state."""

    logits: Tensor
    state: State
