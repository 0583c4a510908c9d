"""Folders of decoders that read images between their tokens: logits, chats with pictures, export."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from tests.interop.test_pairs import WORDS, pictures
from tests.interop.word_pieces import word_pieces

from qkv.cli.main import main
from qkv.generation.decode.beam import beam_search
from qkv.interop.load import load_published
from qkv.layers.signal import Signal
from qkv.runs.storage.load import load
from qkv.serving.engine.model import ServedModel
from qkv.serving.limits import Limits
from qkv.serving.requests.chats import ChatBody
from qkv.spec.generation import Generation
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
SPECIALS = ["<pad>", "<unk>", "<s>", "</s>", "<image>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }} "
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }} {% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}dog {% endif %}"
)
"""Template of LLaVA's form: contents are lists, and images come first."""
VISION = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


KINDS = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig, "qwen2": transformers.Qwen2Config}


def llava(folder: Path, text: str = "llama", **changes: Any) -> transformers.LlavaForConditionalGeneration:
    """Write a folder of LLaVA with random weights, all moved away from their starts, with tokenizer and processor."""
    folder.mkdir()
    pieces = word_pieces(SPECIALS, ("user", "assistant", *WORDS), "$A", "$A $B")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<image>"],
        chat_template=TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    kinds = {
        "llama": transformers.LlamaConfig,
        "mistral": transformers.MistralConfig,
        "qwen2": transformers.Qwen2Config,
    }
    words = kinds[text](**TEXT, vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=64)
    images = changes.pop("images", transformers.CLIPVisionConfig)(**VISION, image_size=16, patch_size=4)
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=images, text_config=words, image_token_index=SPECIALS.index("<image>"), **changes
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    ).save_pretrained(folder)
    settings = {"eos_token_id": 3, "max_new_tokens": 8}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return model


FORMS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"text": "mistral", "projector_hidden_act": "gelu_pytorch_tanh"},
    "qwen2": {"text": "qwen2", "multimodal_projector_bias": False},
    "every position": {"vision_feature_select_strategy": "full"},
    "last layer": {"vision_feature_layer": -1},
    "siglip": {"images": transformers.SiglipVisionConfig, "vision_feature_select_strategy": "full"},
}


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_the_library(form: str, tmp_path: Path) -> None:
    model = llava(tmp_path / "llava", **FORMS[form])
    ours = load_published(tmp_path / "llava").model.eval()
    pixels = torch.randn(2, 3, 16, 16)
    count = 16 + (form == "every position")
    ids = torch.tensor([[2, 7, *[4] * count, 8, 9], [2, *[4] * count, 9, 10, 11]])
    with torch.no_grad():
        theirs = model(input_ids=ids, pixel_values=pixels).logits
        found, _ = ours(Signal(ids.masked_fill(ids == 4, -1), inputs={"image": Signal(pixels)}))
    torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-5)


def test_a_chat_about_a_picture_is_that_of_the_library(tmp_path: Path) -> None:
    model, (path, *_) = llava(tmp_path / "llava"), pictures(tmp_path)
    served = ServedModel("llava", load(tmp_path / "llava"), Limits())
    uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    content = [{"type": "text", "text": "red cat"}, {"type": "image_url", "image_url": {"url": uri}}]
    body = ChatBody.parse({"model": "llava", "messages": [{"role": "user", "content": content}]})
    spans, inputs = served.read_pictures(body.pictures)
    ids = served.chat_prompt(body.to_template(), {}, spans=spans)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "llava")
    messages = [{"role": "user", "content": [{"type": "text", "text": "red cat"}, {"type": "image"}]}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    theirs = tokenizer(text.replace("<image>", "<image>" * 16), return_tensors="pt", add_special_tokens=False)
    assert [4 if index < 0 else index for index in ids] == theirs["input_ids"][0].tolist()
    processor = transformers.CLIPImageProcessorPil.from_pretrained(tmp_path / "llava")
    pixels = processor([Image.open(path)], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = model.generate(**theirs, pixel_values=pixels, do_sample=False, max_new_tokens=8)
    assert inputs is not None
    settings = Generation(max_new_tokens=8, temperature=0)
    (best,) = beam_search(served.run.model, [ids], settings, 3, inputs=[inputs])
    written = best[0].tokens
    assert written == expected[0, len(ids) :].tolist()[: len(written)]
    assert len(written) > 3


@pytest.mark.parametrize("form", ["llama", "mistral", "qwen2"])
def test_an_exported_folder_opens_in_the_library(form: str, tmp_path: Path) -> None:
    model = llava(tmp_path / "llava", **FORMS[form])
    assert main(["export", str(tmp_path / "llava"), "--out", str(tmp_path / "again")]) == 0
    again = transformers.LlavaForConditionalGeneration.from_pretrained(tmp_path / "again").eval()
    assert again.config.image_token_id == 4
    ids, pixels = torch.tensor([[2, *[4] * 16, 9, 10]]), torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        outputs = [each(input_ids=ids, pixel_values=pixels).logits for each in (model, again)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)


def test_towers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    llava(tmp_path / "llava")
    path = tmp_path / "llava" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "vision_feature_layer": -4}))
    with pytest.raises(UserError, match="3 layers, of which the vectors of layer 0 are read"):
        load_published(tmp_path / "llava")
    path.write_text(json.dumps({**config, "vision_config": {**config["vision_config"], "model_type": "sam"}}))
    with pytest.raises(UserError, match="model_type is 'sam'"):
        load_published(tmp_path / "llava")
