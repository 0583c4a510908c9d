"""Statements of ``docs/mistakes.md`` that no other test covers."""

from __future__ import annotations

import torch

from qkv.ops.attention.reference import AttentionProblem, attention
from qkv.ops.masks import Full, Sites


def test_an_output_stands_where_its_query_stands() -> None:
    """Queries come from the decoder: its next layer needs one vector per position, in order, for any source length."""
    generator = torch.Generator().manual_seed(0)
    decoder, source = (torch.randn(1, 1, n, 8, generator=generator) for n in (3, 5))
    problem = AttentionProblem(Full(), Sites(torch.arange(3)[None], torch.arange(5)[None]), 1.0)
    out = attention(decoder, source, source, problem)
    assert out.shape == decoder.shape
    torch.testing.assert_close(attention(decoder.flip(2), source, source, problem), out.flip(2))
    torch.testing.assert_close(attention(decoder, source.flip(2), source.flip(2), problem), out)
    wrong = attention(
        source, decoder, decoder, AttentionProblem(Full(), Sites(torch.arange(5)[None], torch.arange(3)[None]), 1.0)
    )
    assert wrong.shape == source.shape
