"""Logit lens: equal to the logits at the last layer, and a loop over blocks by hand before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.stacks import ids, model, seven
from torch import Tensor

import qkv
from qkv.layers.signal import Signal
from qkv.lens.views.logit_lens import LogitLens, logit_lens
from qkv.lens.views.stream import read_stream
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import ClassificationHead, LabelsHead, LanguageModelHead
from qkv.spec.masks import Causal, Full, Prefix
from qkv.spec.model import Block, Encoder, Text
from qkv.spec.models.blocks import DepthAverage
from qkv.spec.models.cross import CrossAttention
from qkv.spec.models.segmentation import Megabyte, RecurrentMemory
from qkv.spec.parts import NoNorm, Reversible
from qkv.system.errors import UserError

BOTH = (Attention(), FeedForward())
CROSS = (Attention(), CrossAttention(num_heads=2), FeedForward())
ENCODER = Encoder(frontend=Text(vocab_size=9), blocks=(Block(branches=(Attention(mask=Full()), FeedForward())),))
FORMS: dict[str, Any] = {
    "pre": model(Block(branches=BOTH), num_layers=2),
    "post": model(Block(branches=BOTH, order="post"), num_layers=2, norm=NoNorm()),
    "sandwich": model(Block(branches=BOTH, order="sandwich"), num_layers=2),
    "res_post": model(Block(branches=BOTH, order="res_post"), num_layers=2),
    "parallel": model(Block(branches=BOTH, order="parallel"), num_layers=2),
    "prefix": model(Block(branches=(Attention(mask=Causal() | Prefix()),)), num_layers=2),
    "seven mixers": seven(num_layers=2),
    "cap and scale": model(num_layers=2, head=LanguageModelHead(softcap=3.0, scale=0.5, bias=True)),
    "transform": model(num_layers=2, head=LanguageModelHead(transform="gelu")),
    "encoder–decoder": model(Block(branches=CROSS), num_layers=2, encoder=ENCODER),
    "rounds": model(num_layers=2, rounds=2),
    "reversible": model(Block(branches=BOTH, residual=Reversible()), num_layers=2, head=LanguageModelHead(tied=False)),
    "classifier": model(num_layers=2, head=ClassificationHead(num_classes=3)),
    "segments": model(num_layers=2, segmentation=RecurrentMemory(segment=4, num_memory=2)),
    "patches": model(num_layers=2, segmentation=Megabyte(size=4)),
    "labels": model(num_layers=2, head=LabelsHead(num_classes=3)),
}


def made(name: str) -> tuple[Transformer, dict[str, Any]]:
    """Model in float64 whose weights differ from their initial values, with its inputs."""
    m = build(FORMS[name]).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in m.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    signal = Signal(ids(), prefix=torch.tensor([3, 2])) if name == "prefix" else ids()
    return m, {"signal": signal, "source": ids(2, 5, 3) % 9 if m.encoder else None}


def last_output(m: Transformer, inputs: dict[str, Any]) -> Tensor:
    memory = None if inputs["source"] is None else m.encode(inputs["source"])
    return m.eval()(inputs["signal"], memory=memory)[0]


@pytest.mark.parametrize("name", FORMS)
def test_the_last_point_gives_the_output_of_the_model(name: str) -> None:
    m, inputs = made(name)
    stream = read_stream(m, **inputs)
    with torch.no_grad():
        expected = last_output(m, inputs)
        torch.testing.assert_close(stream.read(stream.vectors[-1]), expected, rtol=1e-9, atol=1e-12)
        assert not torch.allclose(stream.read(stream.vectors[-2]), expected, rtol=1e-3)
    branches = len(m.walked_branches)
    assert len(stream.points) == branches + 1
    assert [point.part for point in stream.points] == ["embedding", *(b.spec.kind for b in m.walked_branches)]


def test_the_numbers_are_those_of_the_softmax() -> None:
    m, inputs = made("cap and scale")
    lens = logit_lens(m, **inputs, k=4)
    assert lens.ids is not None
    assert lens.probabilities is not None
    assert lens.entropy is not None
    assert lens.divergence is not None
    assert lens.ids.shape == (5, 2, 9, 4)
    with torch.no_grad():
        final = last_output(m, inputs).softmax(-1)
        for p, x in enumerate(_by_hand(m, inputs["signal"])):
            scaled = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + m.norm.eps).sqrt()  # type: ignore[operator]
            normed = scaled * m.norm.weight + m.norm.bias  # type: ignore[operator]
            logits = 0.5 * normed @ m.frontend.table.T + m.head.bias  # type: ignore[operator, union-attr]
            chances = (3 * (logits / 3).tanh()).softmax(-1)
            expected = chances.sort(-1, descending=True)
            torch.testing.assert_close(lens.probabilities[p], expected.values[..., :4])
            assert torch.equal(lens.ids[p], expected.indices[..., :4])
            torch.testing.assert_close(lens.entropy[p], -(chances * chances.log()).sum(-1))
            torch.testing.assert_close(lens.divergence[p], (final * (final / chances).log()).sum(-1))
    assert float(lens.divergence[-1].max()) < 1e-12 < float(lens.divergence[-2].min())


def _by_hand(m: Transformer, rows: Tensor) -> list[Tensor]:
    """Residual stream, computed branch by branch."""
    x, context = m.embed(Signal(rows))
    stream = [x]
    for block in m.blocks:
        for slot in block.branches:  # type: ignore[union-attr]
            x = x + slot.body(slot.norm(x, context), context)[0]
            stream.append(x)
    return stream


def test_positions_are_selected() -> None:
    m, inputs = made("pre")
    everywhere, last = logit_lens(m, **inputs), logit_lens(m, **inputs, positions=[-1, 2])
    assert everywhere.entropy is not None
    assert last.entropy is not None
    torch.testing.assert_close(last.entropy, everywhere.entropy[:, :, [-1, 2]])


def test_outputs_that_are_no_classes_are_given_as_they_are() -> None:
    m, inputs = made("labels")
    lens = logit_lens(m, **inputs)
    assert lens.ids is None
    assert lens.outputs is not None
    torch.testing.assert_close(lens.outputs[-1], last_output(m, inputs).detach())
    pooled = logit_lens(*made("classifier")[:1], ids())
    assert pooled.ids is not None
    assert pooled.ids.shape == (5, 2, 1, 3)


def test_images_graphs_of_stages_and_averages_are_read() -> None:
    patches = {"kind": "patches", "patch": 4, "height": 16, "width": 16, "channels": 1}
    block = {"branches": ["attention(2, mask=full)", "feed_forward"]}
    staged = {"width": 8, "blocks": [block, {**block, "merge": "patch_merging"}], "num_layers": 2}
    image = qkv.build(qkv.Model.parse({**staged, "frontend": patches, "head": "classification(3)"}))
    pixels = torch.randn(2, 1, 16, 16)
    lens: LogitLens = logit_lens(image, Signal(pixels))
    assert [(point.layer, point.part) for point in lens.points] == [
        (-1, "embedding"),
        (1, "attention"),
        (1, "feed_forward"),
    ]
    averaged = build(model(num_layers=2, depth_average=DepthAverage()))
    assert logit_lens(averaged, ids()).points[-1].part == "output"


@pytest.mark.parametrize(
    ("form", "options", "sentence"),
    [
        ("pre", {"k": 0}, "k is 0, allowed: at least 1"),
        ("pre", {"positions": [9]}, "position 9 is outside the row, which has 9 positions"),
        ("classifier", {"positions": [0]}, "has no output for each position"),
    ],
)
def test_what_has_no_meaning_is_refused(form: str, options: dict[str, Any], sentence: str) -> None:
    m, inputs = made(form)
    with pytest.raises(UserError, match=sentence):
        logit_lens(m, **inputs, **options)
