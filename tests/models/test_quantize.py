"""Quantised models: which layers are replaced, what they compute, and that every form of model still runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import qkv
from qkv.layers.linear.quantized import QuantizedLinear, QuantizedTable
from qkv.models.edit.quantize import quantize
from qkv.models.fast import runners
from qkv.models.transformer import Transformer
from qkv.ops.native import library
from qkv.ops.quantized import choose, reference
from qkv.ops.quantized.reference import pack, unpack
from qkv.runs.storage.checkpoint import weights
from qkv.spec.model import Model
from qkv.spec.models.quantization import Quantization
from qkv.system.errors import UserError

FORMATS = [Quantization(bits=16), Quantization(), Quantization(bits=8, group=32), Quantization(bits=4)]


def built(branch: str = "attention(2)", **more: Any) -> Transformer:
    blocks = [{"branches": [branch, "feed_forward"]}]
    sizes = {"width": 40, "num_layers": 2, "context_length": 24, "frontend": {"kind": "text", "vocab_size": 50}}
    return qkv.build(Model.parse({**sizes, "blocks": blocks, **more})).eval()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("part", FORMATS, ids=lambda part: f"{part.bits}-{part.size}")
def test_the_model_computes_with_the_rounded_weights(
    part: Quantization, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to the same model in fp32 whose matrices are replaced by their rounded values; by the native kernel, which
    rounds activations too, nearly so.
    """
    if not native:
        monkeypatch.setattr(choose, "TWINS", dict.fromkeys(choose.TWINS, reference.linear))
        monkeypatch.setattr(runners, "native_step", lambda *given: None)
    rounds = native and library.available() and (part.bits < 16 or library.rounds_to_bf16())
    rtol, atol = (0.0, 0.02) if rounds else (1e-4, 1e-5)
    model, rounded = built(), built()
    quantize(model, part)
    with torch.no_grad():
        for name, module in rounded.named_modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(unpack(pack(module.weight, part.bits, part.size)))
                assert isinstance(model.get_submodule(name), QuantizedLinear)
        table = rounded.frontend.table
        assert isinstance(table, torch.nn.Parameter)
        table.copy_(unpack(pack(table, max(8, part.bits))))
        ids = torch.randint(50, (3, 20), generator=torch.Generator().manual_seed(0))
        whole = model(qkv.Signal(ids))[0]
        torch.testing.assert_close(whole, rounded(qkv.Signal(ids))[0], rtol=rtol, atol=atol)
        _, state = model(ids[:, :19], model.init_state(3))
        last, _ = model(ids[:, 19:], state)
        torch.testing.assert_close(last[:, 0], whole[:, -1], rtol=rtol, atol=atol)


@pytest.mark.parametrize("part", FORMATS, ids=lambda part: f"{part.bits}-{part.size}")
def test_a_change_of_dtype_leaves_quantised_matrices_unchanged(part: Quantization) -> None:
    """Kernels read the bytes of scales and numbers; converted ones would be read as others, up to NaN."""
    model, ids = built(), torch.tensor([[3, 1, 4, 1, 5]])
    quantize(model, part)
    stored = {name: buffer for name, buffer in model.named_buffers() if ".matrix." in name or "table." in name}
    with torch.no_grad():
        before, _ = model(ids[:, 4:], model(ids[:, :4], model.init_state(1))[1])
        for dtype in (torch.bfloat16, torch.float32):
            model.to(dtype)
            after = dict(model.named_buffers())
            assert all(torch.equal(after[name], buffer) for name, buffer in stored.items())
            assert all(after[name].dtype == buffer.dtype for name, buffer in stored.items())
        logits, _ = model(ids[:, 4:], model(ids[:, :4], model.init_state(1))[1])
    assert stored
    torch.testing.assert_close(logits, before, rtol=0, atol=0.02)


def test_a_tied_table_is_stored_once() -> None:
    model = built()
    quantize(model, Quantization(bits=4))
    assert isinstance(model.frontend.table, QuantizedTable)
    assert model.head.weight is model.frontend.table
    assert model.frontend.table.bits == 8
    assert sorted(name for name in weights(model) if name.startswith("frontend.table")) == [
        "frontend.table.scale",
        "frontend.table.stored",
    ]
    assert model.vocab_size == 50
    untied = built(head="language_model(tied=false)")
    quantize(untied, Quantization())
    assert isinstance(untied.head.weight, QuantizedTable)
    assert untied.head.weight is not untied.frontend.table


def test_bytes_are_those_of_the_bits() -> None:
    def linear_bytes(bits: int) -> int:
        model = built(width=64)
        quantize(model, Quantization.parse({"bits": bits}))
        found = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
        return sum(tensor.nbytes for module in found for tensor in module.matrix.buffers())

    numbers = sum(m.weight.numel() for m in built(width=64).modules() if isinstance(m, torch.nn.Linear))
    rows = sum(m.out_features for m in built(width=64).modules() if isinstance(m, torch.nn.Linear))
    assert [linear_bytes(bits) for bits in (16, 8, 4)] == [
        2 * numbers,
        numbers + 2 * rows,
        numbers // 2 + numbers // 16,
    ]


@pytest.mark.parametrize(
    "branch",
    ["attention(2, bias=false)", "linear_attention(2)", "gru", "mamba2", "retention(2)", "latent_attention(2)"],
)
def test_other_mixers_decode_with_quantised_weights(branch: str) -> None:
    """Split in two calls or not, up to the rounding of activations."""
    model = built(branch)
    quantize(model, Quantization())
    ids = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(qkv.Signal(ids))[0]
        first, state = model(ids[:, :7], model.init_state(2))
        last, _ = model(ids[:, 7:], state)
    torch.testing.assert_close(torch.cat((first, last), 1), whole, rtol=0, atol=0.01)
    assert whole.isfinite().all()


def test_weights_that_are_not_finite_are_refused() -> None:
    model = built()
    with torch.no_grad():
        next(m for m in model.modules() if isinstance(m, torch.nn.Linear)).weight[0, 0] = float("nan")
    with pytest.raises(UserError, match="not finite numbers"):
        quantize(model, Quantization())


@pytest.mark.parametrize(("given", "sentence"), [({"bits": 5}, "bits"), ({"group": 33}, "multiple of 32")])
def test_wrong_formats_are_one_sentence(given: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Quantization.parse(given)
