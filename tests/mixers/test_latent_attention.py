"""Latent attention: its two forms, its state, and what it is without compression."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contracts.subjects import OneBranch, scrambled
from torch import Tensor

from qkv.costs.cost import cost
from qkv.layers.context import Context
from qkv.layers.tap import Recorder
from qkv.mixers.registry import build_branch
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Causal, Sites, Window
from qkv.spec.branches import Attention, Branch
from qkv.spec.errors import SpecError
from qkv.spec.mixers.latent_attention import LatentAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoNorm
from qkv.state.arrival import Arrival
from qkv.state.tree import nbytes

WIDTH = 16


def built(part: Branch) -> Any:
    torch.manual_seed(0)
    return scrambled(build_branch(part, WIDTH), torch.float64)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(3)], ids=["causal", "window"])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("value_dim", [2, 9])
def test_the_absorbed_form_is_the_expanded_one(mask: Any, queries: int, value_dim: int) -> None:
    branch = built(LatentAttention(num_heads=2, kv_rank=5, head_dim=3, rope_dim=4, value_dim=value_dim))
    q, kept = normal(2, 2, queries, 7).requires_grad_(), normal(2, 1, 6, 9).requires_grad_()
    steps = torch.arange(6)[None]
    sites = Sites(torch.tensor([[5], [2]]) if queries == 1 else steps[:, 3:], steps, aligned=queries > 1)
    problem, context = AttentionProblem(mask, sites, 0.4), Context(sites.query)
    outs = [form(q, kept, problem, context) for form in (branch.absorbed, branch.expanded)]
    torch.testing.assert_close(*outs)
    seen, leaves = normal(*outs[0].shape), (q, kept, branch.up.weight)
    for one, other in zip(*(torch.autograd.grad((out * seen).sum(), leaves) for out in outs), strict=True):
        torch.testing.assert_close(one, other)


def test_few_queries_are_absorbed_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, forms = OneBranch(LatentAttention(kv_rank=32, head_dim=8)), []
    for name in ("absorbed", "expanded"):
        own = getattr(type(subject.module), name)
        monkeypatch.setattr(
            type(subject.module), name, lambda *given, own=own, name=name: forms.append(name) or own(*given)
        )
    _, state = subject.call(subject.inputs(2, 20), subject.start(2))
    subject.call(subject.inputs(2, 1), state)
    subject.whole(subject.inputs(2, 1))
    assert forms == ["expanded", "absorbed", "expanded"]


def test_without_compression_and_rotation_it_is_multi_head_attention() -> None:
    """c = x: maps from c to keys and values are those of attention."""
    latent = built(LatentAttention(kv_rank=WIDTH, rope_dim=0, norm=NoNorm()))
    plain = built(Attention(bias=False))
    latent.down.weight.data.copy_(torch.eye(WIDTH))
    with torch.no_grad():
        plain.qkv.weight.copy_(torch.cat((latent.query.weight, latent.up.weight)))
        plain.output.weight.copy_(latent.output.weight)
    x = normal(2, 7, WIDTH)
    context = Context(torch.arange(7)[None])
    torch.testing.assert_close(latent(x, context)[0], plain(x, context)[0])


def test_the_state_is_one_vector_and_one_rotated_part() -> None:
    branch = built(LatentAttention(kv_rank=12, head_dim=8, rope_dim=6, num_heads=8))
    assert branch.state_bytes(100, 3) == nbytes(branch.init_state(3, 100)) == 3 * 100 * (12 + 6) * 8
    assert branch.rewindable


def test_scores_and_weights_of_both_forms_are_those_of_the_heads() -> None:
    subject, seen = OneBranch(LatentAttention(kv_rank=6, head_dim=8)), Recorder("scores", "weights")
    x = subject.inputs(2, 7)
    subject.module.assign_name("it")
    subject.module(x, Context(torch.arange(7)[None], tap=seen))
    whole = dict(seen)
    torch.testing.assert_close(whole["it.weights"].sum(-1), torch.ones(2, 4, 7, dtype=torch.float64))
    _, state = subject.call(x[:, :6], subject.start(2))
    subject.module(x[:, 6:], Context(torch.tensor([[6]]), arrival=Arrival(state.positions, 1), tap=seen), state.inner)
    for path, value in whole.items():
        torch.testing.assert_close(seen.calls(path)[1], value[:, :, 6:])


def test_cost_of_a_step_grows_with_the_rank_and_not_with_the_heads_values() -> None:
    def of(length: int, **fields: Any) -> int:
        part = LatentAttention(num_heads=4, kv_rank=32, head_dim=16, rope_dim=8, **fields)
        model = Model(width=64, context_length=4096, frontend=Text(vocab_size=9), blocks=(Block(branches=(part,)),))
        return cost(model).step_flops(length)

    assert of(4000) - of(3000) == 1000 * 4 * 4 * (32 + 8)
    assert of(4000, value_dim=32) - of(3000, value_dim=32) == 1000 * 4 * 4 * (32 + 8)


def test_bad_sizes_are_refused_in_a_sentence() -> None:
    with pytest.raises(SpecError, match="RoPE rotates pairs of features, not 3; make it even"):
        LatentAttention.parse({"rope_dim": 3})
    with pytest.raises(SpecError, match="heads do not divide the width"):
        Model.parse({"width": 10, "blocks": [{"branches": [{"kind": "latent_attention"}]}]})
