"""Selection of the attention implementation: by shapes and mask, or by one timing per case on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qkv.ops.attention import reference
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import (
    after_past,
    banded,
    blockwise,
    boxed,
    documents,
    fused_onednn,
    native,
    products,
    sdpa,
    sink,
    tiled,
    top_k,
)
from qkv.ops.attention.visible import scores
from qkv.ops.masks import Causal, Full, Sites
from qkv.ops.selection import onednn
from qkv.ops.selection.choices import Choice, by_reference, choose, chosen, fastest
from qkv.ops.selection.counting import declares

TWINS: dict[str, Callable[[Tensor, Tensor, Tensor, AttentionProblem], Tensor]] = {
    "reference": reference.attention,
    "sdpa": sdpa.attention,
    "products": products.attention,
    "sdpa, oneDNN": fused_onednn.attention,
    "tiled": tiled.attention,
    "native": native.attention,
    "banded": banded.attention,
    "banded, at once": banded.at_once,
    "blockwise": blockwise.attention,
    "top k": top_k.attention,
    "after a past": after_past.attention,
}
# Largest number of elements of a dense boolean mask; larger problems run by blocks.
_LARGEST_MASK = 1 << 24
# Number of (head, query, key) triples below which a problem is too small for a timing.
_SMALLEST = 1 << 16
_LONGEST_TIMED = 1024
_PAST = 256
"""Minimum number of past positions in the timing sample of attention after a past."""
# Largest number of scores, over all rows and heads, for which an implementation that stores them is considered.
_MOST_SCORES = 1 << 25


@declares(scores)
def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention O (B, H, N, Dv) by the selected implementation; see ``reference`` for shapes and equation."""
    if by_reference():
        return reference.attention(q, k, v, problem)
    if problem.sink is not None:
        return sink.attention(q, k, v, problem, _selected)
    return _selected(q, k, v, problem)


