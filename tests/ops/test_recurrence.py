"""The gated recurrent unit: the equations against torch's module, and the chosen path against the equations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from torch import Tensor

from qkv.ops.recurrence import choose, reference

WIDTH, HIDDEN = 5, 4


def tensors(length: int, dtype: torch.dtype = torch.float64, batch: int = 3) -> list[Tensor]:
    """x (B, N, D), h (B, E), then the four weights."""
    generator = torch.Generator().manual_seed(length)
    shapes = [(batch, length, WIDTH), (batch, HIDDEN), (3 * HIDDEN, WIDTH), (3 * HIDDEN, HIDDEN), (3 * HIDDEN,), (3 * HIDDEN,)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def equations(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    return reference.gru(x, h, weights)  # type: ignore[arg-type]


def chosen(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    return choose.gru(x, h, weights)  # type: ignore[arg-type]


def module(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    unit = torch.nn.GRU(WIDTH, HIDDEN, batch_first=True, dtype=x.dtype)
    return torch.func.functional_call(unit, dict(zip(names, weights, strict=True)), (x, h[None]))[0]


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("path", [equations, chosen])
def test_every_path_equals_torch_with_all_gradients(path: choose.Callable[..., Tensor], length: int) -> None:
    assert_all_same(outputs_and_gradients(path, tensors(length)), outputs_and_gradients(module, tensors(length)))


@given(length=st.integers(0, 12), batch=st.integers(0, 3), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_the_chosen_path_equals_the_equations(length: int, batch: int, dtype: torch.dtype) -> None:
    given_ = tensors(length, dtype, batch)
    assert_same(chosen(*given_), equations(*(t.double() for t in given_)))


@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_document_starts_from_nothing(lengths: list[int]) -> None:
    """Packed, each document has the outputs that it has alone; the given h belongs to none of them."""
    x, h, *weights = tensors(sum(lengths))
    firsts = [sum(lengths[:n]) for n in range(len(lengths))]
    starts = torch.zeros(3, sum(lengths), dtype=torch.bool)
    starts[:, firsts] = True
    packed = choose.gru(x, h, tuple(weights), starts)  # type: ignore[arg-type]
    alone = [module(part, torch.zeros_like(h), *weights) for part in x.split(lengths, 1)]
    assert_same(packed, torch.cat(alone, 1).detach())
