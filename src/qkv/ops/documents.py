"""Conversion of packed rows to one row per document, for operations that cannot be masked."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Documents(NamedTuple):
    """Indices that map packed rows (B, N) to one row per document, (documents, M), and back; M: longest document.

    number, offset (B, N): index of each token's document over all rows, and index of the token in its document.
    lengths (documents): tokens per document.   table (documents, M): flat index b·N + n of each token; 0 for padding.
    """

    number: Tensor
    offset: Tensor
    lengths: Tensor
    table: Tensor

    def apart(self, x: Tensor) -> Tensor:
        """Unpack to one row per document: (B, N, …) -> (documents, M, …)."""
        return x.flatten(0, 1)[self.table]

    def together(self, x: Tensor) -> Tensor:
        """Pack documents to rows, the inverse of ``apart``: (documents, M, …) -> (B, N, …)."""
        return x[self.number, self.offset]


def starts_of(segments: Tensor) -> Tensor:
    """Build a mask (B, N): True at the first token of each document.

    ``segments`` (B, N): document numbers; consecutive tokens with equal numbers are one document.
    """
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return starts


def documents(segments: Tensor) -> Documents:
    """Index the documents of packed rows. ``segments`` (B, N): see ``starts_of``."""
    starts = starts_of(segments)
    token = torch.arange(segments.numel(), device=segments.device)
    number = starts.flatten().cumsum(0) - 1
    offset = token - token[starts.flatten()][number]
    lengths = number.bincount()
    table = token.new_zeros(lengths.shape[0], int(lengths.max()) if lengths.numel() else 0)
    table[number, offset] = token
    return Documents(number.view_as(segments), offset.view_as(segments), lengths, table)
