"""Folders of models that match images and texts: scores, labels, search and export as in the transformers library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tests.interop.word_pieces import word_pieces, write_clip_tokenizer

import qkv
from qkv.cli.main import main
from qkv.interop.load import load_published
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
WORDS = ("a", "photo", "of", "red", "blue", "square", "cat", "dog")
TEXTS = ["a photo of a red square", "blue cat", "dog"]


def clip(folder: Path, **changes: Any) -> transformers.CLIPModel:
    """Write a folder of CLIP with random weights, all moved away from their starts, with tokenizer and processor."""
    torch.manual_seed(0)
    end = write_clip_tokenizer(folder, WORDS)
    text = {
        "vocab_size": end + 1,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 40,
        "max_position_embeddings": 16,
        "eos_token_id": end,
        "bos_token_id": end - 1,
        **changes.get("text", {}),
    }
    images = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "image_size": 16,
        "patch_size": 4,
        **changes.get("vision", {}),
    }
    config = transformers.CLIPConfig(text_config=text, vision_config=images, projection_dim=changes.get("width", 20))
    model = transformers.CLIPModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    size = images["image_size"]
    processor = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": size},
        "crop_size": {"height": size, "width": size},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


def pictures(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [folder / f"{i}.png" for i in range(3)]
    for path, shape in zip(paths, ((20, 30, 3), (16, 16, 3), (40, 17, 3)), strict=True):
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)
    return paths


def scores_of(model: transformers.CLIPModel, folder: Path, paths: list[Path], texts: list[str]) -> torch.Tensor:
    """Scores of images (rows) and texts by the transformers library."""
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    processor = transformers.CLIPImageProcessorPil.from_pretrained(folder)
    pixels = processor([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        return model(**tokens, pixel_values=pixels).logits_per_image


FORMS: dict[str, dict[str, Any]] = {
    "as published": {},
    "other sizes": {"width": 12, "text": {"hidden_act": "gelu", "layer_norm_eps": 1e-3}, "vision": {"patch_size": 8}},
    "first end token": {"text": {"eos_token_id": 2}},
    "deep text": {"text": {"num_hidden_layers": 3, "num_attention_heads": 6}, "vision": {"num_hidden_layers": 1}},
}


@pytest.mark.parametrize("form", FORMS)
def test_labels_have_the_probabilities_of_the_library(form: str, tmp_path: Path) -> None:
    model, paths = clip(tmp_path / "clip", **FORMS[form]), pictures(tmp_path)
    theirs = scores_of(model, tmp_path / "clip", paths, TEXTS).softmax(-1)
    answers = qkv.predict(tmp_path / "clip", *map(str, paths), labels=TEXTS)
    ours = torch.tensor([list(answer["probabilities"].values()) for answer in answers])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_an_exported_folder_opens_in_the_library(tmp_path: Path) -> None:
    model, paths = clip(tmp_path / "clip"), pictures(tmp_path)
    assert main(["export", str(tmp_path / "clip"), "--out", str(tmp_path / "again")]) == 0
    again = transformers.CLIPModel.from_pretrained(tmp_path / "again").eval()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)
    theirs = scores_of(model, tmp_path / "clip", paths, TEXTS)
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")(TEXTS, padding=True, return_tensors="pt")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "again", backend="pil")
    pixels = processor([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        found = again(input_ids=tokens["input_ids"], pixel_values=pixels).logits_per_image
    torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-4)


def test_words_find_pictures(tmp_path: Path) -> None:
    model, paths = clip(tmp_path / "clip"), pictures(tmp_path)
    (tmp_path / "found").mkdir()
    moved = [path.rename(tmp_path / "found" / path.name) for path in paths]
    theirs = scores_of(model, tmp_path / "clip", moved, ["blue cat"])[:, 0]
    (hits,) = qkv.search(tmp_path / "clip", tmp_path / "found", "blue cat", top=3)
    assert [Path(hit.text).name for hit in hits] == [moved[int(i)].name for i in theirs.argsort(descending=True)]


def test_the_task_and_what_it_does_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip(tmp_path / "clip")
    loaded = load_published(tmp_path / "clip")
    assert (loaded.family, loaded.architecture) == ("CLIP", "CLIPModel")
    assert main(["load", str(tmp_path / "clip")]) == 0
    printed = capsys.readouterr().out
    assert "qkv search" in printed


def test_a_folder_without_a_processor_is_refused(tmp_path: Path) -> None:
    clip(tmp_path / "clip")
    (tmp_path / "clip" / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"holds no preprocessor_config\.json"):
        qkv.predict(tmp_path / "clip", "a.png", labels=["a"])


def siglip(folder: Path, length: int) -> transformers.SiglipModel:
    """Write a folder of SigLIP with random weights, all moved away from their starts, with tokenizer and processor."""
    folder.mkdir()
    pieces = word_pieces(["<pad>", "<unk>", "<s>", "</s>"], WORDS, "$A {sep}", "$A {sep} $B {sep}")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "hidden_size": 32}
    text = {**sizes, "vocab_size": len(tokenizer), "max_position_embeddings": length, "pad_token_id": 0}
    torch.manual_seed(0)
    config = transformers.SiglipConfig(text_config=text, vision_config={**sizes, "image_size": 16, "patch_size": 4})
    model = transformers.SiglipModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    transformers.SiglipImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return model


@pytest.mark.parametrize("length", [6, 10])
def test_siglip_fills_texts_and_pools_images_as_the_library(length: int, tmp_path: Path) -> None:
    model, paths, texts = siglip(tmp_path / "siglip", length), pictures(tmp_path), ["a red cat", "dog", "a of blue dog"]
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "siglip")(
        texts, padding="max_length", max_length=length, return_tensors="pt"
    )
    processor = transformers.SiglipImageProcessorPil.from_pretrained(tmp_path / "siglip")
    pixels = processor([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        theirs = model(input_ids=tokens["input_ids"], pixel_values=pixels).logits_per_image
    answers = qkv.predict(tmp_path / "siglip", *map(str, paths), labels=texts, multi_label=True)
    ours = torch.tensor([list(answer["probabilities"].values()) for answer in answers])
    torch.testing.assert_close(ours, theirs.sigmoid(), rtol=1e-4, atol=1e-6)
    assert main(["export", str(tmp_path / "siglip"), "--out", str(tmp_path / "again")]) == 0
    again = transformers.SiglipModel.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        exported = again(input_ids=tokens["input_ids"], pixel_values=pixels).logits_per_image
    torch.testing.assert_close(exported, theirs, rtol=1e-5, atol=1e-5)


def test_siglip_without_its_pooling_is_refused(tmp_path: Path) -> None:
    siglip(tmp_path / "siglip", 6)
    config = json.loads((tmp_path / "siglip" / "config.json").read_text())
    config["vision_config"]["vision_use_head"] = False
    (tmp_path / "siglip" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="vision_use_head"):
        load_published(tmp_path / "siglip")


IMAGES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
}
READS = {"is_decoder": True, "add_cross_attention": True, "vocab_size": 4 + len(WORDS)}
TROCR = {
    "d_model": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 20,
    "cross_attention_hidden_size": 32,
}


def stacks(kind: str) -> tuple[Any, Any]:
    """Configs of an encoder of images and of a decoder of that kind."""
    if kind == "gpt2":
        decoder = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=20, **READS)
        return transformers.ViTConfig(**IMAGES), decoder
    if kind == "bert":
        words = {name: IMAGES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
        decoder = transformers.BertConfig(**words, intermediate_size=40, max_position_embeddings=20, **READS)
        return transformers.ViTConfig(**IMAGES), decoder
    return transformers.DeiTConfig(**IMAGES), transformers.TrOCRConfig(**TROCR, **READS)


def writer(folder: Path, kind: str, seed: int) -> transformers.VisionEncoderDecoderModel:
    """Write a folder of an encoder of images and a decoder, with random weights, a tokenizer and a processor."""
    folder.mkdir()
    pieces = word_pieces(["<pad>", "<unk>", "<s>", "</s>"], WORDS, "{cls} $A {sep}", "{cls} $A {sep} $B {sep}")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*stacks(kind))
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 2, 0, 3
    model = transformers.VisionEncoderDecoderModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    model.tie_weights()
    model.save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return model


@pytest.mark.parametrize(("kind", "seed"), [("gpt2", 3), ("trocr", 0), ("bert", 6)])
def test_captions_are_those_of_the_library(kind: str, seed: int, tmp_path: Path) -> None:
    model, paths = writer(tmp_path / "writer", kind, seed), pictures(tmp_path)
    processor = transformers.ViTImageProcessorPil.from_pretrained(tmp_path / "writer")
    pixels = processor([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        ids = model.generate(pixel_values=pixels, max_new_tokens=8, do_sample=False, decoder_start_token_id=2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "writer")
    theirs = [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    settings = {"max_new_tokens": 8, "do_sample": False, "decoder_start_token_id": 2, "eos_token_id": 3}
    (tmp_path / "writer" / "generation_config.json").write_text(json.dumps(settings))
    answers = qkv.predict(tmp_path / "writer", *map(str, paths))
    assert [answer["answer"] for answer in answers] == theirs
    assert len(set(theirs)) > 1


@pytest.mark.parametrize("kind", ["gpt2", "trocr", "bert"])
def test_an_exported_writer_opens_in_the_library(kind: str, tmp_path: Path) -> None:
    model = writer(tmp_path / "writer", kind, 0)
    assert main(["export", str(tmp_path / "writer"), "--out", str(tmp_path / "again")]) == 0
    again = transformers.VisionEncoderDecoderModel.from_pretrained(tmp_path / "again").eval()
    pixels, ids = torch.randn(2, 3, 16, 16), torch.tensor([[2, 5, 6], [2, 7, 4]])
    with torch.no_grad():
        outputs = [each(pixel_values=pixels, decoder_input_ids=ids).logits for each in (model, again)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)


def test_a_decoder_of_another_width_without_its_map_is_refused(tmp_path: Path) -> None:
    writer(tmp_path / "writer", "trocr", 0)
    config = json.loads((tmp_path / "writer" / "config.json").read_text())
    config["decoder"]["cross_attention_hidden_size"] = None
    (tmp_path / "writer" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="needs a linear map of the encoder's output"):
        load_published(tmp_path / "writer")
