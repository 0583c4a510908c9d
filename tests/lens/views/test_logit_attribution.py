"""Direct logit attribution: parts sum to the logit, and equal products written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.stacks import ids, model, seven
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.lens.views.logit_attribution import logit_attribution
from qkv.models.build import build
from qkv.models.edit.quantize import quantize
from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import ClassificationHead, LanguageModelHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.blocks import DepthAverage
from qkv.spec.models.cross import CrossAttention
from qkv.spec.models.quantization import Quantization
from qkv.spec.models.segmentation import RecurrentMemory
from qkv.spec.parts import Add, BatchNorm, NoNorm, NoResidual, Reversible, RMSNorm, Rope, Scaled
from qkv.system.errors import UserError

BOTH = (Attention(num_heads=4, num_kv_heads=2, relative=Rope()), FeedForward())
CROSS = (Attention(), CrossAttention(num_heads=2), FeedForward())
ENCODER = Encoder(frontend=Text(vocab_size=9), blocks=(Block(branches=(Attention(mask=Full()), FeedForward())),))
FORMS: dict[str, Model] = {
    "pre": model(Block(branches=BOTH), num_layers=2),
    "rms": model(Block(branches=BOTH, norm=RMSNorm()), num_layers=2, norm=RMSNorm(zero_centred=True)),
    "sandwich": model(Block(branches=BOTH, order="sandwich", norm=RMSNorm()), num_layers=2),
    "res_post": model(Block(branches=BOTH, order="res_post"), num_layers=2),
    "parallel": model(Block(branches=BOTH, order="parallel", residual=Add(factor=0.3)), num_layers=2),
    "scaled residual": model(Block(branches=BOTH, residual=Scaled(initial=0.5), factors=(2.0, 0.7))),
    "no norm": model(Block(branches=BOTH), norm=NoNorm()),
    "batch norm": model(Block(branches=BOTH), norm=BatchNorm()),
    "seven mixers": seven(num_layers=2),
    "cap and scale": model(num_layers=2, head=LanguageModelHead(softcap=3.0, scale=0.5, bias=True)),
    "encoder–decoder": model(Block(branches=CROSS), num_layers=2, encoder=ENCODER),
    "rounds": model(Block(branches=BOTH), num_layers=2, rounds=2),
    "segments": model(num_layers=2, segmentation=RecurrentMemory(segment=3, num_memory=2)),
}
CLASSES = [1, 7, 3]


def made(spec: Model) -> Transformer:
    """Model in float64 whose weights differ from their initial values."""
    m = build(spec).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in m.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return m


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@torch.no_grad()
def test_the_parts_sum_to_the_logit(name: str, dtype: torch.dtype, bound: float) -> None:
    m = made(FORMS[name]).to(dtype)
    source = ids(2, 5, 3) % 9 if m.encoder else None
    found = logit_attribution(m, ids(), CLASSES, position=4, source=source)
    logits = m.eval()(ids(), memory=None if source is None else m.encode(source))[0][:, 4, CLASSES]
    expected = 3 * (logits / 3).atanh() if found.capped else logits
    assert (found.values.sum(0) - expected).abs().max() < bound * max(1, float(expected.abs().max()))
    assert found.error < bound
    heads: list[Any] = [
        b.num_heads for b in m.walked_branches if hasattr(b, "num_heads") and "head_outputs" in b.points()
    ]
    assert sum(part.head is not None for part in found.parts) >= (0 if m.segmentation else sum(heads))
    assert [part.part for part in found.parts][:: len(found.parts) - 1] == ["embedding", "bias"]


@torch.no_grad()
def test_heads_equal_products_by_hand() -> None:
    m = made(FORMS["pre"]).eval()
    found = logit_attribution(m, ids(), CLASSES)
    x, context = m.embed(Signal(ids()))
    terms: dict[tuple[str, int | None], Tensor] = {("embedding", None): x[:, -1]}
    for i, block in enumerate(m.blocks):
        for j, slot in enumerate(block.branches):  # type: ignore[union-attr, arg-type]
            y, seen = slot.body(slot.norm(x, context), context)[0], list[Any]()
            path = f"blocks.{i}.branches.{j}"
            terms[path, None] = y[:, -1]
            if j == 0:
                hook = slot.body.output.register_forward_pre_hook(lambda module, z, seen=seen: seen.append(z[0]))
                slot.body(slot.norm(x, context), context)
                hook.remove()
                for h in range(4):
                    own = slice(4 * h, 4 * h + 4)
                    terms[path, h] = seen[0][:, -1, own] @ slot.body.output.weight[:, own].T
                    terms[path, None] = terms[path, None] - terms[path, h]
            x = x + y
    last = x[:, -1]
    deviation = (last.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    for part, value in zip(found.parts[:-1], found.values, strict=False):
        term = terms[part.path, part.head]
        normed = (term - term.mean(-1, keepdim=True)) / deviation * m.norm.weight  # type: ignore[operator]
        torch.testing.assert_close(value, normed @ m.frontend.table[CLASSES].T)  # type: ignore[index]
    assert len(found.parts) == len(terms) + 1


def test_a_head_in_eight_bits_is_within_its_rounding() -> None:
    m = made(FORMS["rms"]).float()
    quantize(m, Quantization(bits=8))
    found = logit_attribution(m, ids(), CLASSES)
    assert 1e-6 < found.error < 0.03 * float(found.values.abs().max())
    assert {part.head for part in found.parts} == {None, 0, 1, 2, 3}


@pytest.mark.parametrize(
    ("spec", "options", "sentence"),
    [
        (model(Block(branches=BOTH, order="post")), {}, "blocks normalise the stream itself"),
        (model(Block(branches=BOTH, residual=NoResidual())), {}, "residual connections do not keep it"),
        (
            model(Block(branches=BOTH, residual=Reversible()), head=LanguageModelHead(tied=False)),
            {},
            "reversible blocks have two streams",
        ),
        (model(num_layers=2, depth_average=DepthAverage()), {}, "averages over depth"),
        (model(head=ClassificationHead(num_classes=3)), {}, "has no logits of classes for each position"),
        (model(head=LanguageModelHead(transform="gelu")), {}, "not a linear function of the residual stream"),
        (model(), {"ids": [13]}, "class 13 does not exist; allowed: ids from 0 to 12"),
        (model(), {"position": 9}, "position 9 is outside the row"),
    ],
)
def test_what_is_no_sum_is_refused(spec: Model, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        logit_attribution(made(spec), ids(), **{"ids": CLASSES, **options})
