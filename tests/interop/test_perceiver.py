"""Perceiver beside the battery: a folder of words as bytes, its positions, what is saved as one, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interop.battery import made, padded
from tests.interop.cases.case import Case
from tests.interop.cases.perceiver import config
from tests.interop.folders import edit
from transformers import PerceiverForMaskedLM, PerceiverTokenizer

import qkv
from qkv.interop.load import load_published
from qkv.interop.mapping.normal import normal
from qkv.interop.save import save_published
from qkv.interop.where import everywhere, where
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import FeedForward
from qkv.spec.model import Model
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import LayerNorm, RMSNorm, Sinusoidal
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers"
)


def folder_of(folder: Path, **changed: Any) -> Path:
    made(Case("perceiver", PerceiverForMaskedLM, config(**changed)), folder)
    return folder


def model_of(folder: Path, **changed: Any) -> Model:
    return load_published(folder_of(folder, **changed)).spec


def test_words_as_bytes_are_filled_in_as_by_that_library(tmp_path: Path) -> None:
    text = "To be, or not to be"
    theirs = made(
        Case("bytes", PerceiverForMaskedLM, config(vocab_size=262, max_position_embeddings=len(text) + 2)), tmp_path
    ).theirs
    words = PerceiverTokenizer()
    words.save_pretrained(tmp_path)
    (answer,) = qkv.predict(qkv.load(tmp_path), {"text": text.replace("r", "<mask>")})
    ids, place = words.encode(text), 1 + text.index("r")
    ids[place] = int(words.mask_token_id)  # type: ignore[arg-type]
    with torch.no_grad():
        logits = theirs(torch.tensor([ids])).logits[0, place]
    logits[words.mask_token_id] = -torch.inf
    best = logits.softmax(-1).topk(5)
    assert [each["probability"] for each in answer["best"][0]] == pytest.approx(best.values.tolist(), rel=1e-4)
    named = [words.decode([index]) for index in best.indices.tolist() if index > 5]
    assert named
    assert [each["word"] for each in answer["best"][0] if each["word"]] == named


def test_a_name_leads_to_the_latents(tmp_path: Path) -> None:
    spec = model_of(tmp_path)
    model = Transformer(spec)
    places = {
        "latents.vectors.table": "model.latents",
        "latents.blocks.3.branches.1.body.up.weight": "model.latents.blocks.3.branches.1",
        "latents.norm.bias": "model.latents.norm",
        "queries.positions.table": "model.queries.positions",
    }
    assert {name: where(model, name, None, "").spec_path for name in places} == places
    found = everywhere("perceiver.encoder.self_attends.1.attention.self.key.weight")
    assert [(family, place.ours) for family, place in found] == [
        ("Perceiver", "latents.blocks.2.branches.0.body.qkv.weight")
    ]


def test_the_published_sizes(tmp_path: Path) -> None:
    """The default of that library is deepmind/language-perceiver but for the channels; 201 million numbers."""
    from transformers import PerceiverConfig

    from qkv.costs.cost import cost
    from qkv.interop.mapping.config import Config
    from qkv.interop.mapping.family import read_spec
    from qkv.interop.registry import choose

    said = Config(
        {**PerceiverConfig(qk_channels=256, v_channels=1280).to_dict(), "architectures": ["PerceiverForMaskedLM"]}
    )
    family, architecture = choose(said)
    assert cost(read_spec(family, architecture, said)).parameters == 201_108_230


@torch.no_grad()
def test_what_is_written_another_way_is_saved_as_one(tmp_path: Path) -> None:
    spec = model_of(tmp_path / "theirs")
    assert spec.latents is not None
    first, *others = spec.latents.blocks
    other = spec.changed(
        latents=spec.latents.changed(blocks=(first, others[0].changed(norm=LayerNorm())), num_layers=None)
    )
    model = build(other, 3).eval()
    save_published(model, tmp_path / "ours")
    theirs = PerceiverForMaskedLM.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    ids, real = padded([[5, 6, 7, 8, 9, 10, 11, 12, 13], [4, 5]])
    answer = theirs(ids, attention_mask=real).logits
    torch.testing.assert_close(
        model(Signal(ids, lengths=real.sum(1)))[0][real.bool()], answer[real.bool()], rtol=1e-4, atol=1e-5
    )
    assert normal(load_published(tmp_path / "ours").spec) == normal(other)


@pytest.mark.parametrize("change", ["sinusoidal", "another norm", "two cross-attentions", "another feed-forward"])
def test_what_no_published_form_has_is_not_saved_as_one(change: str, tmp_path: Path) -> None:
    spec = model_of(tmp_path / "theirs")
    assert spec.latents is not None
    assert spec.queries is not None
    first, *others = spec.latents.blocks
    wide = others[0].changed(branches=(others[0].branches[0], FeedForward(hidden=31)))
    changed: dict[str, dict[str, Any]] = {
        "sinusoidal": {"queries": spec.queries.changed(positions=Sinusoidal())},
        "another norm": {"norm": RMSNorm()},
        "two cross-attentions": {"latents": spec.latents.changed(blocks=(first, first, *others))},
        "another feed-forward": {"latents": spec.latents.changed(blocks=(first, wide, *others))},
    }
    assert isinstance(first.branches[0], CrossAttention)
    with pytest.raises(UserError):
        save_published(build(spec.changed(**changed[change])), tmp_path / "ours", family="Perceiver")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"num_blocks": 2**31}, "num_blocks is 2,147,483,648, but the weight files beside it contain only"),
        (
            {"v_channels": 45},
            "v_channels: the values of the attention between latents have 45 features, and latents have 30",
        ),
        ({"qk_channels": 31, "v_channels": 30}, "31 features of queries and keys are not divisible by 3 heads"),
        (
            {"cross_attention_shape_for_attention": "qk"},
            "cross_attention_shape_for_attention is 'qk', which qkv does not support",
        ),
        (
            {"architectures": ["PerceiverForOpticalFlow"]},
            "the architecture 'PerceiverForOpticalFlow' is not supported for Perceiver",
        ),
    ],
)
def test_what_is_not_known_is_a_sentence(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    edit(folder_of(tmp_path) / "config.json", lambda tree: tree.update(changed))
    with pytest.raises(UserError, match=sentence):
        load_published(tmp_path)
