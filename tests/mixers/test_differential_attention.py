"""Differential attention: its limit without the second head of a pair."""

from __future__ import annotations

import torch
from tests.mixers.modules import applied, built, some
from torch.nn import functional as F

from qkv.spec.branches import Attention
from qkv.spec.mixers.latent_attention import DifferentialAttention


def test_a_factor_of_zero_is_attention_of_the_first_half_of_the_heads_and_a_norm() -> None:
    branch, x = built(DifferentialAttention(num_heads=4, head_dim=3, start=0.0, bias=False, eps=0.1)), some(2, 9)
    for name in ("first_query", "second_query"):
        branch.get_parameter(name).data.zero_()
    q, k, v = (part.unflatten(0, (4, 3)) for part in branch.get_parameter("qkv.weight").detach().chunk(3))
    plain = built(Attention(num_heads=2, head_dim=3, value_dim=6, bias=False, output="none"), width=12)
    paired = torch.cat((v[:2], v[2:]), 1)  # the values of heads h and h + 2
    weights = (q[:2].flatten(0, 1), k[:2].flatten(0, 1), paired.flatten(0, 1))
    plain.get_parameter("qkv.weight").data = torch.cat(weights)
    heads = F.rms_norm(applied(plain, x).unflatten(-1, (2, 6)), (6,), eps=0.1).flatten(-2)
    torch.testing.assert_close(applied(branch, x), heads @ branch.get_parameter("output.weight").T)
