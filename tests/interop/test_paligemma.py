"""Folders of PaliGemma 1 and 2: logits, prompts and answers about pictures, export, as in the transformers library."""

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
IMAGE, COUNT = 4, 16
SPECIALS = ["<pad>", "<unk>", "<s>", "</s>", "<image>"]
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
    "vision_use_head": False,
}
TEXT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
FORMS: dict[str, Any] = {
    "first": transformers.GemmaConfig,
    "second": lambda **keys: transformers.Gemma2Config(**keys, sliding_window=5, query_pre_attn_scalar=8),
}


def paligemma(folder: Path, form: str) -> transformers.PaliGemmaForConditionalGeneration:
    """Write a folder of PaliGemma with random weights, all moved away from their starts."""
    folder.mkdir()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_pieces(SPECIALS, (*WORDS, "\n"), "$A", "$A $B"),
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<image>"],
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION),
        text_config=FORMS[form](**TEXT, vocab_size=len(tokenizer)),
        image_token_index=IMAGE,
        projection_dim=TEXT["hidden_size"],
    )
    model = transformers.PaliGemmaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    transformers.SiglipImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, "max_new_tokens": 8}))
    return model


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_the_library(form: str, tmp_path: Path) -> None:
    """Rows of two lengths, whose prompts of other lengths see all of themselves, and a step after a prefill."""
    model = paligemma(tmp_path / "model", form)
    ours = load_published(tmp_path / "model").model.eval()
    pixels = torch.randn(2, 3, 16, 16)
    rows = torch.tensor([[*[IMAGE] * COUNT, 2, 8, 9, 5, 6, 10, 7], [*[IMAGE] * COUNT, 2, 9, 11, 10, 6, 0, 0]])
    lengths, prefix = torch.tensor([23, 21]), torch.tensor([19, 18])
    steps = torch.arange(23)
    given = {
        "attention_mask": (steps < lengths[:, None]).long(),
        "token_type_ids": (steps >= prefix[:, None]).long(),
    }
    inputs = {"image": Signal(pixels)}
    ids = rows.masked_fill(rows == IMAGE, -1)
    with torch.no_grad():
        theirs = model(input_ids=rows, pixel_values=pixels, **given).logits
        found, _ = ours(Signal(ids, lengths=lengths, prefix=prefix, inputs=inputs))
        state = ours.init_state(1)
        first = {name: Signal(each.values[:1]) for name, each in inputs.items()}
        begin, state = ours(Signal(ids[:1, :20], prefix=prefix[:1], inputs=first), state)
        stepped = [begin]
        for i in range(20, 23):
            each, state = ours(Signal(ids[:1, i : i + 1]), state)
            stepped.append(each)
    real = steps < lengths[:, None]
    scale = float(theirs[real].abs().max())
    assert float((found - theirs)[real].abs().max()) < 1e-4 * scale
    assert float((torch.cat(stepped, 1) - theirs[:1]).abs().max()) < 1e-4 * scale


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_about_a_picture_is_that_of_the_library(form: str, tmp_path: Path) -> None:
    model, (path, *_) = paligemma(tmp_path / "model", form), pictures(tmp_path)
    served = ServedModel("paligemma", load(tmp_path / "model"), Limits())
    uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "a red cat"}]
    body = ChatBody.parse({"model": "paligemma", "messages": [{"role": "user", "content": content}]})
    spans, inputs = served.read_pictures(body.pictures)
    ids = served.chat_prompt(body.to_template(), {}, spans=spans)
    images = transformers.SiglipImageProcessorPil.from_pretrained(tmp_path / "model")
    images.image_seq_length = COUNT
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.image_token, tokenizer.image_token_id = "<image>", IMAGE
    processor = transformers.PaliGemmaProcessor(images, tokenizer)
    theirs = processor(images=Image.open(path), text="<image>a red cat", return_tensors="pt")
    assert [IMAGE if index < 0 else index for index in ids] == theirs["input_ids"][0].tolist()
    theirs.pop("labels", None)
    with torch.no_grad():
        expected = model.generate(**theirs, do_sample=False, max_new_tokens=8)
    assert inputs is not None
    (best,) = beam_search(served.run.model, [ids], Generation(max_new_tokens=8, temperature=0), 3, inputs=[inputs])
    written = best[0].tokens
    assert written == expected[0, len(ids) :].tolist()[: len(written)]
    assert len(written) > 3


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_folder_opens_in_the_library(form: str, tmp_path: Path) -> None:
    model = paligemma(tmp_path / "model", form)
    assert main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "again")]) == 0
    again = transformers.PaliGemmaForConditionalGeneration.from_pretrained(tmp_path / "again").eval()
    ids, pixels = torch.tensor([[*[IMAGE] * COUNT, 2, 9, 10, 6]]), torch.randn(1, 3, 16, 16)
    types = torch.tensor([[0] * 19 + [1]])
    with torch.no_grad():
        outputs = [each(input_ids=ids, pixel_values=pixels, token_type_ids=types).logits for each in (model, again)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    assert again.config.image_token_id == IMAGE


def test_other_masks_and_widths_are_refused(tmp_path: Path) -> None:
    paligemma(tmp_path / "model", "first")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "projection_dim": 20}))
    with pytest.raises(UserError, match="projection_dim is 20, but the decoder reads vectors of 24"):
        load_published(tmp_path / "model")
    path.write_text(
        json.dumps({**config, "text_config": {**config["text_config"], "use_bidirectional_attention": False}})
    )
    with pytest.raises(UserError, match="use_bidirectional_attention is False"):
        load_published(tmp_path / "model")
