"""Folders of Chinese CLIP: labels and export as in the transformers library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from PIL import Image
from tests.interop.test_pairs import TEXTS, WORDS, pictures
from tests.interop.word_pieces import word_pieces

import qkv
from qkv.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def chinese_clip(folder: Path) -> transformers.ChineseCLIPModel:
    """Write a folder with random weights, all moved away from their starts, with tokenizer and processor."""
    folder.mkdir()
    pieces = word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]"], WORDS, "{cls} $A {sep}", "{cls} $A {sep} $B {sep}")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    tokenizer.save_pretrained(folder)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    text = {**sizes, "vocab_size": len(tokenizer), "hidden_size": 24, "max_position_embeddings": 16}
    vision = {**sizes, "hidden_size": 32, "image_size": 16, "patch_size": 4}
    torch.manual_seed(0)
    config = transformers.ChineseCLIPConfig(text_config=text, vision_config=vision, projection_dim=20)
    model = transformers.ChineseCLIPModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    processor().save_pretrained(folder)
    return model


def processor() -> transformers.ChineseCLIPImageProcessorPil:
    return transformers.ChineseCLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})


def test_labels_and_an_export_are_those_of_the_library(tmp_path: Path) -> None:
    model, paths = chinese_clip(tmp_path / "model"), pictures(tmp_path)
    answers = qkv.predict(tmp_path / "model", *map(str, paths), labels=TEXTS)
    ours = torch.tensor([list(answer["probabilities"].values()) for answer in answers])
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")(TEXTS, padding=True, return_tensors="pt")
    pixels = processor()([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
    inputs = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"], "pixel_values": pixels}
    assert main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "again")]) == 0
    again = transformers.ChineseCLIPModel.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        theirs, exported = (each(**inputs).logits_per_image.softmax(-1) for each in (model, again))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(exported, theirs, rtol=1e-5, atol=1e-6)
