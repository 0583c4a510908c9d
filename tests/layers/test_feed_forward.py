"""Position-wise branches against their formulas and against convolutions; activations against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.activations import QuickGELUActivation

from qkv.layers.context import Context
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.layers.position_wise.feed_forward import FeedForward, GatedFeedForward
from qkv.mixers.registry import build_branch
from qkv.spec import branches as spec
from qkv.spec.parts import Activation

WIDTH, LENGTH = 6, 5
TORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.nn.ReLU(),
    "relu2": lambda x: torch.where(x > 0, x * x, 0.0),
    "gelu": torch.nn.GELU(),
    "gelu_tanh": torch.nn.GELU(approximate="tanh"),
    "silu": torch.nn.SiLU(),
    "quick_gelu": QuickGELUActivation(),
    "sigmoid": torch.nn.Sigmoid(),
    "tanh": torch.nn.Tanh(),
    "identity": torch.nn.Identity(),
}


def built(part: spec.Branch) -> Any:
    branch = build_branch(part, WIDTH).double()
    generator = torch.Generator().manual_seed(2)
    for parameter in branch.parameters():
        parameter.data.normal_(generator=generator)
    return branch


def some(length: int = LENGTH) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def applied(branch: Any, x: Tensor) -> Tensor:
    return branch(x, Context(torch.arange(x.shape[1])[None]))[0]


def test_every_activation_that_a_spec_may_name_is_torch_s() -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    assert set(get_args(Activation)) == ACTIVATIONS.keys() == TORCH.keys()
    for name, activation in ACTIVATIONS.items():
        torch.testing.assert_close(activation(x), TORCH[name](x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", TORCH)
def test_feed_forward_is_its_formula(activation: str, bias: bool) -> None:
    branch: FeedForward = built(spec.FeedForward(hidden=9, activation=activation, bias=bias))  # type: ignore[arg-type]
    w1, b1, w2, b2 = branch.up.weight, branch.up.bias, branch.down.weight, branch.down.bias
    assert (b1 is None, b2 is None) == (not bias, not bias)
    hidden = some() @ w1.t() + (b1 if bias else 0.0)
    torch.testing.assert_close(applied(branch, some()), TORCH[activation](hidden) @ w2.t() + (b2 if bias else 0.0))


def test_feed_forward_equals_two_convolutions_of_width_one() -> None:
    branch = built(spec.FeedForward(hidden=9, activation="relu"))
    hidden = F.conv1d(some().mT, branch.up.weight[..., None], branch.up.bias).relu()
    torch.testing.assert_close(
        applied(branch, some()), F.conv1d(hidden, branch.down.weight[..., None], branch.down.bias).mT
    )


@pytest.mark.parametrize("part", [spec.FeedForward(), spec.GatedFeedForward()], ids=lambda p: p.kind)
def test_shifting_the_sequence_shifts_the_output(part: spec.Branch) -> None:
    branch = built(part)
    torch.testing.assert_close(applied(branch, some().roll(2, 1)), applied(branch, some()).roll(2, 1))


@pytest.mark.parametrize(
    ("name", "activation"), [("GLU", "sigmoid"), ("ReGLU", "relu"), ("GEGLU", "gelu"), ("SwiGLU", "silu")]
)
@pytest.mark.parametrize("bias", [True, False])
def test_gated_feed_forward_is_its_formula(name: str, activation: str, bias: bool) -> None:
    """The gate's weights come first."""
    branch: GatedFeedForward = built(spec.GatedFeedForward(hidden=7, activation=activation, bias=bias))  # type: ignore[arg-type]
    gate, up = F.linear(some(), branch.gate_up.weight, branch.gate_up.bias).split(7, -1)
    expected = F.linear(TORCH[activation](gate) * up, branch.down.weight, branch.down.bias)
    torch.testing.assert_close(applied(branch, some()), expected)
    if name == "GLU":
        torch.testing.assert_close(F.glu(torch.cat((up, gate), -1)), TORCH[activation](gate) * up)


def test_default_widths() -> None:
    assert spec.FeedForward().hidden_at(48) == 192
    assert [spec.GatedFeedForward().hidden_at(width) for width in (12, 13, 96, 768, 4096)] == [32, 64, 256, 2048, 10944]
    branch = built(spec.GatedFeedForward())
    assert branch.gate_up.weight.shape == (2 * 32, WIDTH)


@pytest.mark.parametrize(
    "part", [spec.FeedForward(dropout=0.5), spec.GatedFeedForward(dropout=0.5)], ids=lambda p: p.kind
)
def test_dropout_is_off_in_eval_and_keeps_the_mean_in_training(part: spec.Branch) -> None:
    branch, plain = built(part), built(part.changed(dropout=0.0))
    torch.testing.assert_close(applied(branch.eval(), some()), applied(plain, some()))
    torch.manual_seed(0)
    with torch.no_grad():
        seen = applied(branch.train(), some()[:1, :1].expand(20000, 1, WIDTH)).mean(0)
        expected = applied(plain, some()[:1, :1])[0]
    assert float((seen - expected).abs().max()) < 0.05 * float(expected.abs().max()) + 0.05
