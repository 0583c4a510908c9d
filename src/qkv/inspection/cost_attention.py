"""Cost of attention, for the implementation that ``qkv.ops.attention.choose`` selects in training. Imports no torch."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from qkv.inspection.shares import FLOAT, Setting, Share, formula, last, linear, share
from qkv.inspection.visible import visible_pairs, visible_tiles
from qkv.spec.branches import Attention, Branch
from qkv.spec.mixers.relative_attention import DisentangledAttention
from qkv.spec.parts import Alibi, LayerNorm, Norm, RMSNorm, Rope, Shaw, T5Buckets

BAND = 256
"""Queries per band, and keys per block of it."""
TILE = 128
"""Queries per tile."""
LARGEST_MASK = 1 << 24
"""Largest number of (query, key) pairs for which a dense mask is built."""


@dataclass(frozen=True)
class Scores:
    """Computation of the scores of one head.

    pairs: (query, key) pairs computed.   mask: pairs of the dense mask saved for the backward pass.
    weights: pairs whose softmax is saved, ``copies`` times.   at_once: those with gradients alive at once; None: all.
    chosen: numbers saved for top-k.   joined: keys and values copied to concatenate the pieces of a band.
    item: bytes per saved weight.   timed: True if the implementation is selected by timing.
    """

    pairs: int
    mask: int = 0
    weights: int = 0
    copies: int = 1
    at_once: int | None = None
    chosen: int = 0
    joined: int = 0
    timed: bool = False
    item: int = FLOAT

    def tiled(self, at: Setting) -> bool:
        """True if attention is computed by blocks of queries and recomputed in the backward pass."""
        return self.timed and at.attention == "tiled"

    def laid_out(self, at: Setting) -> bool:
        """True if attention uses batched matrix products instead of torch's fused kernel."""
        return bool(self.weights) or self.tiled(at)


