"""State of mixers that read only a fixed number of the latest inputs, such as a causal convolution."""

from __future__ import annotations

import torch
from torch import Tensor


def extended(tail: Tensor, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Prepend the state ``tail`` to the inputs x; return (both concatenated (B, T + N, D), next ``tail`` (B, T, D)).

    tail (B, T, D): the last T unpadded inputs; x (B, N, D): new inputs; ``lengths`` (B): how many of them are not
    padding.
    """
    width = tail.shape[1]
    window = torch.cat((tail, x), 1)
    if lengths is None:
        # A copy: a view would keep the whole sequence in memory.
        return window, window[:, window.shape[1] - width :].clone()
    index = lengths[:, None] + torch.arange(width, device=x.device)
    return window, window.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
