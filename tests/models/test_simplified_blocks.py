"""Simplified blocks: shaped attention without values and output map, no skip connection."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.ops.attention_cases import MASKS, SITES, Case

from qkv.costs.cost import cost
from qkv.layers.branch import matrices
from qkv.layers.context import Context
from qkv.mixers.registry import build_branch
from qkv.models.build import build
from qkv.ops.attention import reference
from qkv.ops.attention.twins.uniform import by_mask, uniform
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoResidual

WIDTH = 64
SHAPED = Attention(values="identity", output="none", shaped=True, bias=False)
SIMPLE = Block(branches=(SHAPED, FeedForward(bias=False)), order="parallel", residual=NoResidual())
PLAIN = Block(branches=(Attention(bias=False), FeedForward(bias=False)))


def model(block: Block, **fields: Any) -> Model:
    return Model(**{"width": WIDTH, "num_layers": 6, "frontend": Text(vocab_size=9), "blocks": (block,), **fields})


@pytest.mark.parametrize("mask", [name for name in MASKS if "by head" not in name and "head," not in name])
@pytest.mark.parametrize("sites", SITES)
def test_uniform_attention_has_equal_scores(mask: str, sites: str) -> None:
    problem, (q, k, v) = (case := Case(mask, sites)).problem(), case.inputs()
    expected = reference.attention(0 * q[:, ::2], k, v, problem)
    torch.testing.assert_close(uniform(v, problem), expected)
    torch.testing.assert_close(by_mask(v, problem).expand_as(expected), expected)


def test_a_sixth_of_the_weights_of_a_block_is_gone() -> None:
    simple, plain = (matrices(build(model(block))) for block in (SIMPLE, PLAIN))
    assert sum(p.numel() for p in simple) * 12 == sum(p.numel() for p in plain) * 10
    simple, plain = (cost(model(block), 2) for block in (SIMPLE, PLAIN))
    assert plain.forward_flops - simple.forward_flops == 6 * 2 * 256 * 2 * 2 * WIDTH**2


@pytest.mark.parametrize("mask", [Attention().mask, Full()])
def test_at_equal_scores_attention_gives_what_it_reads(mask: Any) -> None:
    branch, x = build_branch(SHAPED.changed(mask=mask), WIDTH), torch.randn(2, 7, WIDTH)
    branch.qkv.weight.data[:WIDTH] = 0  # type: ignore[union-attr, operator, index]
    torch.testing.assert_close(branch(x, Context(torch.arange(7)[None]))[0], x)


def test_a_shape_of_attention_alone_is_attention() -> None:
    branches = [build_branch(Attention(shaped=shaped), WIDTH) for shaped in (True, False)]
    branches[1].load_state_dict({k: v for k, v in branches[0].state_dict().items() if not k.startswith("shape.")})
    branches[0].shape.itself.data.zero_()  # type: ignore[union-attr, operator]
    branches[0].shape.uniform.data.zero_()  # type: ignore[union-attr, operator]
    x, context = torch.randn(2, 7, WIDTH), Context(torch.arange(7)[None])
    torch.testing.assert_close(branches[0](x, context)[0], branches[1](x, context)[0])


def test_parallel_branches_without_residual_are_added() -> None:
    net = build(model(SIMPLE, num_layers=1, init_std=0.3))
    (block,) = net.blocks
    x, context = torch.randn(2, 7, WIDTH), Context(torch.arange(7)[None])
    parts = [slot.body(block.norm(x, context), context)[0] for slot in block.branches]  # type: ignore[union-attr, operator]
    torch.testing.assert_close(block(x, context)[0], parts[0] + parts[1])


def test_the_state_of_identity_values_is_what_is_read() -> None:
    branch = build_branch(SHAPED, WIDTH)
    assert branch.state_bytes(10) == 10 * 2 * WIDTH * 4


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"values": "identity", "num_kv_heads": 2}, "2 heads of 16 features are not the 64 of the model"),
        (
            {"output": "none", "value_dim": 8},
            "4 heads of 8 features are not the 64 of the model; leave output",
        ),
    ],
)
def test_heads_that_do_not_fit_the_width_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Model.parse({"width": WIDTH, "blocks": [{"branches": [{"kind": "attention", **fields}]}]})
