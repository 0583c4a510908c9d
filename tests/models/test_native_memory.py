"""Native decoding steps of decoders that read an encoder, against the same model part by part in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.ops.present import needs_native
from torch import Tensor

import qkv
from qkv.generation.decode.sample import Sampling
from qkv.layers.signal import Signal
from qkv.models.edit.quantize import quantize
from qkv.models.fast import native_token
from qkv.models.transformer import Transformer
from qkv.ops.native.step import Steps
from qkv.spec.model import Model
from qkv.spec.models.quantization import Quantization

pytestmark = needs_native

BLOCKS = {
    "plain": ["attention(4)", "cross_attention(4)", "feed_forward"],
    "whisper": ["attention(4, key_bias=false)", "cross_attention(4, key_bias=false)", "feed_forward"],
    "fewer key heads": [
        "attention(4, num_kv_heads=1, relative=rope)",
        "cross_attention(4, num_kv_heads=2, value_dim=5, bias=false)",
        "gated_feed_forward",
    ],
}


def built(name: str, width: int = 48) -> Transformer:
    text = {"kind": "text", "vocab_size": 50}
    encoder = {"num_layers": 1, "context_length": 80, "frontend": text}
    fields = {"width": width, "num_layers": 2, "context_length": 80, "frontend": text, "encoder": encoder}
    torch.manual_seed(1)
    model = qkv.build(Model.parse({**fields, "blocks": [{"branches": BLOCKS[name]}]})).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key or key.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.mul_(4)
    return model


def source(rows: int, dtype: torch.dtype = torch.float32) -> Signal:
    """Sources of different lengths."""
    ids = torch.randint(50, (rows, 37), generator=torch.Generator().manual_seed(2))
    return Signal(ids, torch.tensor([37, 1, 20, 9, 30][:rows]))


def by_tokens(model: Transformer, ids: Tensor, split: int = 3) -> Tensor:
    with torch.inference_mode():
        state = model.init_state(len(ids), memory=model.encode(source(len(ids))))
        _, state = model(ids[:, :split], state)
        found = []
        for i in range(split, ids.shape[1]):
            logits, state = model.decode(ids[:, i : i + 1].tolist(), state)
            found.append(logits)
    return torch.stack(found, 1)


def used(model: Transformer) -> bool:
    step = native_token._made.get(model)
    return step is not None and step.known


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", BLOCKS)
def test_steps_equal_the_parts_in_float64(name: str, rows: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steps, "_threads", lambda *_: threads)
    model = built(name)
    ids = torch.randint(50, (rows, 9), generator=torch.Generator().manual_seed(rows))
    found = by_tokens(model, ids)
    assert used(model)
    expected = by_tokens(copy.deepcopy(model).double(), ids)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("bits", [16, 8])
def test_quantised_weights(bits: int) -> None:
    model = built("whisper", 64)
    ids = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(3))
    expected = by_tokens(copy.deepcopy(model).double(), ids)
    quantize(model, Quantization.parse({"bits": bits}))
    found = by_tokens(model, ids)
    assert used(model)
    assert float((found.double() - expected).norm() / expected.norm()) < 0.05


def test_rows_that_end_leave_the_others_their_memories() -> None:
    """The rows of a batch end at different tokens; each then writes what it writes alone."""
    model = built("whisper")
    many, texts = source(5), [[3], [4, 5], [6], [7], [8, 9, 10]]
    lengths: list[int] = many.lengths.tolist()  # type: ignore[union-attr]

    def written(rows: list[int], together: bool) -> dict[int, list[int]]:
        wide = model if together else copy.deepcopy(model).double()
        with torch.inference_mode():
            memory = wide.encode(Signal(many.values[rows], torch.tensor([lengths[i] for i in rows])))
        sampling = Sampling(wide, [], qkv.Generation())
        for place, row in enumerate(rows):
            settings = qkv.Generation(max_new_tokens=4 + 5 * row, temperature=0.0)
            one: Any = memory._replace(
                vectors=tuple(each[place : place + 1] for each in memory.vectors),
                lengths=memory.lengths[place : place + 1],
            )
            sampling.admit([texts[row]], settings, one)
        while sampling.running:
            sampling.step()
        return {row: sampling.texts[place] for place, row in enumerate(rows)}

    together = written(list(range(5)), together=True)
    assert used(model)
    assert together == {row: written([row], together=False)[row] for row in range(5)}
