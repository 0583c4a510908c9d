"""Low-rank adapters against the equation in float64, merged and not, and what a state dict says of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qkv.layers.linear.linear import Linear
from qkv.layers.linear.lora import LowRank, adapters, fold, folded, merged, wrap
from qkv.spec.models.adapt import LoRA

ALL = ("fp32", "bf16")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROUNDING = {"fp32": 1e-6, "bf16": 2e-2}
"""Largest error as a share of the largest output: bf16's 8 bits are 2⁻⁸ for each of the few roundings on the way."""


def adapted(part: LoRA, precision: str = "fp32", bias: bool = True) -> LowRank:
    """An adapter that has learned something."""
    torch.manual_seed(3)
    found = LowRank(Linear(12, 7, bias=bias), part)
    nn.init.normal_(found.lora_b, std=0.3)
    return found.to(PRECISIONS[precision]).eval()


def equation(module: LowRank, x: Tensor, scale: float) -> Tensor:
    """W x + b + s B A x, row by row in float64."""
    w, a, b = (t.detach().double() for t in (module.stored, module.lora_a, module.lora_b))
    bias = 0 if module.bias is None else module.bias.detach().double()
    rows = [w @ row + bias + scale * (b @ (a @ row)) for row in x.double()]
    return torch.stack(rows)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(
    ("part", "scale"),
    [(LoRA(rank=3, alpha=6.0), 2.0), (LoRA(rank=4, alpha=6.0, use_rslora=True), 3.0)],
    ids=["lora", "rslora"],
)
def test_the_output_is_the_equation(part: LoRA, scale: float, bias: bool) -> None:
    module, x = adapted(part, bias=bias), torch.randn(5, 12)
    torch.testing.assert_close(module(x).double(), equation(module, x, scale), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ALL)
def test_merged_equals_unmerged_within_rounding_and_unmerging_gives_the_bits_back(precision: str) -> None:
    module = adapted(LoRA(rank=3, alpha=5.0), precision)
    x = torch.randn(9, 12).to(PRECISIONS[precision])
    true, before, weight = equation(module, x, 5 / 3), module(x), module.stored.clone()
    with merged(module):
        assert module.merged
        together = module(x)
        assert not torch.equal(module.stored, weight)
    bound = ROUNDING[precision] * true.abs().max()
    assert (before.double() - true).abs().max() <= bound
    assert (together.double() - true).abs().max() <= bound
    assert torch.equal(module.stored, weight)
    assert torch.equal(module(x), before)


def test_the_scale_goes_into_b_for_inference() -> None:
    module, x = adapted(LoRA(rank=3, alpha=5.0)), torch.randn(5, 12)
    expected = equation(module, x, 5 / 3)
    module.absorb_scale()
    assert module.scale == 1.0
    torch.testing.assert_close(equation(module, x, 1.0), expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(module(x).double(), expected, rtol=1e-5, atol=1e-6)


def test_it_begins_as_the_map_that_it_adapts() -> None:
    base, x = Linear(12, 7), torch.randn(5, 12)
    expected = base(x)
    assert torch.equal(LowRank(base, LoRA())(x), expected)


def test_only_the_two_small_matrices_have_gradients() -> None:
    module = adapted(LoRA(rank=3))
    module(torch.randn(5, 12)).square().sum().backward()
    assert {name for name, p in module.named_parameters() if p.grad is not None} == {"lora_a", "lora_b"}


def test_gradients_reach_the_matrices_through_the_weight_too() -> None:
    module, x = adapted(LoRA(rank=3), bias=False), torch.randn(5, 12)
    module(x).square().sum().backward()
    called = [module.lora_a.grad, module.lora_b.grad]
    module.zero_grad()
    (x @ module.weight.T).square().sum().backward()
    for a, b in zip(called, [module.lora_a.grad, module.lora_b.grad], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_dropout_acts_on_what_a_reads_alone() -> None:
    module, x = adapted(LoRA(rank=3, dropout=0.5)).train(), torch.ones(4000, 12)
    plain, y = nn.functional.linear(x, module.stored, module.bias), module(x)
    assert not torch.equal(y[0], y[1])
    torch.testing.assert_close((y - plain).mean(0), (module.eval()(x) - plain)[0], rtol=0, atol=0.06)


def test_a_state_dict_holds_the_base_weight_merged_or_not() -> None:
    module = adapted(LoRA(rank=3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert before.keys() == {"weight", "bias", "lora_a", "lora_b"}
    module.merge()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    module.load_state_dict(before)
    assert not module.merged
    assert torch.equal(module.stored, before["weight"])


def test_wrapped_by_path_and_folded_again() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Linear(6, 6), nn.ReLU(), Linear(6, 4, bias=False)), torch.randn(3, 6)
    untouched = model[0]
    wrap(model, ["2"], LoRA(rank=2))
    assert list(adapters(model)) == ["2"]
    assert model[0] is untouched
    nn.init.normal_(adapters(model)["2"].lora_b)
    expected, tensors = model(x), dict(model.state_dict())
    fold(model)
    assert type(model[2]) is Linear
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
    alone = folded(tensors, LoRA(rank=2).scale)
    assert alone.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, alone[name]) for name, tensor in model.state_dict().items())
