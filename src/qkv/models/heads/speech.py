"""Head of speech: logits of the next codes of a neural codec."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.layers.linear.linear import Linear
from qkv.models.heads.head import Head
from qkv.ops.at_least_single import at_least_single
from qkv.spec.register import implements
from qkv.spec.signals.speech import SpeechHead
from qkv.system.errors import UserError

IGNORED = -100
"""Target of a code without loss."""


@implements(SpeechHead)
class SpeechCodesHead(Head):
    """Logits (B, N, K, codes + 1) of x (B, N, D): a code of each of K codebooks; the last one is the end."""

    def __init__(self, part: SpeechHead, width: int, table: object):
        super().__init__()
        if part.codebooks is None or part.codes is None:
            raise UserError("model.head.codebooks and codes are unknown: build the model together with its data")
        self.codebooks, self.codes = part.codebooks, part.codes
        self.num_outputs = part.codebooks * (part.codes + 1)
        self.output = Linear(width, self.num_outputs)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.output(x).unflatten(-1, (self.codebooks, -1))

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.codes + 1, (rows, length, self.codebooks), generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """-Σ log p(target) over targets (B, N, K) other than -100."""
        logits = at_least_single(outputs).flatten(0, -2)
        return torch.nn.functional.cross_entropy(
            logits, targets.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )
