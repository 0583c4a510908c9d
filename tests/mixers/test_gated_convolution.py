"""The short convolution between two gates against torch."""

from __future__ import annotations

import torch
from tests.mixers.modules import applied, built, some
from torch.nn import functional as F

from qkv.spec.mixers.gated_convolution import GatedConvolution


def test_it_equals_torch_s_grouped_convolution_between_two_products() -> None:
    kernel = 4
    branch, x = built(GatedConvolution(kernel_size=kernel, bias=True)), some(2, 9)
    width = x.shape[-1]
    weight, bias = branch.get_parameter("convolution.weight"), branch.get_parameter("convolution.bias")
    before, after, value = (x @ branch.get_parameter("input.weight").T + branch.get_parameter("input.bias")).chunk(
        3, -1
    )
    padded = F.pad((before * value).mT, (kernel - 1, 0))
    y = F.conv1d(padded, weight.flip(1)[:, None], bias, groups=width).mT
    wanted = (after * y) @ branch.get_parameter("output.weight").T + branch.get_parameter("output.bias")
    torch.testing.assert_close(applied(branch, x), wanted)