def scores_of(part: Attention, at: Setting) -> Scores:
    """Select the computation for sequences of ``at.length`` positions."""
    length, every = at.length, at.length**2
    visible = visible_pairs(part.mask, length)
    # Relative values and top-k need all scores.
    if isinstance(part.relative, Shaw) and part.relative.values:
        return Scores(every, every, every, 2)
    if part.top_k is not None and part.top_k < length:
        return Scores(every, every, every, 1, chosen=4 * length * part.top_k)
    if part.softcap is not None:
        return _capped(part, at)
    learned = isinstance(part.relative, (Shaw, T5Buckets))
    plain = (
        not learned
        and not isinstance(part.relative, Alibi)
        and (visible == every or (part.mask.causal and visible == length * (length + 1) // 2))
    )
    key_width, value_width = part.dims(at.width)
    # Dropout saves the weights, its mask and their product; unequal widths exclude torch's fused kernel.
    copies = 3 if part.dropout else 1 + isinstance(part.relative, Shaw) if learned else 1 if key_width != value_width else 0
    if length >= 4 * BAND and (tiles := visible_tiles(part.mask, length, BAND)).count < (-(-length // BAND)) ** 2 / 3:
        joined = tiles.pairs // BAND if part.mask.first_visible else 0
        return Scores(tiles.pairs, tiles.pairs, tiles.pairs if copies else 0, copies, joined=joined)
    if every > LARGEST_MASK and not plain and not learned and not part.dropout:
        # Blocks without visible keys are skipped, and weights are recomputed in the backward pass.
        return Scores(visible_tiles(part.mask, length, BAND).pairs)
    if at.irregular == "products" and not plain and not copies:
        # The weights, and a copy with zeros for queries without visible keys.
        return Scores(every, weights=every, copies=2, item=at.item)
    # If scores are saved, the mask is part of them.
    return Scores(every, 0 if plain or copies else every, every if copies else 0, copies, timed=plain and not copies)


def _capped(part: Attention, at: Setting) -> Scores:
    """Scores with a soft cap, by blocks of queries with visible key blocks; saves tanh and two copies of the weights."""
    pairs, length = at.length**2, at.length
    copies, blocked = 5 if part.dropout else 3, length > BAND
    if blocked:
        pairs = visible_tiles(part.mask, length, BAND).pairs
    joined, at_once = (pairs // BAND, BAND * length) if blocked else (0, pairs)
    return Scores(pairs, weights=pairs, copies=copies, at_once=at_once, joined=joined, item=at.item)


@formula(Attention)
def attention(part: Attention, at: Setting) -> Share:
    """Projections and scores."""
    key_width, value_width = part.dims(at.width)
    projected = part.num_heads * key_width + part.kv_heads * (key_width + value_width)
    before = linear(at.width, projected, part.bias, at, saved=at.input)
    after = last(linear(part.num_heads * value_width, at.width, part.ends_with_bias, at))
    scores = scores_of(part, at)
    return before + after + _projected(part, at, scores) + _scored(part, at, scores) + _relative(part, at) + _remembered(part, at)


def _projected(part: Attention, at: Setting, scores: Scores) -> Share:
    """q, k and v, and the norm of q and k."""
    key_width, value_width = part.dims(at.width)
    heads, shared = part.num_heads, part.kv_heads
    queries_keys = (heads + shared) * key_width
    saved = _kept(part, at, scores)
    if part.norms_heads:
        saved += kept_by_norm(part.qk_norm, queries_keys, heads + shared, at)
        saved += 0 if scores.laid_out(at) else heads * key_width * at.item
    gradients = queries_keys + (heads + shared) * value_width
    return Share(
        parameters=2 * share(part.qk_norm, replace(at, width=key_width)).parameters,
        saved=at.tokens * saved,
        working=at.tokens * gradients * at.item,
    )


def kept_by_norm(norm: Norm, numbers: int, vectors: int, at: Setting) -> int:
    """Bytes that a norm of ``vectors`` vectors (``numbers`` elements in all) saves besides its input.

    Per vector its root mean square, or its mean and deviation; for RMSNorm with a weight the normalised vectors; in bf16
    also an fp32 copy.
    """
    copies = int(isinstance(norm, RMSNorm) and norm.weight) + (at.item != FLOAT)
    return (copies * numbers + (2 if isinstance(norm, LayerNorm) else 1) * vectors) * FLOAT


def _kept(part: Attention, at: Setting, scores: Scores) -> int:
    """Bytes per position of queries, keys and values saved for the backward pass."""
    key_width, value_width = part.dims(at.width)
    heads, shared = part.num_heads, part.kv_heads
    joined = (heads + shared) * key_width + shared * value_width
    changed = isinstance(part.relative, Rope) or part.norms_heads
    whole = heads * (2 * key_width + value_width)
    if scores.laid_out(at):
        # Batched products need contiguous heads: a copy, unless there is one row and no repeated head.
        item = scores.item if scores.weights else at.item
        if at.batch > 1 or heads != shared:
            return whole * item + (joined * at.item if part.norms_heads else 0)
        return joined * at.item + heads * key_width * item * (2 if scores.weights or changed else 1)
    if scores.timed and at.attention == "sdpa, oneDNN" and heads != shared:
        repeated = whole if changed else whole - heads * key_width
        return (repeated + (joined if part.norms_heads or not changed else 0)) * at.item
    return (joined + ((heads + shared) * key_width if changed else 0)) * at.item


def _scored(part: Attention, at: Setting, scores: Scores) -> Share:
    """Q K^T, softmax and the product with V."""
    key_width, value_width = part.dims(at.width)
    rows = at.batch * part.num_heads
    flops, every = 2 * rows * (key_width + value_width), at.length * at.length
    seen = min(at.length, sum(_ring(part) or (at.length,)))
    # One mask for all rows; with ALiBi one per head.
    mask = scores.mask * at.item * (part.num_heads if isinstance(part.relative, Alibi) else 1)
    joined = scores.joined * at.batch * part.kv_heads * (key_width + value_width) * at.item
    tiled, at_once = scores.tiled(at), scores.weights if scores.at_once is None else scores.at_once
    turned = 14 if isinstance(part.relative, Rope) else 0
    tile = 2 * rows * min(TILE, at.length) * at.length * at.item if tiled else 0
    gradients = at.tokens * part.num_heads * (2 * key_width + 2 * value_width) * at.item
    return Share(
        flops=flops * every,
        attended=flops * every,
        masked=flops * (every - visible_pairs(part.mask, at.length)),
        skipped=flops * (every - scores.pairs),
        step=flops * seen,
        saved=mask + joined + rows * (scores.item * scores.copies * scores.weights + FLOAT * (scores.chosen + (0 if tiled else at.length))),
        working=scores.item * rows * at_once * (1 if part.dropout else 2) + tile + (gradients if tiled else 0),
        scores=rows * every * at.item,
        calls=24 + turned,
        step_calls=42 + turned,
    )


def shared_table(part: Branch) -> Hashable:
    """Key of the relative position table that a layer shares with others of its stack; None if it shares none."""
    if isinstance(part, DisentangledAttention):
        return part.table_key if part.shared else None
    if not isinstance(part, Attention) or not isinstance(part.relative, T5Buckets) or not part.relative.shared:
        return None
    return part.relative, part.num_heads, part.causal


def _relative(part: Attention, at: Setting) -> Share:
    """Relative position tables, and their products with queries and weights."""
    if isinstance(part.relative, T5Buckets):
        table = 0 if shared_table(part) in at.shared_tables else part.relative.num_buckets * part.num_heads
        return Share(parameters=table, calls=20, step_calls=20)
    if not isinstance(part.relative, Shaw):
        return Share()
    key_width, value_width = part.dims(at.width)
    rows, count = at.batch * part.num_heads, 2 * part.relative.max_distance + 1
    table = count * (key_width + (value_width if part.relative.values else 0))
    kept = rows * at.length * ((key_width if part.num_heads > 1 else 0) + (count if part.relative.values else 0))
    inner = Share(parameters=table, flops=2 * rows * at.length * table, step=2 * rows * table)
    return inner + Share(saved=FLOAT * kept, working=2 * FLOAT * rows * at.length * count, calls=12, step_calls=12)


def _remembered(part: Attention, at: Setting) -> Share:
    """Key/value state: all positions, or a ring buffer of the window and the sinks."""
    kept = min(at.length, sum(_ring(part) or (at.length,)))
    return Share(state=at.batch * kept * part.kv_heads * sum(part.dims(at.width)) * at.item)


def _ring(part: Attention) -> tuple[int, int] | None:
    """(window, sinks) of a causal window mask; None for other masks."""
    if not part.causal or part.mask.reach is None:
        return None
    return part.mask.reach, part.mask.first_visible
