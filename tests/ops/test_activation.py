"""Activations by the native kernel against float64, and where torch computes instead."""

from __future__ import annotations

import pytest
import torch
from tests.ops.test_native import needs_native

from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.ops.activation import Activation
from qkv.ops.selection.choices import twin_of

NATIVE = [name for name, found in ACTIVATIONS.items() if isinstance(found, Activation)]


def of(name: str) -> Activation:
    found = ACTIVATIONS[name]
    assert isinstance(found, Activation)
    return found


@needs_native
@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("count", [1, 15, 4096, 40_001])
def test_the_kernel_equals_float64(name: str, count: int) -> None:
    x = torch.cat((torch.linspace(-30, 30, count), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30])))
    found, expected = of(name).native(x).double(), of(name).plain(x.double())
    assert ((found - expected).abs() <= 3e-7 * x.double().abs().clamp(min=1)).all()


@needs_native
@pytest.mark.parametrize("name", NATIVE)
def test_what_is_not_a_number_stays_so(name: str) -> None:
    x = torch.tensor([float("nan"), float("inf")])
    found = of(name).native(x)
    assert found[0].isnan()
    assert found[1] == float("inf")


@pytest.mark.parametrize("name", NATIVE)
def test_both_ways_agree_in_a_call_and_gradients_go_through_torch(name: str) -> None:
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(of(name)(x), of(name).plain(x), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(of(name)(x.t()), of(name).plain(x.t()))  # not side by side
        assert of(name)(x.bfloat16()).dtype == torch.bfloat16
    assert twin_of("activation", name) in ("torch", "native")
    leaf = x.clone().requires_grad_()
    of(name)(leaf).sum().backward()
    assert leaf.grad is not None
