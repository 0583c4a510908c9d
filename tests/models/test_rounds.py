"""Layers applied several times: equal to as many layers of equal weights, in every way of reading, at the same cost."""

from __future__ import annotations

import pytest
import torch
from tests.models.stacks import ids, model, seven
from torch import Tensor

from qkv.costs.cost import cost
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.model import Block, Encoder, Model
from qkv.spec.models.cross import CrossAttention
from qkv.spec.models.segmentation import RecurrentMemory
from qkv.spec.parts import Rope

BLOCK = Block(branches=(Attention(num_heads=2, relative=Rope()), FeedForward(hidden=24)))
ROUNDS = 3


def pair(spec: Model) -> tuple[Transformer, Transformer]:
    """A model with rounds, and one with as many layers, whose weights are copies."""
    ours = build(spec.changed(rounds=ROUNDS)).double().eval()
    deep = build(spec.changed(num_layers=ROUNDS * spec.depth)).double().eval()
    tensors = ours.state_dict()
    for name, tensor in deep.state_dict().items():
        head, _, rest = name.partition(".")
        layer, _, leaf = rest.partition(".")
        tensor.copy_(tensors[f"blocks.{int(layer) % spec.depth}.{leaf}" if head == "blocks" else name])
    return ours, deep


SPECS = {"one layer": model(BLOCK), "two layers": model(BLOCK, Block()), "seven mixers": seven()}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_outputs_and_gradients_are_those_of_as_many_layers(spec: Model) -> None:
    ours, deep = pair(spec)
    out, wanted = ours(ids())[0], deep(ids())[0]
    torch.testing.assert_close(out, wanted)
    out.square().sum().backward()
    wanted.square().sum().backward()
    summed = dict[str, Tensor]()
    for name, weight in deep.named_parameters():
        head, _, rest = name.partition(".")
        layer, _, leaf = rest.partition(".")
        own = f"blocks.{int(layer) % spec.depth}.{leaf}" if head == "blocks" else name
        assert weight.grad is not None
        summed[own] = summed.get(own, 0) + weight.grad
    for name, weight in ours.named_parameters():
        torch.testing.assert_close(weight.grad, summed[name], msg=name)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_decoding_in_pieces_equals_one_call(spec: Model) -> None:
    ours, _ = pair(spec)
    rows = ids(length=12)
    with torch.no_grad():
        whole, _ = ours(rows)
        state, parts = ours.init_state(len(rows)), list[Tensor]()
        for begin, end in ((0, 5), (5, 6), (6, 7), (7, 12)):
            part, state = ours(Signal(rows[:, begin:end]), state)
            parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_a_token_in_single_precision_equals_that_of_as_many_layers() -> None:
    """Where a native step computes all blocks, it goes through them as often."""
    ours, deep = (each.float() for each in pair(SPECS["one layer"]))
    with torch.no_grad():
        states = [each(ids(), each.init_state(2))[1] for each in (ours, deep)]
        steps = [each(ids(length=1), state)[0] for each, state in zip((ours, deep), states, strict=True)]
    torch.testing.assert_close(*steps)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_cost_is_that_of_as_many_layers_but_for_the_weights(spec: Model) -> None:
    ours, deep = spec.changed(rounds=ROUNDS), spec.changed(num_layers=ROUNDS * spec.depth)
    shared, whole = cost(ours, 2, 16), cost(deep, 2, 16)
    assert (shared.forward_flops, shared.train_flops) == (whole.forward_flops, whole.train_flops)
    assert shared.step_flops() == whole.step_flops()
    assert shared.state_bytes() == whole.state_bytes()
    assert build(ours).state_bytes(16) == build(deep).state_bytes(16)
    assert shared.parameters == sum(p.numel() for p in build(ours).parameters()) < whole.parameters


def test_rounds_are_refused_where_layers_are_paired_or_applied_by_others() -> None:
    with pytest.raises(SpecError, match=r"rounds: 1000 rounds of 11 layers are more than 10000"):
        model(BLOCK).changed(num_layers=11, rounds=1000)
    with pytest.raises(SpecError, match="applies the blocks once"):
        model(BLOCK).changed(segmentation=RecurrentMemory(), rounds=2)
    reading = Block(branches=(CrossAttention(num_heads=2), FeedForward()))
    with pytest.raises(SpecError, match="rounds apply each layer repeatedly"):
        model().changed(blocks=(reading,), encoder=Encoder(memory="layers", frontend=model().frontend, rounds=2))
