"""Convolution of the values of each attention head over positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Declared, Layouts
from qkv.mixers.whole_rows import each_row


class ValueConvolution(Declared):
    """Convolution c_hi = Σ_t w_ht v_h,i+t-⌊K/2⌋, t < K, of the values of H heads (Nyströmformer, Xiong et al. 2021).

    weight (H, K), initialised from N(0, 1 / K). Padding and other documents are read as 0.
    """

    def __init__(self, num_heads: int, kernel_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_heads, kernel_size) * kernel_size**-0.5)

    def layouts(self) -> Layouts:
        return {"weight": WHOLE}

    def forward(self, v: Tensor, context: Context) -> Tensor:
        """Compute the convolution of values v (B, H, N, Dv) -> (B, H, N, Dv).

        Raises ``UserError`` for rows with a table of visible keys.
        """
        _, heads, _, features = v.shape

        def mix(rows: Tensor, real: Tensor | None) -> Tensor:
            by_head = rows.unflatten(-1, (heads, features)).transpose(1, 2)
            return self._convolved(by_head).transpose(1, 2).flatten(2)

        mixed = each_row(v.transpose(1, 2).flatten(2), context, mix, "value_convolution")
        return mixed.unflatten(-1, (heads, features)).transpose(1, 2)

    def _convolved(self, v: Tensor) -> Tensor:
        """Compute the convolution of whole rows v (R, H, n, Dv)."""
        if v.shape[2] == 0:
            return v
        heads, size = self.weight.shape
        return F.conv2d(v, self.weight.to(v.dtype)[:, None, :, None], padding=(size // 2, 0), groups=heads)
