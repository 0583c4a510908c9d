"""Sequences in chunks, and products of decays within chunks, for recurrent states with decay and resets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.at_least_single import at_least_single
from qkv.ops.documents import starts_of
from qkv.ops.selection.counting import Unseen


class Decays(NamedTuple):
    """Products of decays between positions of a chunk; 0 across documents. C positions per chunk, n chunks.

    within (B, H, n, C, C): from position j to position i >= j, else 0.   into (B, H, n, C): from the chunk's start to a
    position.   out (B, H, n, C): from a position to the chunk's end.   through (B, H, n): from start to end. H is 1 if
    all heads are equal.
    """

    within: Tensor
    into: Tensor
    out: Tensor
    through: Tensor


def cut(x: Tensor, chunk: int) -> Tensor:
    """Split positions into chunks: (B, H, N, …) -> (B, H, n, C, …), n = ⌈N / C⌉, padded with zeros."""
    missing = -x.shape[2] % chunk
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, missing))
    return x.unflatten(2, (-1, chunk))


def decays(log_decay: Tensor | None, segments: Tensor | None, like: Tensor, chunk: int) -> Decays:
    """Compute the products of decays in chunks.

    log_decay (B or 1, H, N): log of the factor by which a position multiplies the state, at most 0; None: no decay.
    segments (B, N): document numbers; the state before the first position belongs to its document.   like (B, H, N, …):
    tensor with the length, dtype and device of the result.
    """
    count = like.shape[2]
    if log_decay is None:
        total = at_least_single(like.new_zeros(1, 1, -(-count // chunk), chunk))
    else:
        total = cut(at_least_single(log_decay), chunk).cumsum(-1)
    last = total[..., -1:]
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=like.device).tril()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -torch.inf)
    into, out, through = total, last - total, last[..., 0]
    if segments is not None:
        document = starts_of(segments).cumsum(-1)
        document = F.pad(document, (0, -count % chunk), mode="replicate").unflatten(1, (-1, chunk))[:, None]
        entry = torch.cat((document[:, :, :1, :1], document[:, :, :-1, -1:]), 2)
        end = document[..., -1:]
        between = between.masked_fill(document[..., :, None] != document[..., None, :], -torch.inf)
        into, out = into.masked_fill(document != entry, -torch.inf), out.masked_fill(document != end, -torch.inf)
        through = through.masked_fill((entry != end)[..., 0], -torch.inf)
    return Decays(*(each.exp().to(like.dtype) for each in (between, into, out, through)))


def unseen_scores(q: Tensor, v: Tensor, pair: int, chunk: int) -> Unseen:
    """Declare the costs of scores (B, H, n, C, C) in chunks. ``pair``: FLOPs per pair of positions, of all rows and
    heads.

    Pairs with j > i or with padding are computed but count as hidden; the whole matrix of scores is never computed.
    """
    rows, count = v.shape[:2].numel(), v.shape[2]
    size = max(1, min(chunk, count))
    whole, rest = divmod(count, size)
    seen = whole * (size * (size + 1) // 2) + rest * (rest + 1) // 2
    hidden = pair * (-(-count // size) * size**2 - seen)
    return Unseen(rows * count * count * q.element_size(), hidden=lambda computed: hidden)
