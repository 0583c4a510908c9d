"""A compiled model: one graph, the logits, gradients and running statistics of the plain one.

Traced and differentiated as the compiler does, without the minutes of a C++ compiler behind it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.stacks import ids, model, seven
from torch import Tensor

from qkv.layers.linear.lora import adapters
from qkv.models.build import build
from qkv.models.edit.adapt import adapt
from qkv.models.transformer import Transformer
from qkv.ops.selection.choices import all_choices
from qkv.spec.branches import LSTM, Attention, Convolution, GatedFeedForward
from qkv.spec.model import Block, Text
from qkv.spec.parts import BatchNorm, LearnedSinusoidal, Llama3Scaling, Rope, Shaw, T5Buckets
from qkv.spec.position_wise.memory_layer import MemoryLayer
from qkv.spec.training import Training

pytestmark = pytest.mark.slow

LARGE = Block(
    branches=(
        Attention(num_heads=2, relative=Rope(scaling=Llama3Scaling(factor=4.0, original_length=64))),
        GatedFeedForward(),
    )
)
LEARNED = Block(
    branches=(Attention(relative=T5Buckets()), Attention(relative=Shaw(values=True)), Attention(top_k=3), MemoryLayer())
)
RECURRENT = Block(branches=(LSTM(direction="both"), Convolution()))
SPECS: dict[str, Any] = {
    "seven mixers": seven(),
    "batch norm in parallel": model(Block(order="parallel", norm=BatchNorm()), norm=BatchNorm()),
    "learned distances, top k, memory": model(LEARNED, frontend=Text(vocab_size=13, positions=LearnedSinusoidal())),
    "both directions": model(RECURRENT),
    "large enough for the measured paths": model(LARGE, width=128),
}


def gradients(built: Transformer, run: Any, batch: Tensor) -> dict[str, Tensor]:
    """The logits and, by name, each gradient and each running statistic."""
    logits = run(batch)[0]
    logits.pow(2).mean().backward()
    found = {name: p.grad.clone() for name, p in built.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **found, **{name: b.clone() for name, b in built.named_buffers()}}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_a_compiled_model_is_one_graph_and_equals_the_plain_one(name: str, recompute: bool) -> None:
    plain, again, batch = build(SPECS[name]), build(SPECS[name]), ids(8, 32) if "large" in name else ids(2, 6)
    expected = gradients(plain, plain, batch)
    again.recompute = recompute
    torch._dynamo.reset()
    seen = gradients(again, torch.compile(again, backend="aot_eager", fullgraph=True), batch)
    assert seen.keys() == expected.keys()
    for part, value in expected.items():
        torch.testing.assert_close(
            seen[part], value, rtol=1e-4, atol=1e-6, msg=lambda text, part=part: f"{part}: {text}"
        )
    assert "large" not in name or {"attention", "linear"} <= {choice.op for choice in all_choices()}


@pytest.mark.parametrize("name", ["seven mixers", "large enough for the measured paths"])
def test_a_compiled_model_with_adapters_is_one_graph_and_equals_the_plain_one(name: str) -> None:
    plain, again, batch = build(SPECS[name]), build(SPECS[name]), ids(8, 32) if "large" in name else ids(2, 6)
    for built in (plain, again):
        adapt(built, Training.parse({"adapt": "lora(2)"}))
        for index, adapter in enumerate(adapters(built).values()):  # B begins at 0, and A has no gradient there
            torch.nn.init.normal_(adapter.lora_b, generator=torch.Generator().manual_seed(index))
    expected = gradients(plain, plain, batch)
    torch._dynamo.reset()
    seen = gradients(again, torch.compile(again, backend="aot_eager", fullgraph=True), batch)
    assert seen.keys() == expected.keys()
    assert all(value.abs().sum() > 0 for part, value in expected.items() if part.endswith(("lora_a", "lora_b")))
    for part, value in expected.items():
        torch.testing.assert_close(
            seen[part], value, rtol=1e-4, atol=1e-6, msg=lambda text, part=part: f"{part}: {text}"
        )
