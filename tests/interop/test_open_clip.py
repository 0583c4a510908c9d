"""Folders of OpenCLIP: the towers of CLIP under other names, with quick GELU or not, read and exported as CLIP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tests.interop.test_pairs import TEXTS, clip, pictures, scores_of

import qkv
from qkv.cli.main import main
from qkv.interop.load import load_published
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
LAYERS = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
OTHERS = {
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
    "logit_scale": "logit_scale",
}


def renamed(model: transformers.CLIPModel) -> dict[str, torch.Tensor]:
    """The tensors of CLIP under the names of OpenCLIP."""
    theirs = model.state_dict()
    ours = {there: theirs[here] for here, there in OTHERS.items()}
    ours["text_projection"] = theirs["text_projection.weight"].T
    ours["visual.proj"] = theirs["visual_projection.weight"].T
    for tower, name in (("text_model", "transformer"), ("vision_model", "visual.transformer")):
        layers = {int(key.split(".")[3]) for key in theirs if key.startswith(f"{tower}.encoder.layers.")}
        for i in layers:
            here, there = f"{tower}.encoder.layers.{i}.", f"{name}.resblocks.{i}."
            for leaf in ("weight", "bias"):
                packed = [theirs[f"{here}self_attn.{part}_proj.{leaf}"] for part in "qkv"]
                ours[f"{there}attn.in_proj_{leaf}"] = torch.cat(packed)
                ours |= {f"{there}{b}.{leaf}": theirs[f"{here}{a}.{leaf}"] for a, b in LAYERS.items()}
    return {name: tensor.contiguous() for name, tensor in ours.items()}


def open_clip(folder: Path, weights: str = "open_clip_model.safetensors", **cfg: Any) -> transformers.CLIPModel:
    """Write a folder of OpenCLIP, whose weights are those of a random CLIP."""
    activation = "quick_gelu" if cfg.get("quick_gelu") else "gelu"
    acts = {"text": {"hidden_act": activation}, "vision": {"hidden_act": activation}}
    model = clip(folder, **acts)
    for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
        (folder / name).unlink()
    prefix = "text." if cfg.pop("custom_text", False) else ""
    texts = ("token_embedding", "positional_embedding", "ln_final", "text_projection", "transformer")
    tensors = {prefix * name.startswith(texts) + name: tensor for name, tensor in renamed(model).items()}
    if weights.endswith(".bin"):
        torch.save(tensors, folder / weights)
    else:
        save_file(tensors, folder / weights)
    text = {"context_length": 16, "vocab_size": model.config.text_config.vocab_size, "width": 24, "heads": 2}
    vision = {"image_size": 16, "layers": 2, "width": 32, "head_width": 8, "patch_size": 4, "mlp_ratio": 1.5}
    keys = {
        "embed_dim": 20,
        "vision_cfg": {**vision, **cfg.pop("vision", {})},
        "text_cfg": {**text, "layers": 2, "mlp_ratio": 40 / 24, **cfg.pop("text", {})},
        **cfg,
    }
    preprocess = {
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.3, 0.4],
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    }
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": keys, "preprocess_cfg": preprocess}))
    return model


FORMS: dict[str, dict[str, Any]] = {
    "gelu": {},
    "quick gelu": {"quick_gelu": True},
    "custom text": {"custom_text": True},
    "older name": {"weights": "open_clip_pytorch_model.safetensors"},
}


def write_processor(folder: Path) -> None:
    """Write CLIP's processor with the settings of ``open_clip``, for the library."""
    transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 16},
        crop_size={"height": 16, "width": 16},
        image_mean=[0.5, 0.4, 0.3],
        image_std=[0.2, 0.3, 0.4],
    ).save_pretrained(folder)


@pytest.mark.parametrize("form", FORMS)
def test_labels_have_the_probabilities_of_the_library(form: str, tmp_path: Path) -> None:
    model, paths = open_clip(tmp_path / "model", **FORMS[form]), pictures(tmp_path)
    answers = qkv.predict(tmp_path / "model", *map(str, paths), labels=TEXTS)
    write_processor(tmp_path / "model")
    theirs = scores_of(model, tmp_path / "model", paths, TEXTS).softmax(-1)
    ours = torch.tensor([list(answer["probabilities"].values()) for answer in answers])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_pickled_weights_are_opened_on_request(tmp_path: Path) -> None:
    open_clip(tmp_path / "model", "open_clip_pytorch_model.bin")
    with pytest.raises(UserError, match="only in a pickle"):
        load_published(tmp_path / "model")
    assert load_published(tmp_path / "model", pickles=True).family == "OpenCLIP"


def test_an_export_is_a_folder_of_clip_that_opens_in_the_library(tmp_path: Path) -> None:
    model = open_clip(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "again")]) == 0
    again = transformers.CLIPModel.from_pretrained(tmp_path / "again").eval()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vision": {"timm_model_name": "vit_base"}}, "timm_model_name"),
        ({"text": {"hf_model_name": "roberta"}}, "hf_model_name"),
        ({"vision": {"head_width": 5}}, "head_width is 5"),
        ({"init_logit_bias": -10}, "init_logit_bias"),
    ],
)
def test_other_towers_are_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    open_clip(tmp_path / "model", **changes)
    with pytest.raises(UserError, match=sentence):
        load_published(tmp_path / "model")
