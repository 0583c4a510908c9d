"""Cost of sparse attention. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from qkv.inspection.shares import FLOAT, Setting, Share, formula, last, linear
from qkv.spec.mixers.sparse_attention import GlobalLocalAttention


@formula(GlobalLocalAttention)
def global_local_attention(part: GlobalLocalAttention, at: Setting) -> Share:
    """Local and global projections, blocks of queries with their bands and the global keys, and full rows of global queries.

    Global positions given by each row's prefix are not counted.
    """
    head_dim, size = part.head_width(at.width), part.num_heads * part.head_width(at.width)
    few = min(part.num_global or 0, at.length)
    blocks = _blocks(part, at.length, few)
    rows, keys = at.batch * part.num_heads, few * at.length
    computed = sum(queries * seen for queries, seen in blocks)
    visible = sum(min(at.length, i + part.window + 1) - max(0, i - part.window) for i in range(at.length))
    visible += sum(max(0, at.length - g - part.window - 1) + max(0, g - part.window) for g in range(few))
    laid_out = sum(seen for _, seen in blocks) * 2 * at.batch * size
    # Batched products save the weights, and a copy with zeros for queries without visible keys.
    weights = 2 * rows * (computed + keys) * at.item if at.irregular == "products" else 0
    inner = Share(
        flops=4 * rows * head_dim * (computed + keys),
        attended=4 * rows * head_dim * (computed + keys),
        masked=4 * rows * head_dim * max(computed - visible, 0),
        saved=(laid_out + (3 + 2) * at.tokens * size) * at.item + FLOAT * rows * (at.length + few) + computed * at.item + weights,
        working=(2 * laid_out + 3 * at.tokens * size) * at.item,
        scores=rows * at.length * at.length * at.item,
        calls=24 + 20 * len(blocks),
        step_calls=0,
    )
    before = linear(at.width, 3 * size, part.bias, at, at.input)
    return before + _global_maps(part, at, size, few) + inner + last(linear(size, at.width, part.bias, at))


def _global_maps(part: GlobalLocalAttention, at: Setting, size: int, few: int) -> Share:
    """Global projections: queries of global positions, keys and values of all; unused without global positions."""
    query = linear(at.width, size, part.bias, replace(at, length=few))
    others = linear(at.width, 2 * size, part.bias, at, 0)
    if few:
        return query + others
    return Share(parameters=query.parameters + others.parameters, matrices=query.matrices + others.matrices)


def _blocks(part: GlobalLocalAttention, length: int, few: int) -> list[tuple[int, int]]:
    """(queries, keys) of each block, including the ``few`` global keys."""
    found = []
    for first in range(0, length, part.block):
        stop = min(first + part.block, length)
        found.append((stop - first, min(stop + part.window, length) - max(first - part.window, 0) + few))
    return found
