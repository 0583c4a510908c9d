"""What holds for each way of mixing: how far it sees, how large its memory is, and that it works in half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.mixers.modules import WIDTH, applied, built, following, some
from torch import Tensor

from qkv.spec.branches import (
    GRU,
    LSTM,
    RNN,
    Attention,
    Branch,
    CausalConvolution,
    Convolution,
    FeedForward,
    GatedFeedForward,
    TokenShift,
)
from qkv.spec.masks import Causal, Window
from qkv.spec.mixers.continuous_memory import ContinuousMemory
from qkv.spec.mixers.gated_attention import GAU, MixedChunkAttention
from qkv.spec.mixers.hyper_attention import HyperAttention
from qkv.spec.mixers.linear_attention import LinearAttention
from qkv.spec.mixers.linformer import Linformer
from qkv.spec.mixers.neighbours import MONet, SpatialShift
from qkv.spec.mixers.position_matrices import GMLP, TokenMLP
from qkv.spec.parts import Rope
from qkv.spec.position_wise.memory_layer import MemoryLayer

LENGTH = 11
"""Positions for which matrices over positions have weights; rows are shorter."""
ALL: dict[str, Branch] = {
    "attention": Attention(num_heads=2, num_kv_heads=1, relative=Rope()),
    "attention with a window": Attention(num_heads=2, mask=Causal() & Window(size=3, sinks=1)),
    "linear attention": LinearAttention(num_heads=2, chunk=4),
    "HyperAttention": HyperAttention(num_heads=2, block=2, samples=20, exact_up_to=3),
    "token shift": TokenShift(groups=3),
    "causal convolution": CausalConvolution(kernel_size=3, dilation=2),
    "convolution": Convolution(kernel_size=4),
    "token MLP": TokenMLP(length=LENGTH),
    "gMLP": GMLP(length=LENGTH),
    "causal gMLP": GMLP(length=LENGTH, mask="causal"),
    "Linformer": Linformer(length=LENGTH, rank=5, num_heads=2),
    "spatial shift": SpatialShift(),
    "GAU": GAU(key_dim=4),
    "mixed chunks": MixedChunkAttention(key_dim=4, chunk=3),
    "continuous memory": ContinuousMemory(num_heads=2, segment=3, num_basis=4),
    "MONet": MONet(),
    "causal spatial shift": SpatialShift(mask="causal"),
    "causal MONet": MONet(mask="causal"),
    "RNN": RNN(),
    "GRU": GRU(),
    "LSTM": LSTM(),
    "memory layer": MemoryLayer(num_slots=9, num_heads=2),
    "feed-forward": FeedForward(),
    "gated feed-forward": GatedFeedForward(hidden=16),
}


def seen_from(branches: list[Any], length: int) -> list[int]:
    """The distances from which an input reaches the last output through the branches in turn."""
    x = some(1, length).requires_grad_()
    y: Tensor = x
    for branch in branches:
        y = applied(branch, y)
    (grad,) = torch.autograd.grad(y[0, -1].sum(), x)
    return [length - 1 - i for i in range(length) if grad[0, i].abs().max() > 1e-12]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_receptive_field_of_dilated_convolutions_is_the_sum_of_their_tails(depth: int) -> None:
    """Kernel 2, dilation doubling: 1 + Σ 2^l = 2^depth positions, every one of them."""
    parts = [CausalConvolution(kernel_size=2, dilation=2**layer) for layer in range(depth)]
    assert sum(part.tail for part in parts) == 2**depth - 1
    assert seen_from([built(part) for part in parts], 12) == list(range(2**depth))[::-1]


# In a gated attention unit, a score that is not positive hides a position.
REACHES: dict[str, list[int]] = {
    "attention": list(range(10)),
    "attention with a window": [0, 1, 2, 9],
    "linear attention": list(range(10)),
    "HyperAttention": list(range(10)),
    "token shift": [0, 1, 2],
    "causal convolution": [0, 2, 4],
    "convolution": [0, 1, 2],
    "token MLP": list(range(10)),
    "gMLP": list(range(10)),
    "causal gMLP": list(range(10)),
    "Linformer": list(range(10)),
    "spatial shift": [0, 1],
    "mixed chunks": list(range(10)),
    "continuous memory": list(range(10)),
    "MONet": [0, 1],
    "causal spatial shift": [0, 1],
    "causal MONet": [0, 1],
    "RNN": list(range(10)),
    "GRU": list(range(10)),
    "LSTM": list(range(10)),
    "memory layer": [0],
    "feed-forward": [0],
    "gated feed-forward": [0],
}


@pytest.mark.parametrize("name", REACHES)
def test_how_far_one_layer_sees(name: str) -> None:
    assert seen_from([built(ALL[name])], 10) == REACHES[name][::-1]


UNBOUNDED = ("attention", "HyperAttention", "GAU", "causal gMLP")


@pytest.mark.parametrize("name", ALL)
def test_whose_memory_is_bounded(name: str) -> None:
    sizes = [built(ALL[name]).state_bytes(length) for length in (50, 5000)]
    assert (sizes[0] == sizes[1]) == (name not in UNBOUNDED)


def whole(branch: Any, x: Tensor) -> Tensor:
    return applied(branch, x)


def in_steps(branch: Any, x: Tensor) -> Tensor:
    """One position at a time, where that is possible."""
    if not branch.causal:
        return applied(branch, x)
    state, outs = branch.init_state(x.shape[0]), []
    for i in range(x.shape[1]):
        y, state = branch(x[:, i : i + 1], following(i, 1, x.shape[0]), state)
        outs.append(y)
    return torch.cat(outs, 1)


@pytest.mark.parametrize("path", [whole, in_steps])
@pytest.mark.parametrize("cast", ["weights in bf16", "autocast"])
@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_half_precision_gives_nearly_the_same(name: str, cast: str, path: Callable[..., Tensor]) -> None:
    x = some(dtype=torch.float32)
    expected = applied(built(ALL[name], dtype=torch.float32), x)
    if cast == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            seen = path(built(ALL[name], dtype=torch.float32), x)
    else:
        seen = path(built(ALL[name], dtype=torch.bfloat16), x.bfloat16())
        assert seen.dtype == torch.bfloat16
    assert (seen.float() - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("name", ALL)
def test_training_under_autocast_has_nearly_the_same_gradients(name: str) -> None:
    grads = []
    for enabled in (False, True):
        branch = built(ALL[name], dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = applied(branch, some(dtype=torch.float32))
        y.float().pow(2).sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in branch.parameters()]))
    assert (grads[1] - grads[0]).norm() < 0.05 * grads[0].norm()


@pytest.mark.parametrize("name", ALL)
def test_the_ending_is_a_linear_map_onto_the_residual_stream(name: str) -> None:
    ending = built(ALL[name]).ending()
    assert (ending is None) == ("convolution" in name)
    assert ending is None or ending.weight.shape[0] == (LENGTH if name == "token MLP" else WIDTH)
