"""Head of matching: vectors of two inputs in one space, and the losses of pairs that belong together."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import MEMORY, Context, Memory
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.linear.linear import Linear
from qkv.models.heads.head import Head, Pool
from qkv.ops.at_least_single import at_least_single
from qkv.spec.heads import MatchingHead
from qkv.spec.register import implements

LARGEST_SCALE = 100.0
"""Bound of the scale s (Radford et al. 2021)."""
_FIRST = {"softmax": (1 / 0.07, 0.0), "sigmoid": (10.0, -10.0)}
"""Objective -> scale and offset before training, as published."""


@implements(MatchingHead)
class Matcher(Head):
    """Head of matching (Radford et al. 2021): outputs (B, 2, P), the vectors of the blocks and of the encoder.

        a = (W pool(x) + b) / |W pool(x) + b|      c = (W_s pool(m) + b_s) / |W_s pool(m) + b_s|

    Without a memory m, such as for a single input, the outputs are a (B, 1, P). ``encoded`` computes c alone, without
    W_s and b_s if ``source_map`` is false.
    """

    def __init__(self, part: MatchingHead, width: int, table: object):
        super().__init__()
        self.part, self.num_outputs = part, part.features
        source_width = part.source_width or width
        self.pool, self.source_pool = Pool(part.poolings, width), Pool(part.source_poolings, source_width)
        self.map = Linear(self.pool.width, part.features, bias=part.bias)
        self.source_map = Linear(self.source_pool.width, part.features, bias=part.bias) if part.source_map else None
        scale, offset = _FIRST[part.objective]
        self.scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.offset = nn.Parameter(torch.tensor(offset)) if part.objective == "sigmoid" else None

    def layouts(self) -> Layouts:
        return {"scale": WHOLE, **({} if self.offset is None else {"offset": WHOLE})}

    def forward(self, x: Tensor, lengths: Tensor | None = None, memory: Memory | None = None) -> Tensor:
        """Compute the vectors a (B, P) of rows of the blocks; with a memory a and c (B, 2, P)."""
        vectors = _unit(self.map(self.pool(x, lengths)))
        return vectors if memory is None else torch.stack((vectors, self.encoded(memory)), 1)

    def encoded(self, memory: Memory) -> Tensor:
        """Compute the vectors c (B, P) of rows of the encoder."""
        x = self.source_pool(memory.vectors[-1], memory.lengths)
        return _unit(x if self.source_map is None else self.source_map(x))

    def of_rows(self, x: Tensor, lengths: Tensor | None, context: Context) -> Tensor:
        memory = (context.memories or {}).get(MEMORY)
        return self(x, lengths)[:, None] if memory is None else self(x, lengths, memory)

    def scores(self, vectors: Tensor, encoded: Tensor) -> Tensor:
        """Return the scores s a·c + z (B, C) of vectors a (B, P) and c (C, P), in fp32."""
        similar = at_least_single(vectors) @ at_least_single(encoded).T
        scores = similar * self.scale.exp().clamp(max=LARGEST_SCALE)
        return scores if self.offset is None else scores + self.offset

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.arange(2 * rows).view(rows, 2)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the loss of all pairs of rows, summed over rows (B, 2, P); no smoothing.

        targets (B, 2): a number for each of the two inputs of a row, equal for equal contents. Rows i and j match if
        i = j, or if their first or their second inputs are equal; y_ij is 1 then, else 0. With the scores S of all
        pairs and n_i matches of row i:

            softmax   -½ Σ_ij y_ij / n_i (log softmax_j S_ij + log softmax_j S_ji)
            sigmoid   -Σ_ij log σ((2 y_ij - 1) S_ij)
        """
        return self.loss_of_scores(self.scores(outputs[:, 0], outputs[:, 1]), targets)

    def loss_of_scores(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the scores S (B, B) of all pairs of rows, summed over rows."""
        matches = (targets[:, None] == targets[None]).any(-1)
        if self.part.objective == "sigmoid":
            return F.binary_cross_entropy_with_logits(scores, matches.to(scores), reduction="sum")
        shares = matches / matches.sum(1, keepdim=True)
        both = scores.log_softmax(1) + scores.T.log_softmax(1)
        return -(shares * both).sum() / 2

    @torch.no_grad()
    def set_scale(self, scale: float, offset: float) -> None:
        """Set the scale s, which is bounded, and the offset z of heads that have one."""
        self.scale.fill_(math.log(min(scale, LARGEST_SCALE)))
        if self.offset is not None:
            self.offset.fill_(offset)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(at_least_single(x), dim=-1)
