"""From the last vectors to what is asked of the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.ops.linear.choose import linear
from qkv.spec.parts import LanguageModelHead as HeadSpec


class LanguageModelHead(nn.Module):
    """logits = x W^T + b, optionally cap · tanh(logits / cap) (Gemma 2, 2024). x (B, N, D), W (V, D) -> (B, N, V)."""

    def __init__(self, part: HeadSpec, vocab_size: int, width: int, table: nn.Parameter | None):
        super().__init__()
        self.cap = part.softcap
        self.weight = table if table is not None else nn.Parameter(torch.empty(vocab_size, width))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if part.bias else None

    def forward(self, x: Tensor) -> Tensor:
        logits = linear(x, self.weight, self.bias)
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()
