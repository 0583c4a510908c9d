"""Frozen linear layers with an adapter against dense algebra in float64: values, gradients, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from qkv.ops.linear import low_rank as ops
from qkv.ops.linear import onednn, operator
from qkv.ops.linear.low_rank import LowRankMap
from qkv.ops.quantized import reference
from qkv.ops.quantized.packed import PackedMatrix
from qkv.ops.quantized.reference import pack, unpack
from qkv.ops.selection import onednn as permission

ROWS, INNER, OUTER, RANK, SCALE = (2, 5), 64, 48, 3, 0.7


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return torch.sigmoid(gate) * gate * up


def same(x: Tensor) -> Tensor:
    return x


def case(bits: int | None, dtype: torch.dtype = torch.float64) -> tuple[LowRankMap, Tensor]:
    """A layer with adapter, and its W."""
    torch.manual_seed(2)
    weight: Tensor | PackedMatrix = torch.randn(OUTER, INNER)
    if bits:
        weight = pack(weight, bits, 32 if bits == 4 else 0)  # type: ignore[arg-type]
    dense = unpack(weight).to(dtype) if isinstance(weight, PackedMatrix) else weight.to(dtype)
    a, b = (torch.randn(sizes, dtype=dtype, requires_grad=True) for sizes in ((RANK, INNER), (OUTER, RANK)))
    return LowRankMap(weight if bits else dense, torch.randn(OUTER, dtype=dtype), a, b, SCALE), dense


def parts_of(make: Callable[..., Tensor], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    count = 2 if make is gated else 1
    return [torch.randn(*ROWS, INNER, dtype=dtype, requires_grad=True) for _ in range(count)]


@pytest.mark.parametrize("bits", [None, 16, 8, 4])
@pytest.mark.parametrize("make", [same, gated])
def test_values_and_gradients_are_those_of_the_merged_matrix(make: Callable[..., Tensor], bits: int | None) -> None:
    how, dense = case(bits)
    parts = parts_of(make)
    learned = [*parts, how.a, how.b]
    y = ops.fused(make, parts, how)
    true = torch.einsum("bni,oi->bno", make(*parts), dense + SCALE * how.b @ how.a) + how.bias
    torch.testing.assert_close(y, true, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad(each, learned, upstream) for each in (y, true))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_gradients_have_gradients() -> None:
    how, _ = case(None)
    small = LowRankMap(how.weight[:4, :3], None, how.a.detach()[:2, :3], how.b.detach()[:4, :2], SCALE)  # type: ignore[index]
    inputs = [t.clone().requires_grad_() for t in (torch.randn(2, 3).double(), torch.randn(2, 3).double(), *small[2:4])]

    def run(gate: Tensor, up: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return ops.fused(gated, (gate, up), small._replace(a=a, b=b))

    assert torch.autograd.gradgradcheck(run, inputs)


def remembered(run: Callable[[], Tensor], known: list[Tensor]) -> int:
    """Numbers that a forward pass saves in tensors other than ``known``."""
    storages = {t.untyped_storage().data_ptr() for t in known}
    seen: dict[int, Tensor] = {}

    def pack_one(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in storages:
            seen[t.untyped_storage().data_ptr()] = t
        return t

    with saved_tensors_hooks(pack_one, lambda t: t):
        run()
    return sum(t.untyped_storage().nbytes() // t.element_size() for t in seen.values())


@pytest.mark.parametrize("bits", [None, 8])
def test_only_the_parts_and_the_small_product_are_remembered(bits: int | None) -> None:
    how, _ = case(bits, torch.float32)
    parts = parts_of(gated, torch.float32)
    known = [*parts, how.a, how.b, *([] if bits else [how.weight])]
    assert remembered(lambda: ops.fused(gated, parts, how), known) == 10 * RANK  # type: ignore[arg-type]
    assert remembered(lambda: ops.separate(gated, parts, how), known) >= 10 * INNER  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_a_quantised_product_remembers_nothing_and_its_gradient_is_that_of_the_matrix(bits: int) -> None:
    how, dense = case(bits)
    assert isinstance(how.weight, PackedMatrix)
    (x,) = parts_of(same)
    upstream = torch.randn(*ROWS, OUTER, dtype=torch.float64)
    (grad,) = torch.autograd.grad(reference.linear(x, how.weight), x, upstream)
    torch.testing.assert_close(grad, upstream @ dense, rtol=1e-12, atol=1e-12)
    assert remembered(lambda: reference.linear(x, how.weight), [x]) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("twin", [onednn, operator])
def test_a_product_with_a_frozen_matrix_does_not_remember_x(twin: object) -> None:
    there = permission.available() if twin is onednn else operator.available()
    if not there:
        pytest.skip("absent here")
    x, weight = torch.randn(4, INNER, requires_grad=True), torch.randn(OUTER, INNER)
    calls = [lambda w=w: twin.linear(2 * x, w) for w in (weight, weight.clone().requires_grad_())]  # type: ignore[attr-defined]
    frozen, trained = (remembered(call, [weight]) for call in calls)
    assert frozen == 0
    assert trained >= 4 * INNER
    (grad,) = torch.autograd.grad(twin.linear(x, weight).sum(), x)  # type: ignore[attr-defined]
    torch.testing.assert_close(grad, weight.sum(0).expand(4, -1))


@pytest.mark.parametrize("bits", [None, 16, 4])
def test_products_run_in_bf16_if_autocast_asks_for_it(bits: int | None) -> None:
    how, dense = case(bits, torch.float32)
    (x,) = parts_of(same, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = ops.low_rank(same, [x], how)
    assert y.dtype == torch.bfloat16
    true = x @ (dense + SCALE * how.b @ how.a).T + how.bias
    assert (y - true).abs().max() < 0.03 * true.abs().max()
    (ours,) = torch.autograd.grad(y.float().square().sum(), how.b, retain_graph=True)
    (theirs,) = torch.autograd.grad(true.square().sum(), how.b)
    assert ours.dtype == torch.float32
    assert (ours - theirs).abs().max() < 0.05 * theirs.abs().max()
