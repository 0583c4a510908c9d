"""Attention weights of every branch that has them, against loops over plain numbers."""

from __future__ import annotations

import math

import torch
from tests.models.stacks import ids, model, seven

from qkv.layers.signal import Signal
from qkv.lens.views.attention_maps import attention_maps
from qkv.models.build import build
from qkv.spec.branches import GRU, Attention, FeedForward
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Text
from qkv.spec.models.cross import AdditiveAttention, CrossAttention
from qkv.spec.parts import NoPositions

BOTH = Block(branches=(Attention(mask=Full()), FeedForward()))
ENCODER = Encoder(frontend=Text(vocab_size=9), blocks=(BOTH,))


@torch.no_grad()
def test_weights_equal_a_loop_over_queries_and_keys() -> None:
    torch.manual_seed(0)
    alone = model(Block(branches=(Attention(num_heads=2, bias=False),)), frontend=Text(vocab_size=9))
    m = build(alone).double()
    rows = ids(2, 5) % 9
    (found,) = attention_maps(m, rows)
    assert (found.path, found.stack, found.layer, found.kind, found.part) == (
        "blocks.0.branches.0",
        "model",
        0,
        "self",
        "attention",
    )
    x, context = m.embed(Signal(rows))
    x = m.blocks[0].branches[0].norm(x, context)  # type: ignore[operator, index, union-attr]
    q, k = m.branches[0].qkv(x)[..., :32].split(16, -1)  # type: ignore[operator]
    for b in range(2):
        for h in range(2):
            own = slice(8 * h, 8 * h + 8)
            for t in range(5):
                scores = [float(q[b, t, own] @ k[b, s, own]) / math.sqrt(8) for s in range(t + 1)]
                total = sum(map(math.exp, scores))
                expected = [math.exp(s) / total for s in scores] + [0.0] * (4 - t)
                torch.testing.assert_close(found.weights[b, h, t], torch.tensor(expected, dtype=torch.float64))


def test_every_stack_and_memory_is_named() -> None:
    reads = Block(branches=(Attention(), CrossAttention(num_heads=4), GRU(), AdditiveAttention()))
    m = build(model(reads, num_layers=2, encoder=ENCODER, frontend=Text(vocab_size=9)))
    found = attention_maps(m, ids(2, 3) % 9, source=ids(2, 5) % 9)
    names = [(each.stack, each.layer, each.kind, each.part, tuple(each.weights.shape[1:])) for each in found]
    decoder = [
        ("self", "attention", (4, 3, 3)),
        ("cross", "cross_attention", (4, 3, 5)),
        ("cross", "additive_attention", (1, 3, 5)),
    ]
    expected = [("encoder", 0, "self", "attention", (4, 5, 5))]
    assert names == expected + [("model", layer, *rest) for layer in (0, 1) for rest in decoder]


def test_a_repeated_block_has_a_map_for_each_layer() -> None:
    m = build(model(Block(branches=(Attention(),)), Block(branches=(Attention(), GRU())), rounds=2, num_layers=2))
    found = attention_maps(m, ids(1, 4))
    assert [(each.path[7], each.layer, each.call) for each in found] == [
        ("0", 0, 0),
        ("1", 1, 0),
        ("0", 2, 1),
        ("1", 3, 1),
    ]
    assert not torch.equal(found[0].weights, found[2].weights)


def test_a_model_without_attention_has_none() -> None:
    bare = model(Block(branches=(GRU(),)), frontend=Text(vocab_size=9, positions=NoPositions()))
    assert attention_maps(build(bare), ids(1, 4) % 9) == []
    assert len(attention_maps(build(seven()), ids())) == 2
