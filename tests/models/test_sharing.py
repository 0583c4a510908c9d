"""Weights that models have alike are held once: what counts as alike, ties, adapters, layout, and what is computed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.layers.branch import linear_maps
from qkv.layers.linear.lora import adapters, wrap
from qkv.models.edit.sharing import share_weights, weight_bytes
from qkv.models.fast import layout
from qkv.models.fast.layout import lay_out
from qkv.models.transformer import Transformer
from qkv.spec.model import Model
from qkv.spec.models.adapt import LoRA


class Held(nn.Module):
    """Parameters and a buffer as they are given."""

    def __init__(self, buffer: Tensor | None = None, **parameters: Tensor):
        super().__init__()
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))
        self.register_buffer("buffer", buffer)


def built(seed: int = 0, **more: Any) -> Transformer:
    spec = {"width": 16, "num_layers": 2, "context_length": 32, "frontend": {"kind": "text", "vocab_size": 30}}
    return qkv.build(Model.parse({**spec, "blocks": [{"branches": ["attention(2)", "feed_forward"]}], **more}), seed)


def adapted(base: Transformer, seed: int, targets: tuple[str, ...] = ("qkv", "output")) -> Transformer:
    """A copy with adapters that have learned something."""
    model = copy.deepcopy(base).eval()
    wrap(model, [path for path in linear_maps(model) if path.endswith(targets)], LoRA(rank=2, alpha=3.0))
    torch.manual_seed(seed)
    for layer in adapters(model).values():
        nn.init.normal_(layer.lora_b)
    return model


def outputs(model: Transformer) -> Tensor:
    with torch.inference_mode():
        return model.eval()(torch.arange(20)[None] % 30)[0]


def test_equal_means_the_same_bits_at_the_same_path() -> None:
    numbers = torch.tensor([1.0, float("nan"), 0.0])
    first, buffer = Held(torch.arange(3), a=numbers, b=torch.ones(4), c=torch.ones(2)), torch.arange(3)
    other = Held(buffer, a=numbers.clone(), b=torch.ones(4).half(), c=torch.ones(2), d=torch.ones(4))
    signed, transposed = Held(a=torch.tensor([1.0, float("nan"), -0.0])), Held(c=torch.ones(4)[::2])
    assert share_weights([first, other, signed, transposed]) == 24 + 12 + 8 + 8
    assert other.a is first.a
    assert other.buffer is first.buffer
    assert transposed.c is first.c
    assert other.b is not first.b
    assert other.d is not first.b
    assert signed.a is not first.a


def test_ties_stay() -> None:
    """Also where another model has two tensors for what is one here."""
    tied, apart = Held(a=torch.ones(3)), Held(a=torch.ones(3), b=torch.ones(3))
    tied.b = tied.a
    same = copy.deepcopy(tied)
    assert same.a is same.b
    assert share_weights([tied, same, apart]) == 12 + 24
    assert len({id(held) for model in (tied, same, apart) for held in (model.a, model.b)}) == 1


def test_adapters_of_one_base_hold_its_weights_once_and_compute_what_they_did() -> None:
    base = built().eval()
    models = [base, adapted(base, 1), adapted(base, 2)]
    expected, own = [outputs(model) for model in models], weight_bytes([base])
    small = 2 * sum(p.nbytes for name, p in models[1].named_parameters() if "lora" in name)
    assert share_weights(models) == 2 * own
    assert weight_bytes(models) == own + small
    assert [len(adapters(model)) for model in models] == [0, 4, 4]
    for model, before in zip(models, expected, strict=True):
        torch.testing.assert_close(outputs(model), before, rtol=0, atol=1e-5)


def test_equal_adapters_too() -> None:
    first = adapted(built(), 1)
    models = [first, copy.deepcopy(first)]
    expected = outputs(models[0])
    share_weights(models)
    assert weight_bytes(models) < 1.1 * weight_bytes(models[:1])
    for model in models:
        torch.testing.assert_close(outputs(model), expected, rtol=0, atol=1e-5)


def test_an_adapter_alone_is_merged() -> None:
    """One of another base, and a layer whose weight no other model has."""
    base, alone = built().eval(), adapted(built(seed=1), 1)
    changed, first = adapted(base, 2), "blocks.0.branches.0.body.qkv"
    with torch.no_grad():
        adapters(changed)[first].stored.add_(1)
    expected = [outputs(model) for model in (changed, alone)]
    assert share_weights([base, changed, alone])
    assert not adapters(alone)
    assert first not in adapters(changed)
    assert len(adapters(changed)) == 3
    for model, before in zip((changed, alone), expected, strict=True):
        torch.testing.assert_close(outputs(model), before, rtol=0, atol=1e-5)


def test_shared_weights_are_laid_out_at_once_and_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that lays out its model later would move what another one reads."""
    monkeypatch.setattr(layout, "_LEAST", 1)
    base = built().eval()
    layer: Any = base.branches[0]
    layer.qkv.weight = nn.Parameter(layer.qkv.weight.detach().t().contiguous().t())
    models = [base, adapted(base, 1)]
    share_weights(models)
    places = [[t.data_ptr() for t in model.state_dict().values()] for model in models]
    assert layer.qkv.weight.is_contiguous()
    for model in models:
        lay_out(model)
    assert [[t.data_ptr() for t in model.state_dict().values()] for model in models] == places
