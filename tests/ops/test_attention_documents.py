"""Attention in packed rows, document by document, against the reference with its mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.ops.attention import reference
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import documents
from qkv.ops.masks import Causal, Full, Mask, Sites, Window

ROWS, HEADS, GROUPS, WIDTH, LENGTH = 2, 4, 2, 8, 160
SEGMENTS = torch.tensor([[0] * 50 + [1] * 70 + [2] * 40, [5] * 100 + [3] * 30 + [0] * 30])


def inputs() -> list[Tensor]:
    torch.manual_seed(1)
    heads = (HEADS, GROUPS, GROUPS)
    return [torch.randn(ROWS, n, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True) for n in heads]


def reset(segments: Tensor) -> Tensor:
    """Positions that begin at 0 in each document."""
    return torch.stack(
        [torch.cat([torch.arange(int(n)) for n in row.unique_consecutive(return_counts=True)[1]]) for row in segments]
    )


def sites(positions: Tensor, segments: Tensor, padding: int = 0) -> Sites:
    """Packed rows, of which the last has ``padding`` at its end."""
    key = positions.expand(ROWS, -1).clone()
    key[-1, LENGTH - padding :] = -1
    return Sites(positions, key, segments, segments)


@pytest.mark.parametrize("mask", [Causal(), Full()])
@pytest.mark.parametrize("padding", [0, 20])
@pytest.mark.parametrize("resets", [True, False])
def test_documents_attend_to_themselves(mask: Mask, padding: int, resets: bool) -> None:
    positions = reset(SEGMENTS) if resets else torch.arange(LENGTH)[None]
    q, k, v = inputs()
    problem = AttentionProblem(mask, sites(positions, SEGMENTS, padding), 0.3)
    assert documents.parts_of(q, k, problem) is not None
    real = (problem.sites.key >= 0)[:, None, :, None]
    ours, theirs = (real * run(q, k, v, problem) for run in (attention, reference.attention))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    upstream = torch.randn_like(ours)
    grads = (torch.autograd.grad(each, (q, k, v), upstream) for each in (ours, theirs))
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-10)


def test_parts_are_the_documents_and_the_padding() -> None:
    q, k, _ = inputs()
    problem = AttentionProblem(Causal(), sites(torch.arange(LENGTH)[None], SEGMENTS, 20), 0.3)
    parts = documents.parts_of(q, k, problem)
    assert parts == (((50, True), (70, True), (40, True)), ((100, True), (30, True), (10, True), (20, False)))


TWICE = torch.where(SEGMENTS == 2, 0, SEGMENTS)
MANY = torch.arange(LENGTH).expand(ROWS, -1) // 4


@pytest.mark.parametrize(
    ("positions", "segments", "mask"),
    [
        (torch.arange(LENGTH)[None], TWICE, Causal()),
        (torch.arange(LENGTH)[None].flip(1), SEGMENTS, Causal()),
        (torch.arange(LENGTH)[None], MANY, Causal()),
        (torch.arange(LENGTH)[None], SEGMENTS, Window(3)),
    ],
    ids=["a document in two places", "positions backwards", "many documents", "a window"],
)
def test_other_rows_use_the_mask(positions: Tensor, segments: Tensor, mask: Mask) -> None:
    q, k, v = inputs()
    problem = AttentionProblem(mask, sites(positions, segments), 0.3)
    assert documents.parts_of(q, k, problem) is None
    torch.testing.assert_close(
        attention(q, k, v, problem), reference.attention(q, k, v, problem), rtol=1e-9, atol=1e-10
    )


def test_no_scores_are_remembered() -> None:
    q, k, v = inputs()
    problem = AttentionProblem(Causal(), sites(torch.arange(LENGTH)[None], SEGMENTS), 0.3)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        attention(q, k, v, problem)
    assert max(saved) < HEADS * 100 * 100
