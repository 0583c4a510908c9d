"""Packed documents as rows of their own, for what cannot be told by a mask."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Documents(NamedTuple):
    """Where the tokens of packed rows (B, N) stand among their documents, longest M.

    number, offset (B, N): the document of a token, counted through all rows, and its place there.   lengths (documents): of each.
    table (documents, M): of which token, counted through all rows, a place is; 0 behind the end.
    """

    number: Tensor
    offset: Tensor
    lengths: Tensor
    table: Tensor

    def apart(self, x: Tensor) -> Tensor:
        """x (B, N, …) as (documents, M, …)."""
        return x.flatten(0, 1)[self.table]

    def together(self, x: Tensor) -> Tensor:
        """x (documents, M, …) as (B, N, …)."""
        return x[self.number, self.offset]


def starts_of(segments: Tensor) -> Tensor:
    """Where a new document begins, (B, N); ``segments`` (B, N): document numbers, of which a document is a run of one in a row."""
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return starts


def documents(segments: Tensor) -> Documents:
    """Those of packed rows; ``segments`` (B, N): see ``starts_of``."""
    starts = starts_of(segments)
    token = torch.arange(segments.numel(), device=segments.device)
    number = starts.flatten().cumsum(0) - 1
    offset = token - token[starts.flatten()][number]
    lengths = number.bincount()
    table = token.new_zeros(lengths.shape[0], int(lengths.max()) if lengths.numel() else 0)
    table[number, offset] = token
    return Documents(number.view_as(segments), offset.view_as(segments), lengths, table)
