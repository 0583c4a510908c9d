"""What a training of some parameters alone costs, against gradients and optimiser of a real step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.costs.cost import cost
from qkv.models.build import build
from qkv.models.edit.adapt import adapt
from qkv.spec.model import Model
from qkv.spec.training import Training
from qkv.system.errors import UserError
from qkv.training.optim.optimisers import build_optimizer

MODEL = Model.parse(
    {
        "width": 16,
        "num_layers": 3,
        "context_length": 12,
        "frontend": {"kind": "text", "vocab_size": 11},
        "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(24)"]}],
        "head": "classification(3)",
    }
)
CASES: dict[str, dict[str, Any]] = {
    "head": {"adapt": "head"},
    "last": {"adapt": "last(2)"},
    "lora": {"adapt": {"kind": "lora", "rank": 2, "targets": ["qkv", "up"]}},
    "frozen": {"frozen": ["frontend", "blocks.0"]},
    "lora and frozen": {"adapt": "lora(3)", "frozen": ["head"]},
}


def step(training: Training) -> dict[str, int]:
    """Bytes of weights, gradients and optimiser after one update."""
    model = build(MODEL, 0)
    adapt(model, training)
    optimizer = build_optimizer(training.optimizer, model)
    model(torch.tensor([[1, 2, 3]]))[0].sum().backward()
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    optimizer.step()
    kept = sum(tensor.nbytes for name, tensor in optimizer.state_dict().items() if not name.endswith("/step"))
    return {"weights": sum(p.nbytes for p in model.parameters()), "gradients": gradients, "optimizer": kept}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_and_optimiser_are_those_of_what_learns(case: str, optimizer: str) -> None:
    training = Training.parse({**CASES[case], "optimizer": optimizer})
    counted = cost(MODEL, 1, 3, training=training)
    real, memory = step(training), counted.memory
    assert {name: getattr(memory, name) for name in real} == real
    assert counted.trained_parameters == real["gradients"] // 4
    assert counted.to_dict()["trained_parameters"] == counted.trained_parameters
    whole = cost(MODEL, 1, 3, training=Training.parse({"optimizer": optimizer}))
    assert counted.parameters == whole.parameters == whole.trained_parameters
    assert memory.optimizer < whole.memory.optimizer


def test_a_pattern_that_meets_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"training\.frozen: .* did you mean 'frontend'"):
        cost(MODEL, training=Training.parse({"frozen": ["frontent"]}))
