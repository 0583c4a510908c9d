"""Folders of BLIP that write captions: logits, captions and export, as in the transformers library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from tests.interop.test_pairs import WORDS, pictures
from tests.interop.word_pieces import word_pieces

import qkv
from qkv.cli.main import main
from qkv.interop.load import load_published
from qkv.layers.signal import Signal
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
BEGIN, END = 2, 3
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
FORMS: dict[str, dict[str, Any]] = {
    "one width": {"vision": {"hidden_size": 32}, "text": {"hidden_size": 32}},
    "two widths": {
        "vision": {"hidden_size": 48, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-3},
        "text": {"hidden_size": 32, "num_hidden_layers": 1, "layer_norm_eps": 1e-3, "hidden_act": "relu"},
    },
}


def blip(folder: Path, form: str, seed: int = 0) -> transformers.BlipForConditionalGeneration:
    """Write a folder of BLIP with random weights, all moved away from their starts, with tokenizer and processor."""
    folder.mkdir()
    pieces = word_pieces(["<pad>", "<unk>", "<s>", "</s>"], WORDS, "{cls} $A {sep}", "{cls} $A {sep} $B {sep}")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", sep_token="</s>"
    ).save_pretrained(folder)
    text = {
        **SIZES,
        "vocab_size": 4 + len(WORDS),
        "max_position_embeddings": 20,
        "bos_token_id": BEGIN,
        "sep_token_id": END,
        "pad_token_id": 0,
        **FORMS[form]["text"],
    }
    vision = {**SIZES, "image_size": 16, "patch_size": 4, **FORMS[form]["vision"]}
    torch.manual_seed(seed)
    config = transformers.BlipConfig(text_config=text, vision_config=vision)
    model = transformers.BlipForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    model.tie_weights()
    model.save_pretrained(folder)
    transformers.BlipImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return model


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_the_library(form: str, tmp_path: Path) -> None:
    """Whole rows, and steps after a prefill."""
    model = blip(tmp_path / "blip", form)
    ours = load_published(tmp_path / "blip").model
    pixels, ids = torch.randn(2, 3, 16, 16), torch.randint(4, 12, (2, 7))
    with torch.no_grad():
        theirs = model(pixel_values=pixels, input_ids=ids).logits
        memory = ours.encode(Signal(pixels))
        whole, _ = ours(Signal(ids), memory=memory)
        first, state = ours(Signal(ids[:, :5]), ours.init_state(2, memory=memory))
        steps = [first]
        for i in range(5, 7):
            each, state = ours(Signal(ids[:, i : i + 1]), state)
            steps.append(each)
    scale = float(theirs.abs().max())
    assert float((whole - theirs).abs().max()) < 1e-4 * scale
    assert float((torch.cat(steps, 1) - theirs).abs().max()) < 1e-4 * scale


@pytest.mark.parametrize(("form", "seed"), [("one width", 0), ("two widths", 1)])
def test_captions_are_those_of_the_library(form: str, seed: int, tmp_path: Path) -> None:
    """The first token and the end are those of the published code, which the written settings contradict."""
    model, paths = blip(tmp_path / "blip", form, seed), pictures(tmp_path)
    processor = transformers.BlipImageProcessorPil.from_pretrained(tmp_path / "blip")
    pixels = processor([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        ids = model.generate(pixel_values=pixels, max_new_tokens=8, do_sample=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "blip")
    theirs = [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    settings = tmp_path / "blip" / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_new_tokens": 8}))
    answers = qkv.predict(tmp_path / "blip", *map(str, paths))
    assert [answer["answer"] for answer in answers] == theirs
    assert any(theirs)


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_folder_opens_in_the_library(form: str, tmp_path: Path) -> None:
    model = blip(tmp_path / "blip", form)
    assert main(["export", str(tmp_path / "blip"), "--out", str(tmp_path / "again")]) == 0
    again = transformers.BlipForConditionalGeneration.from_pretrained(tmp_path / "again").eval()
    pixels, ids = torch.randn(2, 3, 16, 16), torch.tensor([[2, 5, 6], [2, 7, 4]])
    with torch.no_grad():
        outputs = [each(pixel_values=pixels, input_ids=ids).logits for each in (model, again)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)


def test_other_heads_say_what_they_need(tmp_path: Path) -> None:
    blip(tmp_path / "blip", "one width")
    transformers.BlipForImageTextRetrieval(transformers.BlipConfig.from_pretrained(tmp_path / "blip")).save_pretrained(
        tmp_path / "matching"
    )
    with pytest.raises(UserError, match="needs: a bidirectional stack of texts"):
        load_published(tmp_path / "matching")
