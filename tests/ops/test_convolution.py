"""Causal dilated convolution as one product against torch's; a document sees nothing of the one before it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.convolution import same_document, taps

sizes = {"length": st.integers(1, 11), "kernel": st.integers(1, 4), "dilation": st.integers(1, 5)}


def tensors(length: int, kernel: int, dilation: int) -> list[Tensor]:
    """x (B, N, D), W (E, K·D), b (E)."""
    generator = torch.Generator().manual_seed(100 * length + 10 * kernel + dilation)
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((2, length, 3), (4, 3 * kernel), (4,))]


def as_product(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    kernel = weight.shape[1] // x.shape[-1]
    window = F.pad(x, (0, 0, (kernel - 1) * dilation, 0))
    return F.linear(taps(window, kernel, dilation), weight, bias)


def by_torch(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Torch's kernel runs forwards in time; here the latest tap comes first."""
    kernel = weight.shape[1] // x.shape[-1]
    filters = weight.unflatten(1, (kernel, -1)).transpose(1, 2).flip(-1)
    padded = F.pad(x.mT, ((kernel - 1) * dilation, 0))
    return F.conv1d(padded, filters, bias, dilation=dilation).mT


@given(**sizes)
def test_the_product_equals_torch_s_convolution(length: int, kernel: int, dilation: int) -> None:
    given_ = tensors(length, kernel, dilation)
    expected = outputs_and_gradients(lambda *t: by_torch(*t, dilation), given_)
    assert_all_same(outputs_and_gradients(lambda *t: as_product(*t, dilation), given_), expected)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), kernel=sizes["kernel"], dilation=sizes["dilation"])
def test_packed_documents_equal_documents_alone(lengths: list[int], kernel: int, dilation: int) -> None:
    x, weight, bias = tensors(sum(lengths), kernel, dilation)
    segments = torch.tensor([[number for number, n in enumerate(lengths) for _ in range(n)]] * 2)
    window = F.pad(x, (0, 0, (kernel - 1) * dilation, 0))
    packed = F.linear(taps(window, kernel, dilation, segments), weight, bias)
    assert_same(packed, torch.cat([by_torch(part, weight, bias, dilation) for part in x.split(lengths, 1)], 1))


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), kernel=sizes["kernel"])
def test_two_sided_taps_equal_torch_s_convolution_of_each_document(lengths: list[int], kernel: int) -> None:
    """y_i = Σ_t W_t x_{i + t - ⌊K/2⌋}: torch's convolution padded by ⌊K/2⌋ in front, by what is left at the end."""
    x, weight, bias = tensors(sum(lengths), kernel, 1)
    segments = torch.tensor([[number for number, n in enumerate(lengths) for _ in range(n)]] * 2)
    sides = kernel // 2, kernel - 1 - kernel // 2
    seen = F.linear(taps(F.pad(x, (0, 0, *sides)), kernel, 1, segments, sides[1]), weight, bias)
    filters = weight.unflatten(1, (kernel, -1)).transpose(1, 2).flip(-1)
    expected = [F.conv1d(F.pad(part.mT, sides), filters, bias).mT for part in x.split(lengths, 1)]
    assert_same(seen, torch.cat(expected, 1))


@given(row=st.lists(st.integers(0, 2), min_size=1, max_size=8), back=st.integers(0, 10))
def test_same_document_is_what_it_says(row: list[int], back: int) -> None:
    expected = [i >= back and row[i - back] == number for i, number in enumerate(row)]
    assert same_document(torch.tensor([row]), back).tolist() == [expected]
    later = [i + back < len(row) and row[i + back] == number for i, number in enumerate(row)]
    assert same_document(torch.tensor([row]), -back).tolist() == [later]
