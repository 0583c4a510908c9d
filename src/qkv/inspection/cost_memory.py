"""Cost of branches that read a memory of ``at.memory`` vectors per row. Imports no torch.

Projections of the memory are computed once per decoded sequence and are not part of a decoding step.
"""

from __future__ import annotations

from dataclasses import replace

from qkv.inspection.shares import FLOAT, Setting, Share, formula, last, linear, share
from qkv.spec import cross

MOST_PAIRS = 1 << 26
"""Number of tanh values above which additive attention recomputes them in the backward pass."""
_LENGTHS = 8
"""Bytes per row of the memory's length in a state."""


def _mapped(outputs: int, bias: bool, at: Setting) -> Share:
    """Projection of the memory, which is saved once for all branches, except that each has its own rounded copy in bf16."""
    kept = 0 if at.shared_memory and at.item == FLOAT else _vectors(at)
    product = linear(at.read_width, outputs, bias, replace(at, length=at.memory), kept)
    return replace(product, step=0, step_calls=0)


def _vectors(at: Setting) -> int:
    """Bytes of the memory vectors."""
    return at.batch * at.memory * at.read_width * at.item


@formula(cross.CrossAttention)
def cross_attention(part: cross.CrossAttention, at: Setting) -> Share:
    """Query projection, key and value projections of the memory, and scores without a mask."""
    key_width, value_width = part.dims(at.width)
    heads, shared, rows = part.num_heads, part.kv_heads, at.batch * part.num_heads
    pairs, flops = at.length * at.memory, 2 * rows * (key_width + value_width)
    mapped = at.batch * at.memory * shared * (key_width + value_width)
    queries = at.tokens * heads * key_width
    # Dropout saves the weights, its mask and their product; unequal widths exclude torch's fused kernel.
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
    """Norm of queries and keys: parameters and saved inputs."""
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
    """tanh of every (position, memory vector) pair, its product with v, and the weighted sum of the memory."""
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
    """One linear layer on the pooled memory of each row."""
    state = Share(state=at.batch * at.read_width * at.item, working=_vectors(at), calls=6)
    return state + last(linear(at.read_width, at.width, True, replace(at, length=1)))
