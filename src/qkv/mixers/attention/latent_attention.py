"""Multi-head latent attention."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.observable import Points, standard
from qkv.layers.relative import Rope
from qkv.mixers.attention.attend import attend
from qkv.mixers.attention.attention import KeyValueBranch
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Sites
from qkv.spec import parts
from qkv.spec.mixers import latent_attention as spec
from qkv.spec.register import implements


@implements(spec.LatentAttention)
class LatentAttention(KeyValueBranch):
    """Multi-head latent attention: concat_h(softmax(q_h k_h^T / (τ √(Dk + Dr))) v_h) W_o (DeepSeek-V2, 2024).

        x ─┬─ query ────────────── q (B, H, N, Dk + Dr), Dr rotated ──────────────┐
           └─ down ─ c (B, N, R) ┬─ up ─ k (B, H, N, Dk), v (B, H, N, Dv) ────────┤
                   └ rotate ─────┴─ one rotated part for all heads (B, 1, N, Dr) ─┴ attention ─ output

    State: c and the rotated part, R + Dr values per position. For few queries, the maps of ``up`` are applied to
    queries and outputs instead of keys and values. Queries then attend to the state itself, which is one K/V head:

        q_h · W_kh c = (W_kh^T q_h) · c        Σ_j p_j W_vh c_j = W_vh Σ_j p_j c_j
    """

    only_by_keys = True

    def __init__(self, part: spec.LatentAttention, width: int):
        (key_dim, rope_dim, out_dim), rank = part.dims(width), part.rank(width)
        # Both parts are stored as one key without a value, so that no step has to join them.
        super().__init__(part, width, part.mask, (1, rank + rope_dim, 0))
        self.key_dim, self.rope_dim, self.out_dim, self.rank = key_dim, rope_dim, out_dim, rank
        self.num_heads, read = part.num_heads, part.query_rank or width
        self.query_down = Linear(width, read, bias=False) if part.query_rank else None
        self.query_norm = build_norm(part.norm, read) if part.query_rank else None
        self.query = Linear(read, self.num_heads * (key_dim + rope_dim), bias=False)
        self.down = Linear(width, rank + rope_dim, bias=False)
        self.down_norm = build_norm(part.norm, rank)
        self.up = Linear(rank, self.num_heads * (key_dim + out_dim), bias=False)
        self.output = Linear(self.num_heads * out_dim, width, bias=False)
        self.rope = _rope(part, rope_dim) if rope_dim else None
        self.scale = 1.0 / (part.temperature * (key_dim + rope_dim) ** 0.5)
        self.dropout = part.dropout

    def layouts(self) -> Layouts:
        heads, key = self.num_heads, self.key_dim
        return {
            "query": matrix(q=(heads * (key + self.rope_dim), key + self.rope_dim)),
            "down": matrix(latent=self.rank, rope=self.rope_dim) if self.rope_dim else matrix(latent=self.rank),
            "up": matrix(k=(heads * key, key), v=(heads * self.out_dim, self.out_dim)),
            "output": from_heads(heads * self.out_dim, self.out_dim),
        }

    def points(self) -> Points:
        latent = {"latent": "compressed keys and values c of the call's positions (B, 1, N, R)"}
        return {**standard("q"), **latent, **standard("scores", "weights", "head_outputs")}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, latents = self._projected(x, context)
        latents, _, after, sites = self.with_past(latents, latents[..., :0], context, state)
        problem = AttentionProblem(self.mask, sites, self.scale, dropout=self.dropout if self.training else 0.0)
        absorbs = state is not None and self._absorbing_is_less(q.shape[2], latents.shape[2])
        out = (self.absorbed if absorbs else self.expanded)(q, latents, problem, context)
        out = self.offer(context.tap, "head_outputs", out)
        return self.output(out.transpose(1, 2).flatten(2)), after

    def expanded(self, q: Tensor, latents: Tensor, problem: AttentionProblem, context: Context) -> Tensor:
        """Compute the output (B, H, N, Dv) with the keys and values of each head computed from c.

        q (B, H, N, Dk + Dr); kept (B, 1, M, R + Dr): c and the rotated part, as the state holds them.
        """
        c, turned = latents[:, 0, :, : self.rank], latents[..., self.rank :]
        k, v = self.up(c).split([self.num_heads * self.key_dim, self.num_heads * self.out_dim], -1)
        k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (k, v))
        k = torch.cat((k, turned.expand(-1, self.num_heads, -1, -1)), -1)
        # The fused kernels want values as wide as keys.
        wide = F.pad(v, (0, k.shape[-1] - self.out_dim)) if self.out_dim < k.shape[-1] else v
        return attend(self, (q, k, wide), problem, context, self.elsewhere or attention)[..., : self.out_dim]

    def absorbed(self, q: Tensor, latents: Tensor, problem: AttentionProblem, context: Context) -> Tensor:
        """Compute the same output with the maps of keys and values applied to queries and outputs instead."""
        keys, values = self._maps()
        plain, turned = q.split([self.key_dim, self.rope_dim], -1)
        q = torch.cat((torch.einsum("bhnd,hdr->bhnr", plain, keys), turned), -1)
        out = attend(self, (q, latents, latents), problem, context, _as_one_head)[..., : self.rank]
        return torch.einsum("bhnr,hdr->bhnd", out, values)

    def _maps(self) -> tuple[Tensor, Tensor]:
        """Return the maps from c to keys (H, Dk, R) and to values (H, Dv, R)."""
        keys, values = self.up.weight.split([self.num_heads * self.key_dim, self.num_heads * self.out_dim])
        return keys.unflatten(0, (self.num_heads, -1)), values.unflatten(0, (self.num_heads, -1))

    def _absorbing_is_less(self, queries: int, keys: int) -> bool:
        """Return True if the absorbed form takes fewer FLOPs for ``queries`` queries and ``keys`` keys."""
        mapped, latent_dim = self.rank * (self.key_dim + self.out_dim), self.rank + self.rope_dim
        wide = max(self.key_dim + self.rope_dim, self.out_dim)
        return queries * mapped + 2 * queries * keys * latent_dim < keys * mapped + 2 * queries * keys * wide

    def _projected(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Project x to (queries (B, H, N, Dk + Dr), c and the keys' rotated part (B, 1, N, R + Dr)).

        The last Dr features of both are rotated. The state stores the second tensor.
        """
        c, k_turned = self.down(x)[:, None].split([self.rank, self.rope_dim], -1)
        c = self.offer(context.tap, "latent", self.down_norm(c, context))
        if self.query_down is not None and self.query_norm is not None:
            x = self.query_norm(self.query_down(x), context)
        q = self.query(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        q = self.offer(context.tap, "q", q)
        if self.rope is None:
            return q, c
        plain, q_turned = q.split([self.key_dim, self.rope_dim], -1)
        q_turned, k_turned = self.rope.rotate(q_turned, k_turned, context)
        return torch.cat((plain, q_turned), -1), torch.cat((c, k_turned), -1)

    def ending(self) -> nn.Module:
        return self.output


def _rope(part: spec.LatentAttention, rope_dim: int) -> Rope:
    """Build the RoPE of ``rope_dim`` features."""
    return Rope(parts.Rope(base=part.base, scaling=part.scaling), part, (rope_dim, rope_dim))  # type: ignore[arg-type]


def _as_one_head(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention (B, H, N, Dv) with keys and values that all heads share, as a single head with H N queries."""
    heads = q.shape[1]
    out = attention(q.flatten(1, 2)[:, None], k, v, replace(problem, sites=_of_heads(problem, heads)))
    return out.unflatten(2, (heads, -1))[:, 0]


def _of_heads(problem: AttentionProblem, num_heads: int) -> Sites:
    """Return the positions of queries and keys, with the queries of all heads concatenated."""
    sites = problem.sites
    seen = sites.full or (sites.aligned and sites.query.shape[1] == 1 and problem.mask.sees_all(sites.span()))
    return replace(sites, query=sites.query.repeat(1, num_heads), aligned=False, full=seen)
