"""What the branches cost that read a memory of ``at.memory`` vectors a row. Imports no torch.

What depends on the memory alone is computed once for each sequence that is decoded, so a step does not count it.
"""

from __future__ import annotations

from dataclasses import replace

from qkv.inspection.shares import FLOAT, Setting, Share, formula, last, linear, share
from qkv.spec import cross

MOST_PAIRS = 1 << 26
"""Numbers inside tanh above which additive attention computes them again in the backward pass."""
_LENGTHS = 8
"""Bytes a row in which a state keeps how much of the memory is real."""


def _mapped(outputs: int, bias: bool, at: Setting) -> Share:
    """A linear map of the memory; the memory itself is kept once for all branches that read it, but rounded by each for itself."""
    kept = 0 if at.shared_memory and at.item == FLOAT else _vectors(at)
    product = linear(at.read_width, outputs, bias, replace(at, length=at.memory), kept)
    return replace(product, step=0, step_calls=0)


def _vectors(at: Setting) -> int:
    """Bytes of the memory's vectors."""
    return at.batch * at.memory * at.read_width * at.item


@formula(cross.CrossAttention)
def cross_attention(part: cross.CrossAttention, at: Setting) -> Share:
    """Queries of the positions, keys and values of the memory, the scores between them; nothing is hidden but padding."""
    key_width, value_width = part.dims(at.width)
    heads, shared, rows = part.num_heads, part.kv_heads, at.batch * part.num_heads
    pairs, flops = at.length * at.memory, 2 * rows * (key_width + value_width)
    mapped = at.batch * at.memory * shared * (key_width + value_width)
    queries = at.tokens * heads * key_width
    # Dropout keeps the weights, what it drew and their product; unequal widths keep torch from its fused kernel.
    copies = 3 if part.dropout else int(key_width != value_width)
    weights = FLOAT * copies if copies else 2 * at.item * (at.irregular == "products")
    scores = Share(
        flops=flops * pairs,
        attended=flops * pairs,
        step=flops * at.memory,
        saved=(queries + mapped) * at.item + rows * (weights * pairs + FLOAT * at.length),
        working=2 * (queries + mapped) * at.item + rows * pairs * (2 * at.item if weights else 0),
        scores=rows * pairs * at.item,
        state=mapped * at.item + _LENGTHS * at.batch,
        calls=20,
        step_calls=20,
    )
    before = linear(at.width, heads * key_width, part.bias, at, at.input) + _mapped(shared * (key_width + value_width), part.bias, at)
    return before + _normed(part, at) + scores + last(linear(heads * value_width, at.width, part.ends_with_bias, at))


def _normed(part: cross.CrossAttention, at: Setting) -> Share:
    """The norm of queries and keys: its weights, and what it normed."""
    if not part.norms_heads:
        return Share()
    key_width = part.dims(at.width)[0]
    vectors = at.tokens * part.num_heads + at.batch * at.memory * part.kv_heads
    return Share(
        parameters=2 * share(part.qk_norm, replace(at, width=key_width)).parameters,
        saved=vectors * (key_width + 1) * FLOAT,
        calls=4,
        step_calls=2,
    )


@formula(cross.AdditiveAttention)
def additive_attention(part: cross.AdditiveAttention, at: Setting) -> Share:
    """tanh of every pair of position and vector of the memory, their products with v, and the sums of the memory by weight."""
    hidden, pairs = part.hidden or at.width, at.tokens * at.memory
    inside, again = pairs * hidden, at.length > 1 and pairs * hidden > MOST_PAIRS
    flops = 2 * (hidden + at.read_width)
    scores = Share(
        parameters=hidden,
        matrices=hidden,
        flops=flops * pairs,
        attended=flops * pairs,
        step=flops * at.batch * at.memory,
        saved=(0 if again else inside * at.item) + pairs * FLOAT,
        working=0 if again else 2 * inside * at.item,
        scores=pairs * at.item,
        state=at.batch * at.memory * (hidden + at.read_width) * at.item + _LENGTHS * at.batch,
        calls=12,
        step_calls=12,
    )
    before = linear(at.width, hidden, False, at, at.input) + _mapped(hidden, False, at)
    return before + scores + last(linear(at.read_width, at.width, True, at))


@formula(cross.FixedContext)
def fixed_context(part: cross.FixedContext, at: Setting) -> Share:
    """One linear map of one vector a row, pooled from the memory."""
    state = Share(state=at.batch * at.read_width * at.item, working=_vectors(at), calls=6)
    return state + last(linear(at.read_width, at.width, True, replace(at, length=1)))
