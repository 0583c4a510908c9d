"""Multi-head, grouped-query and multi-query softmax attention with any mask and any positions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix, vector
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import Norm, build_norm
from qkv.layers.observable import Points, standard
from qkv.layers.relative import build_relative
from qkv.mixers.attention import in_pages
from qkv.mixers.attention.attend import Attend, attend
from qkv.mixers.attention.head_norms import build_head_norm
from qkv.mixers.attention.output_gate import build_output_gate
from qkv.mixers.attention.shaped import Shape
from qkv.mixers.masks import build_mask
from qkv.mixers.value_convolution import ValueConvolution
from qkv.ops.at_least_single import single_or_wider
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem, ScoreTerm
from qkv.ops.masks import Causal, SharedSites, Sites
from qkv.ops.native import pages
from qkv.ops.native.pages import ScoreTerms
from qkv.spec import branches as spec
from qkv.spec.branches import Branch as BranchSpec
from qkv.spec.branches import MaskedAttention
from qkv.spec.masks import AllOf, Mask
from qkv.spec.mixers.continuous_memory import ContinuousMemory
from qkv.spec.mixers.retrieval_attention import RetrievalAttention
from qkv.spec.register import implements
from qkv.state.store import Store, new_store


class KeyValueBranch(Branch):
    """Base class of branches whose state is a store of keys and values (KV cache).

    The store holds all positions, or under a causal window mask only those of the window and the sinks.
    """

    elsewhere: Attend | None = None
    """Attention to keys of which other processes hold a part (``qkv.parallel.context``); None if all are here."""

    def __init__(self, part: BranchSpec, width: int, mask: Mask, sizes: tuple[int, int, int]):
        """Create the branch. sizes: sizes per position, (number of key/value heads, features per key, per value)."""
        super().__init__(part, width)
        self.kv_heads, self.head_dim, self.value_dim = sizes
        self.mask = build_mask(mask)
        self.causal = mask.causal
        self.ring = (mask.reach, mask.first_visible) if mask.causal and mask.reach is not None else None
        self.plain_window = _is_plain_window(mask)
        self.rewindable = self.ring is None

    def init_state(self, batch: int, capacity: int | None = None) -> Store:
        return new_store(
            batch, self.kv_heads, (self.head_dim, self.value_dim), self.like().detach(), capacity, self.ring
        )

    def with_past(
        self, k: Tensor, v: Tensor, context: Context, state: State | None
    ) -> tuple[Tensor, Tensor, State | None, Sites]:
        """Append k, v to the state; return (visible keys, their values, next state, positions of queries and keys)."""
        if state is None:
            return k, v, None, context.once(("sites", self.causal), lambda: self._whole(context))
        arrival = context.arrival
        assert arrival is not None
        seen = state.append(k, v, arrival)
        full = seen.recent and self.plain_window
        aligned = seen.in_place and arrival.start is not None

        def sites() -> Sites:
            return SharedSites(context.positions, seen.positions, aligned=aligned, full=full, prefix=context.prefix)

        return seen.keys, seen.values, state, context.once(("slots", id(seen.positions), aligned, full), sites)

    def _whole(self, context: Context) -> Sites:
        """Return the positions of queries and keys in a call without a state.

        A causal mask alone hides right padding from unpadded queries.
        """
        valid = context.valid
        special = context.segments is not None or context.prefix is not None or context.visible is not None
        if not special and (valid is None or self.causal):
            return Sites(context.positions, context.positions, aligned=True)
        key = context.positions if valid is None else context.positions.masked_fill(~valid, -1)
        return Sites(
            context.positions, key, context.segments, context.segments, prefix=context.prefix, given=context.visible
        )

    def state_bytes(self, length: int, batch: int = 1) -> int:
        positions = length if self.ring is None else min(length, sum(self.ring))
        return batch * positions * self.kv_heads * (self.head_dim + self.value_dim) * self.like().element_size()


class KeyValueAttention(KeyValueBranch):
    """Base class of self-attention: q/k/v projection, output projection and KV cache.

    Subclasses compute scores and output. If queries and values have biases but keys do not, they are ``query_bias``
    (H Dk) and ``value_bias`` (G Dv), initialised to 0.
    """

    def __init__(self, part: MaskedAttention | RetrievalAttention | ContinuousMemory, width: int, terms: int = 1):
        """Create the projections. terms: number of dot products in a score; their sum is divided by √(terms · Dk)."""
        super().__init__(part, width, part.mask, (part.kv_heads, *part.dims(width)))
        self.num_heads = part.num_heads
        self.maps_values = part.maps_values
        values = self.kv_heads * self.value_dim if self.maps_values else 0
        self.sizes = (self.num_heads * self.head_dim, self.kv_heads * self.head_dim, values)
        self.heads = (self.num_heads, self.kv_heads, self.kv_heads)
        self.qkv = Linear(width, sum(self.sizes), bias=part.bias and not part.biases_apart)
        self.query_bias, self.value_bias = (
            nn.Parameter(torch.zeros(size)) if part.biases_apart and size else None for size in self.sizes[::2]
        )
        mixed = self.num_heads * self.value_dim
        self.output = Linear(mixed, width, bias=part.ends_with_bias) if part.maps_output else nn.Identity()
        self.query_norm = self.head_norm(part, self.num_heads) if part.norms_heads else None
        self.key_norm = self.head_norm(part, self.kv_heads) if part.norms_heads else None
        self.scale = 1.0 / (part.temperature * (terms * self.head_dim) ** 0.5)

    def head_norm(self, part: Any, heads: int) -> Norm:
        """Build the norm of the queries or keys of ``heads`` heads."""
        return build_norm(part.qk_norm, self.head_dim)

    def layouts(self) -> Layouts:
        q, k, v = self.sizes
        values = {"v": (v, self.value_dim)} if self.maps_values else {}
        return {
            "qkv": matrix(q=(q, self.head_dim), k=(k, self.head_dim), **values),
            "output": from_heads(self.num_heads * self.value_dim, self.value_dim),
            "query_bias": vector("q", q, self.head_dim),
            "value_bias": vector("v", v, self.value_dim),
        }

    def points(self) -> Points:
        return standard("q", "k", "v", "scores", "weights", "head_outputs")

    def mapped(self, x: Tensor) -> Tensor:
        """Return queries, keys and values of all heads, concatenated, (B, N, (H + G) Dk + G Dv).

        The values are x itself if ``maps_values`` is False.
        """
        y = self.qkv(x)
        if self.query_bias is not None:
            y = y + self._biases(self.query_bias).to(y.dtype)
        return y if self.maps_values else torch.cat((y, x), -1)

    def _biases(self, queries: Tensor) -> Tensor:
        """Concatenate the biases of queries and values, with zeros for the keys between them."""
        zeros = queries.new_zeros(self.sizes[1])
        return torch.cat((queries, zeros) if self.value_bias is None else (queries, zeros, self.value_bias))

    def projected(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Project x to q (B, H, N, Dk), k (B, G, N, Dk), v (B, G, N, Dv)."""
        q, k, v = self._heads(self.mapped(x))
        q, k = self.normed(q, k, context)
        if context.tap is not None:
            q, k, v = (self.offer(context.tap, name, value) for name, value in (("q", q), ("k", k), ("v", v)))
        return q, k, v

    def normed(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Normalise queries (B, H, N, Dk) and keys (B, G, N, Dk), if there is a norm."""
        if self.query_norm is None or self.key_norm is None:
            return q, k
        return self.query_norm(q, context), self.key_norm(k, context)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split (B, N, H Dk + G Dk + G Dv) into q (B, H, N, Dk), k (B, G, N, Dk), v (B, G, N, Dv)."""
        rows, count, _ = x.shape
        if self.head_dim == self.value_dim:  # all heads at once: fewer operators
            q, k, v = x.view(rows, count, sum(self.heads), self.head_dim).transpose(1, 2).split(self.heads, 1)
            return q, k, v
        queries, keys, _ = self.sizes
        q, k, v = (
            part.view(rows, count, heads, part.shape[2] // heads).transpose(1, 2)
            for part, heads in zip(x.tensor_split((queries, queries + keys), -1), self.heads, strict=True)
        )
        return q, k, v

    def ending(self) -> nn.Module:
        return self.output


class Attention(KeyValueAttention):
    """Self-attention: concat_h(softmax(Q_h K_g^T / (τ √Dk) + bias, masked) V_g) W_o (Vaswani et al. 2017).

        x (B, N, D) ─ qkv ─┬ q (B, H, N, Dk) ─ rotate ─┐
                           ├ k (B, G, N, Dk) ─ rotate ─┤ state: (B, G, slots, Dk | Dv)
                           └ v (B, G, N, Dv) ──────────┴ attention ─ (B, N, H Dv) ─ output ─ (B, N, D)

    State: all keys and values; for a causal window mask, a ring buffer of the window and the sinks.
    """

    def __init__(self, part: spec.Attention, width: int):
        super().__init__(part, width)
        self.part, self.clip, self.query_scale = part, part.clip, part.query_scale
        self.relative = build_relative(part, width)
        self.sink = nn.Parameter(torch.zeros(part.num_heads)) if part.learned_sink else None
        self.shape = Shape(part.num_heads) if part.shaped else None
        heads = part.num_heads, self.value_dim
        gated = not part.output_gate.identity
        self.output_gate = build_output_gate(part.output_gate, width, heads, part.bias) if gated else None
        features = part.num_heads * self.value_dim
        self.output_norm = None if part.output_norm.identity else build_norm(part.output_norm, features)
        kernel = part.value_convolution
        self.value_convolution = ValueConvolution(part.num_heads, kernel) if kernel else None

    def assign_name(self, name: str) -> None:
        super().assign_name(name)
        if self.output_gate is not None:
            self.output_gate.assign_name(f"{name}.output_gate")

    def head_norm(self, part: Any, heads: int) -> Norm:
        return build_head_norm(part, heads, self.head_dim)

    def mapped(self, x: Tensor) -> Tensor:
        out = super().mapped(x)
        return out if self.clip is None else out.clamp(-self.clip, self.clip)

    def layouts(self) -> Layouts:
        layouts = super().layouts()
        return layouts if self.sink is None else {**layouts, "sink": vector("q", self.num_heads, 1)}

    @property
    def reads_pages(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if the kernel for paged attention can compute this attention.

        It needs a causal mask, no relative positions other than rotations and slopes, neither ``shaped`` nor ``top_k``,
        and a supported precision and device.
        """
        supported = isinstance(self.mask, Causal) and self.relative.only_slopes and self.shape is None
        return supported and self.part.top_k is None and pages.available(self.like())

    @property
    def only_by_keys(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True unless values are mixed otherwise too, or scores need all keys at once, or more than positions."""
        otherwise = self.shape is not None or self.value_convolution is not None or self.part.top_k is not None
        return self.relative.by_positions and not otherwise

    @property
    def replayable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True under a causal mask, which hides the slots after a position, without ``top_k``."""
        return isinstance(self.mask, Causal) and self.relative.replayable and self.part.top_k is None

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self.projected(x, context)
        q, k = self.rotated(q, k, context)
        if state is not None and in_pages.suits(q, context, state) and not self.training:
            terms = ScoreTerms(self.scale, self.part.softcap, self.relative.slopes(q, self.scale), self.sink)
            out = in_pages.attention(q, k, v, terms, context, state)
        else:
            out, state = self._attend(q, k, v, context, state)
        if self.value_convolution is not None:
            out = out + self.value_convolution(v, context)
        if self.output_gate is not None:
            out = self.output_gate(out, x, context)
        out = self.offer(context.tap, "head_outputs", out).transpose(1, 2).flatten(2)
        return self.output(out if self.output_norm is None else self.output_norm(out, context)), state

    def rotated(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Rotate queries (B, H, N, Dk) and keys (B, G, N, Dk) by their positions, if the attention uses RoPE."""
        q, k = self.relative.rotate(q, k, context)
        return (q if self.query_scale is None else self._scaled(q, self.query_scale, context)), k

    def _scaled(self, q: Tensor, scale: spec.QueryScale, context: Context) -> Tensor:
        """Multiply the queries by the factor of their positions; see ``QueryScale``."""
        steps = (context.positions[:, None, :, None] + scale.first) // scale.length
        return q * (1 + scale.rate * steps.to(single_or_wider(q.dtype)).log1p()).to(q.dtype)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, state: State | None
    ) -> tuple[Tensor, State | None]:
        """Return (output (B, H, N, Dv) of attention to the keys of ``state`` and the new keys k, next state)."""
        keys, values, state, sites = self.with_past(k, v, context, state)
        problem = self._problem(q, sites, context)
        if context.tap is None:
            out = (self.elsewhere or attention)(q, keys, values, problem)
        else:
            out = attend(self, (q, keys, values), problem, context)
        if self.shape is not None:
            out = self.shape(out, v, values, problem)
        return out, state

    def _problem(self, q: Tensor, sites: Sites, context: Context) -> AttentionProblem:
        part, relative = self.part, self.relative
        dropout = part.dropout if self.training else 0.0
        term = None
        if self.elsewhere is None:
            bias, values = relative.bias(q, sites, self.scale, context), relative.values(sites)
        else:
            bias = values = None
            if not relative.only_slopes:
                term = ScoreTerm(partial(relative.bias, scale=self.scale, context=context), relative.tables)
        return AttentionProblem(
            self.mask,
            sites,
            self.scale,
            relative.slopes(q, self.scale),
            dropout,
            bias,
            part.top_k,
            values,
            part.softcap,
            self.sink,
            term,
        )


class RotatedNormAttention(Attention):
    """Attention whose queries and keys are normalised after their rotation (Hunyuan, Tencent 2025)."""

    def normed(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        return q, k

    def rotated(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        q, k = super().rotated(q, k, context)
        return super().normed(q, k, context)


@implements(spec.Attention)
def _attention(part: spec.Attention, width: int) -> Attention:
    return (Attention if part.qk_norm_after == "projection" else RotatedNormAttention)(part, width)


def _is_plain_window(mask: Mask) -> bool:
    """True for a mask ``causal & window(…)``, under which the newest query sees every key in the ring buffer."""
    return isinstance(mask, AllOf) and sorted(m.kind for m in mask.masks) == ["causal", "window"]