def _selected(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    parts = documents.parts_of(q, k, problem)
    if parts is not None:
        return documents.attention(q, k, v, problem, parts, _selected)
    twin = choice(q, k, v, problem).twin
    if torch.compiler.is_compiling() and twin in boxed.TWINS:
        return boxed.attention(twin, q, k, v, problem)
    return TWINS[twin](q, k, v, problem)


def choice(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Choice:
    """Select the implementation for these shapes and this mask, with the reason; may time the candidates."""
    num_queries, num_keys = q.shape[2], k.shape[2]
    if problem.values is not None:
        return _fixed(
            "relative values", "reference", "relative values need the attention weights, so all of them are stored"
        )
    if problem.chooses(num_keys):
        return _fixed(
            "top k",
            "top k",
            "the k largest of all visible scores are selected, so all scores are computed, even under a window",
        )
    if problem.softcap is not None:
        return _soft_capped(problem, num_queries)
    if num_queries == 1:
        return _fixed("one query", "sdpa", "one fused pass over the keys")
    if _sees_a_band(problem, num_queries, num_keys):
        return _banded(q, problem)
    if _is_plain(problem, num_queries, num_keys):
        return _plain(q, v, problem)
    if _follows_a_past(q, v, problem):
        return _past(q, v)
    if problem.added is not None and problem.added.requires_grad:
        return _fixed(
            "added scores",
            "sdpa",
            "gradients of the added term need all scores, so they are stored; the mask is merged into it",
        )
    if num_queries * num_keys > _LARGEST_MASK and problem.dropout == 0.0:
        return _fixed(
            "long, irregular mask", "blockwise", "a dense mask would be too large; memory is linear in the length"
        )
    if q.device.type == "cpu" and q.shape[:3].numel() * num_keys <= _MOST_SCORES and max(num_queries, num_keys) > 1:
        return _timed_irregular(q.dtype, max(num_queries, num_keys), torch.is_grad_enabled())
    return _fixed("irregular mask", "sdpa", "the fused kernel does not store scores")


def _fixed(case: str, twin: str, reason: str) -> Choice:
    return choose("attention", case, lambda: Choice("attention", case, twin, reason))


def _banded(q: Tensor, problem: AttentionProblem) -> Choice:
    reason = "each block of queries attends only to its band of keys, so that the cost is linear in the length"
    if q.device.type == "cpu" or problem.added is not None or problem.sites.given is not None:
        return _fixed("window", "banded", reason)
    return _fixed("window, accelerator", "banded, at once", f"{reason}; all blocks are rows of one call")


def _soft_capped(problem: AttentionProblem, num_queries: int) -> Choice:
    if problem.sites.aligned and num_queries > banded.BLOCK and not torch.compiler.is_compiling():
        return _fixed(
            "soft cap, long", "banded", "each block of queries attends to its visible keys only; scores are stored"
        )
    return _fixed("soft cap", "products", "the fused kernels have no soft cap, so scores are stored")


def _plain(q: Tensor, v: Tensor, problem: AttentionProblem) -> Choice:
    """Select the implementation of causal or full self-attention; large problems are timed, small ones are not."""
    if (
        q.device.type != "cpu"
        or problem.dropout
        or q.shape[3] != v.shape[3]
        or q.shape[:3].numel() * v.shape[2] < _SMALLEST
    ):
        return _fixed("sequence", "sdpa", "the fused kernel does not store scores")
    return _timed(q.dtype, q.shape[2], torch.is_grad_enabled(), native.suits(q, v))


def _sees_a_band(problem: AttentionProblem, num_queries: int, num_keys: int) -> bool:
    """Return whether the mask, such as a window, hides at least two thirds of the (query, key) blocks."""
    if not problem.sites.aligned or num_queries < 4 * banded.BLOCK:
        return False
    blocks = banded.bands(problem.mask, num_queries, num_keys)
    visible = sum(-(-(keys.stop - keys.start) // banded.BLOCK) for band in blocks for keys in band)
    return visible < len(blocks) * -(-num_keys // banded.BLOCK) / 3


def _is_plain(problem: AttentionProblem, num_queries: int, num_keys: int) -> bool:
    """Return whether this is causal or full self-attention without ALiBi, an added bias or cached keys."""
    sites = problem.sites
    if problem.slopes is not None or problem.added is not None or not sites.aligned or num_queries != num_keys:
        return False
    return problem.mask.sees_all(sites.span()) or sdpa.is_causal_here(problem)


def _follows_a_past(q: Tensor, v: Tensor, problem: AttentionProblem) -> bool:
    """Return whether this is causal attention of new positions after cached ones, as in chunked prefill."""
    plain = problem.slopes is None and problem.added is None and not problem.dropout
    return (
        (plain and q.shape[3] == v.shape[3] and problem.sites.aligned and sdpa.is_causal_here(problem))
        and (after_past.FEWEST if not native.suits(q, v) else 2) <= q.shape[2] < v.shape[2]
        and q.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def _past(q: Tensor, v: Tensor) -> Choice:
    """Select the implementation of attention of several queries to cached keys and their own.

    There is one timing per number of queries, rounded up to a power of two, at most 1,024.
    """
    name, plain = "causal, after a past", "after a past" if q.shape[2] >= after_past.FEWEST else "sdpa"
    if not native.suits(q, v):
        return _fixed(name, plain, "two passes without a mask tensor: over the cached keys, then over the new keys")
    size = min(1 << (q.shape[2] - 1).bit_length(), _LONGEST_TIMED)
    dtype, past = q.dtype, max(size, _PAST)
    case = f"{name}, {str(dtype).removeprefix('torch.')}, {size} positions"

    def measured() -> Choice:
        heads = max(16, 8192 // past)
        generator = torch.Generator().manual_seed(0)
        shapes = ((1, heads, count, 64) for count in (size, past + size, past + size))
        sample = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        positions = torch.arange(past + size)[None]
        problem = AttentionProblem(Causal(), Sites(positions[:, past:], positions, aligned=True), 0.125)
        runs = {name: _run(TWINS[name], sample, problem, False) for name in (plain, "native")}
        return fastest("attention", case, plain, runs, f"forward, {heads} heads × 64, {past + size} keys")

    return chosen("attention", case) or choose("attention", case, measured, TWINS)


def _timed(dtype: torch.dtype, length: int, training: bool, by_kernel: bool) -> Choice:
    """Select the implementation of causal or full self-attention by timing.

    There is one timing per ``length``, rounded up to a power of two, at most 1,024. by_kernel: True if the native
    kernel is a candidate.
    """
    case, size = _case(dtype, length, training, by_kernel)
    return chosen("attention", case) or choose(
        "attention", case, lambda: _measured(case, dtype, size, training, by_kernel), TWINS
    )


def _case(dtype: torch.dtype, length: int, training: bool, by_kernel: bool) -> tuple[str, int]:
    """Return (name of the timed case, number of positions to time) for ``length`` positions."""
    size = min(1 << (length - 1).bit_length(), _LONGEST_TIMED)
    more = "+" if size == _LONGEST_TIMED else ""
    return (
        f"{'training' if training else 'inference'}, {str(dtype).removeprefix('torch.')}, {size}{more} positions"
        + ", whole vectors" * by_kernel,
        size,
    )


def _timed_irregular(dtype: torch.dtype, length: int, training: bool) -> Choice:
    """Select "sdpa" or "products" for arbitrary masks; timed once per ``length``, rounded up to a power of two."""
    size = min(1 << (length - 1).bit_length(), _LONGEST_TIMED)
    precision = str(dtype).removeprefix("torch.")
    case = f"any mask, {'training' if training else 'inference'}, {precision}, {size} positions"

    def measured() -> Choice:
        heads = max(16, 8192 // size)
        generator = torch.Generator().manual_seed(0)
        q, k, v = (
            torch.randn(2, heads, size, 64, generator=generator).to(dtype).requires_grad_(training) for _ in range(3)
        )
        positions = torch.arange(size)[None]
        real = positions.expand(2, -1).masked_fill(positions >= torch.tensor([[size], [size - size // 4]]), -1)
        problem = AttentionProblem(Full(), Sites(positions, real), 0.125)
        runs = {name: _run(TWINS[name], (q, k, v), problem, training) for name in ("sdpa", "products")}
        direction = "forward and backward" if training else "forward"
        return fastest("attention", case, "sdpa", runs, f"{direction}, {2 * heads} heads × 64, padded")

    return choose("attention", case, measured, TWINS)


def _measured(case: str, dtype: torch.dtype, size: int, training: bool, by_kernel: bool) -> Choice:
    names = ["sdpa", "tiled", *["native"] * by_kernel]
    if dtype == torch.float32 and onednn.available():
        names.append("sdpa, oneDNN")
    # Fewer heads at longer lengths, so that timings stay short.
    heads = max(16, 8192 // size)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, size, 64, generator=generator).to(dtype).requires_grad_(training) for _ in range(3)
    )
    positions = torch.arange(size)[None]
    problem = AttentionProblem(Causal(), Sites(positions, positions, aligned=True), 0.125)
    runs = {name: _run(TWINS[name], (q, k, v), problem, training) for name in names}
    direction = "forward and backward" if training else "forward"
    return fastest("attention", case, "sdpa", runs, f"{direction}, {heads} heads × 64")


def _run(
    twin: Callable[..., Tensor], inputs: Sequence[Tensor], problem: AttentionProblem, training: bool
) -> Callable[[], object]:
    def run() -> None:
        with torch.set_grad_enabled(training), torch.autocast("cpu", enabled=False):
            out = twin(*inputs, problem)
            if training:
                torch.autograd.grad(out, inputs, out.detach())

    return run
