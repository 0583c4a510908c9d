"""HyperAttention: exact rows, new samples in training, refusal of inexact decoding, cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.mixers.modules import applied, built, some

from qkv.costs.cost import Cost, cost
from qkv.costs.measuring.measure import count_flops
from qkv.spec.branches import Attention
from qkv.spec.errors import SpecError
from qkv.spec.masks import Causal, Full
from qkv.spec.mixers.hyper_attention import HyperAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Sinusoidal
from qkv.spec.recipe import Recipe


def as_attention(branch: Any, mask: Any) -> Any:
    exact = built(Attention(num_heads=2, mask=mask))
    exact.qkv.load_state_dict(branch.qkv.state_dict())
    exact.output.load_state_dict(branch.output.state_dict())
    return exact


@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize(
    "fields",
    [{"exact_up_to": 9}, {"exact_up_to": 2, "block": 9}, {"exact_up_to": 2, "block": 2, "samples": 9}],
    ids=["short rows", "one block", "all sampled"],
)
def test_limits_are_exact_attention(fields: dict[str, int], mask: str) -> None:
    branch = built(HyperAttention(num_heads=2, mask=mask, **fields))  # type: ignore[arg-type]
    exact, x = as_attention(branch, Causal() if mask == "causal" else Full()), some(2, 9)
    lengths = torch.tensor([9, 5])
    got, expected = applied(branch, x, lengths), applied(exact, x, lengths)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(got[1, :5], expected[1, :5], rtol=1e-11, atol=1e-11)
    fewer = built(HyperAttention(num_heads=2, mask=mask, exact_up_to=2, block=2, samples=2))  # type: ignore[arg-type]
    assert (applied(fewer, x) - applied(exact, x)).abs().max() > 1e-4


@pytest.mark.parametrize("sampling", ["uniform", "value_norm"])
def test_training_draws_new_keys_in_each_call_and_evaluation_does_not(sampling: str) -> None:
    branch = built(HyperAttention(num_heads=2, block=2, samples=2, exact_up_to=2, sampling=sampling))  # type: ignore[arg-type]
    x = some(2, 11)
    assert torch.equal(applied(branch.eval(), x), applied(branch, x))
    branch.train()
    assert not torch.equal(applied(branch, x), applied(branch, x))
    seen = []
    for _ in range(2):
        torch.manual_seed(4)
        seen.append(applied(branch, x))
    assert torch.equal(*seen)


@pytest.mark.parametrize("sampling", ["uniform", "value_norm"])
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_padding_has_no_effect(mask: str, sampling: str) -> None:
    part = HyperAttention(num_heads=2, block=2, samples=3, exact_up_to=3, mask=mask, sampling=sampling)  # type: ignore[arg-type]
    branch, x, lengths = built(part).eval(), some(4, 13), [13, 7, 3, 0]
    y = applied(branch, x, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(y[row : row + 1, :length], applied(branch, x[row : row + 1, :length]))


def test_a_task_that_writes_refuses_rows_longer_than_what_is_exact() -> None:
    def recipe(mixer: str) -> dict[str, Any]:
        return {"data": "x", "model": {"context_length": 600, "blocks": [{"branches": [mixer]}]}}

    with pytest.raises(SpecError, match=r"'hyper_attention' is exact for rows of up to 512 positions, but .* is 600"):
        Recipe.parse(recipe("hyper_attention"))
    assert Recipe.parse(recipe("hyper_attention(exact_up_to=600)")).model.decodes
    assert Recipe.parse(recipe("hyper_attention(inexact_decoding=true)")).model.decodes
    with pytest.raises(SpecError, match="this branch sees later positions"):
        Recipe.parse(recipe("hyper_attention(mask=full)"))


def counted(part: HyperAttention, length: int) -> Cost:
    text = Text(vocab_size=50, positions=Sinusoidal())
    return cost(Model(width=32, context_length=24, frontend=text, blocks=(Block(branches=(part,)),)), 2, length)


@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("sampling", ["uniform", "value_norm"])
def test_flops_are_those_of_torchs_counter(mask: str, sampling: str) -> None:
    found = counted(HyperAttention(block=4, samples=3, exact_up_to=5, mask=mask, sampling=sampling), 24)  # type: ignore[arg-type]
    assert (found.forward_flops, found.train_flops) == count_flops(found)


def test_cost_follows_the_length() -> None:
    full = HyperAttention(mask="full", block=64, samples=64, exact_up_to=64)
    assert counted(full, 4096).forward_flops == 4 * counted(full, 1024).forward_flops
    causal = HyperAttention(block=64, samples=64, exact_up_to=64)
    assert counted(causal, 4096).forward_flops < 6 * counted(causal, 1024).forward_flops
