"""What a model takes in each precision is what its quantised form takes; a config alone is enough to count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import qkv
from qkv.cli.main import main
from qkv.costs.cost import cost
from qkv.costs.measuring.machine import Machine
from qkv.costs.precisions import BITS, fits, weight_bytes
from qkv.interop.checkpoint import published_spec
from qkv.models.edit.quantize import quantize
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.model import Block, Model, Text
from qkv.spec.models.quantization import Quantization
from qkv.state.tree import nbytes
from qkv.system.errors import UserError

MODEL = Model(
    width=128,
    num_layers=2,
    context_length=64,
    frontend=Text(vocab_size=1000),
    blocks=(Block(branches=(Attention(num_heads=4), FeedForward())),),
)
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
MACHINE = Machine("", {"fp32": 1e11}, 1e10, 1e-9)


def stored(model: torch.nn.Module) -> int:
    return nbytes([*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("precision", BITS)
def test_weights_take_what_is_estimated(precision: str) -> None:
    model = qkv.build(MODEL)
    if precision != "fp32":
        quantize(model, Quantization(bits={"bf16": 16, "int8": 8, "int4": 4}[precision]))
    assert weight_bytes(cost(MODEL), precision) == pytest.approx(stored(model), rel=0.1)


def test_longest_text_fills_three_quarters_of_the_memory() -> None:
    counted = cost(MODEL)
    weights, most = weight_bytes(counted, "fp32"), counted.state_bytes
    for positions in (1, 17, 63):
        memory = int((weights + most(positions)) / 0.75) + 2
        assert fits(counted, MACHINE, memory)[0].longest == positions
    assert fits(counted, MACHINE, 10**12)[0].longest == 64
    assert fits(counted, MACHINE, weights // 2)[0].longest == 0


def test_narrow_weights_decode_faster_up_to_the_bandwidth() -> None:
    rates = [fit.rate for fit in fits(cost(MODEL), MACHINE, 10**12)]
    assert all(rate is not None for rate in rates)
    assert rates == sorted(rates)  # type: ignore[type-var]
    assert rates[0] == pytest.approx(1e10 / cost(MODEL).step_bytes(64), rel=0.01)
    assert fits(cost(MODEL), None, 10**12)[0].rate is None


def test_a_config_alone_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for name in (tmp_path, tmp_path / "config.json"):
        assert main(["cost", str(name), "--length", "16"]) == 0
        shown = capsys.readouterr().out
        assert "running it on this machine" in shown
        assert [line.split()[0] for line in shown.splitlines() if line.split()[:1] and line.split()[0] in BITS] == [
            *BITS
        ]
    expected = sum(parameter.numel() for parameter in qkv.build(published_spec(tmp_path)).parameters())
    assert cost(published_spec(tmp_path), length=16).parameters == expected


def test_a_config_of_an_unknown_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": "nobody_knows"}))
    with pytest.raises(UserError, match="nobody_knows"):
        published_spec(tmp_path)
    assert main(["cost", str(tmp_path)]) == 2
