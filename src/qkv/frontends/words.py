"""Front end for words: sums of embeddings of hashed features."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.frontends.border import check_features, check_vocabulary
from qkv.frontends.placed import PlacedFrontend
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.signal import Signal
from qkv.spec.frontends import HashedWords
from qkv.spec.model import Stack
from qkv.spec.register import implements


@implements(HashedWords)
class WordsFrontend(PlacedFrontend):
    """Front end for words: hash buckets (B, N, F) of F features per word -> vectors (B, N, D). Bucket -1: no feature.

    Each vector is Σ_f E[bucket f] over the features of a word (Bojanowski et al. 2017). Position vectors, norm and
    dropout follow.
    """

    part: HashedWords

    def __init__(self, part: HashedWords, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack, width)
        self.features = nn.Parameter(torch.empty(part.features.buckets, part.vector_width(width)))

    @property
    def device(self) -> torch.device:
        return self.features.device

    def layouts(self) -> Layouts:
        return {"features": WHOLE}  # the hash decides the row, so tables of different sizes have no rows in common

    def initialise(self, std: float) -> None:
        nn.init.normal_(self.features, std=std)

    def check(self, signal: Signal) -> None:
        check_features(signal.values, self.device)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        shape = rows, length, self.part.features.typical
        return Signal(torch.randint(self.part.features.buckets, shape, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        buckets = signal.values
        check_vocabulary(buckets, self.features.shape[0], lowest=-1)
        each = buckets.flatten(0, 1)
        sums = F.embedding_bag(
            each.clamp(min=0), self.features, mode="sum", per_sample_weights=(each >= 0).to(self.features.dtype)
        )
        return self.placed(sums.view(*buckets.shape[:2], -1), context)
