"""Cost of LSH attention. Imports no torch."""

from __future__ import annotations

from qkv.inspection.shares import FLOAT, Setting, Share, formula, last, linear
from qkv.inspection.visible import visible_pairs
from qkv.spec.mixers.lsh_attention import LSHAttention


@formula(LSHAttention)
def lsh_attention(part: LSHAttention, at: Setting) -> Share:
    """Input projections, scores and output projection. Rows of up to one chunk use full attention."""
    size = part.num_heads * part.head_width(at.width)
    maps = linear(at.width, size, part.bias, at, at.input) + linear(at.width, size, part.bias, at, 0)
    scores = _whole(part, at) if at.length <= part.chunk_length else _hashed(part, at)
    return maps + scores + _decoded(part, at) + last(linear(size, at.width, part.bias, at))


def _whole(part: LSHAttention, at: Setting) -> Share:
    """Full attention; saves the weights, or the mask if the fused kernel recomputes them."""
    rows, every, head_dim = at.batch * part.num_heads, at.length**2, part.head_width(at.width)
    weights = 3 if part.dropout else 2 if at.irregular == "products" else 0
    return Share(
        flops=4 * rows * head_dim * every,
        attended=4 * rows * head_dim * every,
        masked=4 * rows * head_dim * (every - visible_pairs(part.mask, at.length)),
        saved=_vectors(part, at) + rows * weights * every * at.item + every * at.item + FLOAT * rows * at.length,
        working=4 * at.tokens * part.num_heads * head_dim * at.item,
        scores=rows * every * at.item,
        calls=30,
    )


def _hashed(part: LSHAttention, at: Setting) -> Share:
    """Hashing, and for each round chunks with copies of their neighbouring keys."""
    rows, head_dim = at.batch * part.num_heads, part.head_width(at.width)
    chunks = part.num_hashes * -(-at.length // part.chunk_length)
    queries, pairs = chunks * part.chunk_length, chunks * part.met * part.chunk_length**2
    hashing = 2 * at.tokens * part.num_heads * head_dim * part.num_hashes * (sum(part.num_buckets) // 2)
    laid_out = rows * head_dim * (queries + 2 * queries * part.met) * at.item
    places = 8 * rows * (2 * queries + 2 * queries * part.met) * head_dim
    masks = rows * pairs * 3
    return Share(
        flops=hashing + 4 * rows * head_dim * pairs,
        attended=4 * rows * head_dim * pairs,
        saved=_vectors(part, at) + laid_out + places + masks + rows * pairs * (2 * FLOAT + (2 * FLOAT if part.dropout else 0)),
        working=2 * laid_out + 3 * FLOAT * rows * pairs,
        scores=rows * at.length**2 * at.item,
        calls=110,
    )


def _vectors(part: LSHAttention, at: Setting) -> int:
    """Bytes of queries, keys, values and intermediates of the key normalisation."""
    size = part.num_heads * part.head_width(at.width)
    return at.tokens * (4 * size * at.item + 2 * part.num_heads * FLOAT)


def _decoded(part: LSHAttention, at: Setting) -> Share:
    """Decoding step over all keys in the state; for a causal window mask, the window and the sinks."""
    bounded = part.causal and part.mask.reach is not None
    kept = min(at.length, (part.mask.reach or 0) + part.mask.first_visible) if bounded else at.length
    pair = 4 * part.num_heads * part.head_width(at.width)
    numbers = at.batch * kept * 2 * part.num_heads * part.head_width(at.width)
    return Share(step=at.batch * pair * kept, state=numbers * at.item, step_calls=40)
