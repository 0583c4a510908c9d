"""Averages over depth: their weights, their beginning, their cost, and what they cannot be joined with."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.costs.cost import cost
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.model import Block, Latents, Model, Text
from qkv.spec.models.blocks import DepthAverage
from qkv.spec.models.cross import CrossAttention

IDS = torch.arange(12).view(2, 6) % 9


def spec(**fields: Any) -> Model:
    return Model(**{"width": 8, "num_layers": 6, "context_length": 8, "frontend": Text(vocab_size=9), **fields})


def built(**fields: Any) -> Transformer:
    return build(spec(init_std=0.3, **fields)).double()


@pytest.mark.parametrize(
    ("average", "sizes"),
    [
        (DepthAverage(), {"1": 2, "2": 3, "3": 4, "4": 5, "5": 6, "6": 7}),
        (DepthAverage(dilation=3), {"1": 1, "2": 1, "3": 2, "4": 2, "5": 2, "6": 3}),
        (DepthAverage(period=2), {"2": 3, "4": 5, "6": 7}),
        (DepthAverage(dilation=4, period=3), {"3": 1, "6": 2}),
    ],
)
def test_weights_of_each_average(average: DepthAverage, sizes: dict[str, int]) -> None:
    found = built(depth_average=average).depth_average
    assert found is not None
    assert {name: len(weights) for name, weights in found.weights.items()} == sizes
    assert all(weights.tolist() == [1.0] + [0.0] * (len(weights) - 1) for weights in found.weights.values())


def test_nothing_changes_before_training_and_every_weight_has_a_gradient() -> None:
    with_average, plain = built(depth_average=DepthAverage()), built()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, with_average.state_dict()[name])
    out = with_average(IDS)[0]
    assert torch.equal(out, plain(IDS)[0])
    out.square().sum().backward()
    assert with_average.depth_average is not None
    assert all(weights.grad.all() for weights in with_average.depth_average.weights.values())  # type: ignore[union-attr]


def test_a_block_reads_the_average() -> None:
    """Weights that choose one earlier output: what the third block reads is then the input of the first."""
    model = built(depth_average=DepthAverage(), num_layers=3)
    assert model.depth_average is not None
    model.depth_average.weights["2"].data.copy_(torch.tensor([0.0, 0.0, 1.0]))
    seen: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(IDS)
    assert torch.equal(seen[2], seen[0])
    assert not torch.equal(seen[1], seen[0])


def test_recomputed_activations_give_the_same_gradients() -> None:
    models = [built(depth_average=DepthAverage(dilation=2))]
    models.append(copy.deepcopy(models[0]))
    models[1].recompute_blocks(True)
    for model in models:
        model(IDS)[0].square().sum().backward()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_repeated_layers_of_latents_have_weights_of_their_own() -> None:
    latents = Latents(
        count=3,
        num_layers=2,
        rounds=3,
        once=1,
        blocks=(Block(branches=(CrossAttention(),)), Block(branches=(FeedForward(),))),
        depth_average=DepthAverage(),
    )
    model = built(latents=latents, num_layers=None, blocks=(Block(branches=(CrossAttention(),)),))
    assert model.latents is not None
    assert model.latents.depth_average is not None
    assert list(model.latents.depth_average.weights) == ["1", "2", "3", "4"]
    assert cost(model.spec).parameters == sum(p.numel() for p in model.parameters())


def test_cost_counts_its_weights_and_nothing_else() -> None:
    plain, averaged = cost(spec(num_layers=20)), cost(spec(num_layers=20, depth_average=DepthAverage()))
    assert averaged.parameters == plain.parameters + sum(range(2, 22))
    assert averaged.parts["depth average"].parameters == sum(range(2, 22))
    assert averaged.forward_flops == plain.forward_flops
    assert averaged.state_bytes() == plain.state_bytes()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"depth_average": {"period": 7}},
            "a stack of 6 layers has no average after 7 blocks; give at most the number of layers",
        ),
        (
            {"depth_average": {}, "blocks": [{"residual": "reversible"}], "head": "language_model(tied=false)"},
            "reversible blocks do not store the outputs to average; leave it out, or change the residual",
        ),
        ({"depth_average": {"dilation": 0}}, "dilation"),
    ],
)
def test_what_has_no_average_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Model.parse({"width": 8, "num_layers": 6, **fields})
