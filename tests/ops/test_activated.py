"""Linear layer and activation in one operation against float64, and where they stay two."""

from __future__ import annotations

import pytest
import torch
from tests.ops.clock import inject, quickest
from tests.ops.compare import assert_same
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from qkv.layers.linear.linear import Linear, activated_by
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.ops.activation import Activation
from qkv.ops.linear import activated as module
from qkv.ops.linear import operator
from qkv.ops.linear.activated import activated, apart, fused
from qkv.ops.selection.choices import all_choices

needs_operator = pytest.mark.skipif(not operator.available(), reason="this build of torch lacks the operator")
NAMES = [name for name, found in ACTIVATIONS.items() if isinstance(found, Activation)]
SIZES = [(1, 1, 1), (7, 33, 65), (65, 300, 257), (130, 128, 256)]


def of(name: str) -> Activation:
    found = ACTIVATIONS[name]
    assert isinstance(found, Activation)
    return found


def sample(rows: int, inner: int, outer: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + inner + outer)
    x, weight, bias = (torch.randn(s, generator=generator) for s in ((rows, inner), (outer, inner), (outer,)))
    return 3 * x, weight * inner**-0.5, bias


@pytest.fixture
def in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused operator is said to be the fastest wherever it is timed."""
    inject(monkeypatch, quickest("oneDNN operator"))


@needs_operator
@pytest.mark.parametrize("name", module._FUSED)
@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_the_fused_operator_equals_float64(name: str, size: tuple[int, int, int]) -> None:
    x, weight, bias = sample(*size)
    for b in (None, bias, bias.repeat_interleave(2)[::2]):
        expected = apart(x.double(), weight.double(), None if b is None else b.double(), of(name))
        for rows in (x, x[None], x.t().contiguous().t()):
            assert_same(fused(rows, weight, b, of(name)), expected.view(*rows.shape[:-1], -1))


@needs_operator
@pytest.mark.parametrize("name", module._FUSED)
@torch.no_grad()
def test_what_is_not_a_number_stays_so_and_in_its_row(name: str) -> None:
    x, weight, bias = sample(70, 64, 256)
    x[3, 5] = float("nan")
    found = fused(x, weight, bias, of(name))
    assert found[3].isnan().all()
    assert found[torch.arange(70) != 3].isfinite().all()


@needs_operator
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_chosen_way_equals_both_operations(in_one: None, name: str) -> None:
    for size in ((70, 128, 256), (3, 128, 256), (70, 6, 9), (0, 128, 256)):
        x, weight, bias = sample(*size)
        for w in (weight, weight.t().contiguous().t()):  # as views of a file can be
            found = activated(x, w, bias, of(name))
            assert_same(found, apart(x.double(), weight.double(), bias.double(), of(name)))
    made = {(c.op, c.case): c.twin for c in all_choices()}
    assert made.get((module._OP, f"{name}, many rows")) == ("oneDNN operator" if name in module._FUSED else None)


@needs_operator
def test_gradients_other_types_counters_and_hooks_take_two_operations(
    in_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = sample(70, 128, 256)
    layer = Linear(128, 256)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
        expected = activated_by(of("gelu"), layer, x)
        assert [c.case for c in all_choices() if c.op == module._OP] == ["gelu, many rows"]
    monkeypatch.setattr(module, "fused", lambda *_: pytest.fail("one operation"))
    assert_same(activated_by(of("gelu"), layer, x).detach(), expected)
    activated_by(of("gelu"), layer, x).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert activated_by(of("gelu"), layer, x).dtype == torch.bfloat16
        assert activated_by(of("gelu"), layer.to(torch.bfloat16), x.bfloat16()).dtype == torch.bfloat16
        with FlopCounterMode(display=False):
            activated_by(of("gelu"), layer.float(), x)
        assert activated_by(of("gelu"), layer.to("meta"), x.to("meta")).is_meta
        seen: list[Tensor] = []
        layer = Linear(128, 256)
        layer.register_forward_hook(lambda *called: seen.append(called[2]))
        found = activated_by(of("gelu"), layer, x)
        assert_same(found, torch.nn.functional.gelu(seen[0]))
        assert activated_by(torch.tanh, Linear(128, 256), x).abs().max() <= 1


def test_without_the_operator_they_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, lambda name: 1.0)
    monkeypatch.setattr(operator, "available", lambda: False)
    x, weight, bias = sample(70, 128, 256)
    with torch.no_grad():
        assert_same(activated(x, weight, bias, of("gelu")), apart(x, weight, bias, of("gelu")))
    assert "lacks" in module.choice(of("gelu"), "many rows").reason
