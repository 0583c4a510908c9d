"""Token shift of a self-contained model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.interop.remote.pieces.common import PARTS, Part, Place, only_real


class TokenShift(nn.Module):
    """Token shift: feature group g is taken from g positions earlier, then one linear map (Yu et al. 2021)."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.groups = part["groups"]
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, place: Place) -> Tensor:
        parts = only_real(x, place).chunk(self.groups, -1)
        shifted = [F.pad(part, (0, 0, g, 0))[:, : x.shape[1]] for g, part in enumerate(parts)]
        return self.output(torch.cat(shifted, -1))


PARTS["branch.token_shift"] = TokenShift
