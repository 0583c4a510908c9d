"""Similarity of hidden states, against loops over vectors of the stream."""

from __future__ import annotations

import math

import pytest
import torch
from tests.models.stacks import ids, model

from qkv.layers.signal import Signal
from qkv.lens.views.hidden_similarity import hidden_similarity
from qkv.lens.views.stream import read_stream
from qkv.models.build import build
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Text
from qkv.spec.models.cross import CrossAttention
from qkv.system.errors import UserError


def test_cosines_equal_a_loop() -> None:
    m = build(model(num_layers=2)).double()
    rows = Signal(ids(2, 6), lengths=torch.tensor([6, 4]))
    found = hidden_similarity(m, rows)
    vectors = [x.tolist() for x in read_stream(m, rows).vectors]

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    for p, x in enumerate(vectors):
        for b, length in enumerate((6, 4)):
            pairs = [[cosine(x[b][s], x[b][t]) for t in range(length)] for s in range(length)]
            torch.testing.assert_close(found.cosines[p, b, :length, :length].tolist(), pairs)
            apart = [pairs[s][t] for s in range(length) for t in range(length) if s != t]
            assert float(found.mean[p, b]) == pytest.approx(sum(apart) / len(apart))
            between = [cosine(x[b][t], vectors[0][b][t]) for t in range(length)]
            assert float(found.depth[b, 0, p]) == pytest.approx(sum(between) / length)
            sizes = [math.hypot(*x[b][t]) for t in range(length)]
            assert float(found.norms[p, b]) == pytest.approx(sum(sizes) / length)
    assert found.cosines[:, 1, 4:].isnan().all()


def test_an_encoder_has_a_stream_of_its_own() -> None:
    encoder = Encoder(frontend=Text(vocab_size=9), blocks=(Block(branches=(Attention(mask=Full()), FeedForward())),))
    m = build(model(Block(branches=(CrossAttention(num_heads=2),)), encoder=encoder))
    source = Signal(ids(2, 5) % 9, lengths=torch.tensor([5, 2]))
    found = hidden_similarity(m, ids(2, 3), source, stack="encoder")
    assert [point.part for point in found.points] == ["embedding", "attention", "feed_forward"]
    assert found.cosines[0, 1].isfinite().sum() == 4
    assert hidden_similarity(m, ids(2, 3), source).cosines.shape == (2, 2, 3, 3)
    with pytest.raises(UserError, match="the model has no encoder"):
        hidden_similarity(build(model()), ids(), stack="encoder")
