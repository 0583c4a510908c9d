"""Cost of attention with relative position scores. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from qkv.inspection.cost_attention import attention, shared_table
from qkv.inspection.shares import FLOAT, Setting, Share, formula, linear, share
from qkv.spec.branches import Attention, MaskedAttention
from qkv.spec.mixers.relative_attention import DisentangledAttention, RelativeAttention
from qkv.spec.parts import T5Buckets

_LEARNED = T5Buckets(num_buckets=4, max_distance=3)


def _plain(part: MaskedAttention, at: Setting) -> Share:
    """Attention of the same sizes with another learned bias, which uses the same implementation."""
    shared = {name: getattr(part, name) for name in MaskedAttention.model_fields}
    counted = attention(Attention(**shared, relative=_LEARNED), at)
    return replace(counted, parameters=counted.parameters - _LEARNED.num_buckets * part.num_heads)


def _remembered(part: MaskedAttention, at: Setting) -> int:
    """Number of keys visible to a new position in decoding."""
    reach = part.mask.reach if part.causal else None
    return at.length if reach is None else min(at.length, reach + part.mask.first_visible)


def _gathered(part: MaskedAttention, at: Setting, count: int) -> Share:
    """Products of all heads' queries or keys with ``count`` vectors, gathered by the distance of each pair."""
    head_dim, rows = part.dims(at.width)[0], at.batch * part.num_heads
    scores = rows * at.length * at.length * at.item
    copied = at.tokens * part.num_heads * head_dim * at.item
    return Share(
        flops=2 * rows * at.length * count * head_dim,
        # Torch saves the input of a gather.
        saved=copied + (part.num_heads * head_dim + rows * at.length) * count * at.item,
        working=scores + rows * at.length * count * at.item,
        calls=8,
        step_calls=8,
    )


@formula(DisentangledAttention)
def disentangled_attention(part: DisentangledAttention, at: Setting) -> Share:
    """Content scores, projections of the table of 2 S vectors, and their products with queries and keys."""
    count, head_dim = 2 * part.span, part.dims(at.width)[0]
    table = replace(at, batch=1, length=count)
    widths = (part.kv_heads * head_dim if part.content_to_position else 0, part.num_heads * head_dim if part.position_to_content else 0)
    maps = Share()
    for width, biased in ((widths[0], part.bias and part.key_bias), (widths[1], part.bias)):
        if not width:
            continue
        one = linear(at.width, width, biased, table, 0)
        one = replace(one, step=one.flops)
        maps += replace(one, parameters=0, matrices=0) if part.share_projections else one
        maps += _gathered(part, at, count)
    keys = 1 if part.content_to_position else 0
    steps = 2 * at.batch * part.num_heads * count * head_dim * (keys + (_remembered(part, at) if part.position_to_content else 0))
    norm = share(part.table_norm, table)
    if part.biases_apart:
        maps += Share(parameters=-part.kv_heads * head_dim, calls=4, step_calls=4)
    index = 8 * at.length * at.length * 2
    if shared_table(part) in at.shared_tables:
        norm = replace(norm, parameters=0)
        own = 0
    else:
        own = count * at.width
    kept = Share(parameters=own, step=steps, saved=index + count * at.width * FLOAT, calls=12)
    return _plain(part, at) + maps + norm + kept


@formula(RelativeAttention)
def relative_attention(part: RelativeAttention, at: Setting) -> Share:
    """Content scores, projection of the sinusoids of all distances, and its products with queries."""
    width = part.num_heads * part.dims(at.width)[0]
    count = _distances(part, at.length)
    position = linear(at.width, width, False, replace(at, batch=1, length=count))
    met = 2 * at.batch * part.num_heads * at.width * min(_remembered(part, at), count)
    biases = Share(parameters=2 * width, saved=8 * at.length * at.length, calls=12, step_calls=16)
    if part.by_type:
        types = Share(parameters=3 * width, step=4 * at.batch * width, calls=6, step_calls=6)
        biases += types + Share(flops=4 * at.tokens * width, saved=at.tokens * width * at.item)
    return _plain(part, at) + replace(position, step=2 * at.batch * at.width * width + met) + _gathered(part, at, count) + biases


def _distances(part: RelativeAttention, length: int) -> int:
    """Number of distances between ``length`` positions, in both directions unless the mask is causal."""
    furthest = length - 1 if part.max_distance is None else min(length - 1, part.max_distance)
    return furthest + 1 + (0 if part.causal else furthest)
