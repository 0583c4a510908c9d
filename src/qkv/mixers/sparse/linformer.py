"""Linformer: attention to a fixed number of mixtures of keys and values along the row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.mixers.attention.attend import attend
from qkv.mixers.local.position_matrices import PositionMatrices
from qkv.mixers.projections import offer_outputs, offer_projections
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Full, Sites
from qkv.spec.mixers import linformer as spec
from qkv.spec.register import implements


@implements(spec.Linformer)
class Linformer(PositionMatrices):
    """Linformer: concat_h(softmax(Q_h (E_h K_h)^T / √Dk) F_h V_h) W_o (Wang et al. 2020). Bidirectional, stateless.

        x (B, N, D) ─ qkv ─┬ q (B, H, N, Dk) ───────────────────────────┐
                           ├ k (B, H, N, Dk) ─ E over positions ─ k rows ┤
                           └ v (B, H, N, Dk) ─ F over positions ─ k rows ┴ attention ─ output ─ (B, N, D)

    E and F are stored as (G k, N) with G = H or 1 matrices; F is None if it equals E. A row of n positions, padding not
    counted, uses their first n columns. They are initialised from N(0, 1 / N), so that a mixture of independent keys
    has the variance of a key.
    """

    def __init__(self, part: spec.Linformer, width: int):
        super().__init__(part, width)
        self.part, self.head_dim = part, part.head_width(width)
        size = part.num_heads * self.head_dim
        self.qkv, self.output = Linear(width, 3 * size, bias=part.bias), Linear(size, width, bias=part.bias)
        rows = (part.num_heads if part.share == "none" else 1) * part.rank
        self.key_mixtures = nn.Parameter(torch.randn(rows, self.length) * self.length**-0.5)
        self.value_mixtures = (
            None if part.share == "keys_values" else nn.Parameter(torch.randn(rows, self.length) * self.length**-0.5)
        )

    def layouts(self) -> Layouts:
        heads = self.part.num_heads * self.head_dim, self.head_dim
        return {"qkv": matrix(q=heads, k=heads, v=heads), "output": from_heads(*heads)}

    def points(self) -> Points:
        return standard("q", "k", "v", "scores", "weights", "head_outputs")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        x = offer_projections(self, self.qkv(x), context, [self.head_dim] * 3, self.part.num_heads)
        return self.output(offer_outputs(self, self.over_rows(x, context), context, self.head_dim)), state

    def mixed(self, x: Tensor, real: Tensor | None, context: Context) -> Tensor:
        """Attend to the mixtures of whole rows x (R, n, 3 H Dk): q, k and v, concatenated; return (R, n, H Dk).

        Keys and values are 0 at padding. They add nothing to a mixture, so padding has no effect.
        """
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in x.chunk(3, -1))
        k = self._mixtures(self.key_mixtures, k)
        v = self._mixtures(self.key_mixtures if self.value_mixtures is None else self.value_mixtures, v)
        queries, keys = (torch.arange(count, device=x.device)[None] for count in (q.shape[2], k.shape[2]))
        dropout = self.part.dropout if self.training else 0.0
        sites = Sites(queries, keys, full=True)
        problem = AttentionProblem(Full(), sites, self.head_dim**-0.5, dropout=dropout)
        out = attend(self, (q, k, v), problem, context)
        return out.transpose(1, 2).flatten(2)

    def _mixtures(self, weight: Tensor, x: Tensor) -> Tensor:
        """Compute Σ_j W_tj x_j for each head: weight (G k, N), x (R, H, n, Dk) -> (R, H, k, Dk)."""
        used = weight[:, : x.shape[2]].to(x.dtype).unflatten(0, (-1, self.part.rank))
        if used.shape[0] == 1:
            return torch.einsum("kn,rhnd->rhkd", used[0], x)
        return torch.einsum("hkn,rhnd->rhkd", used, x)

    def ending(self) -> nn.Module:
        return self.output
