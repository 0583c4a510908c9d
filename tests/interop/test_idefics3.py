"""Folders of Idefics 3 and SmolVLM: tiles, logits, chats and export, as in the transformers library."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tests.interop.test_pairs import WORDS
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
IMAGE, COUNT, SIDE = 4, 4, 16
FRAME = ["<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
PLACES = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
SPECIALS = ["<pad>", "<unk>", "<s>", "</s>", "<image>", *FRAME, *PLACES]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }} "
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}dog {% endif %}"
)
KINDS: dict[str, Any] = {
    "idefics3": (transformers.Idefics3Config, transformers.Idefics3ForConditionalGeneration),
    "smolvlm": (transformers.SmolVLMConfig, transformers.SmolVLMForConditionalGeneration),
}


def idefics(folder: Path, kind: str = "idefics3", split: bool = True) -> Any:
    """Write a folder with random weights, all moved away from their starts, with tokenizer and processor."""
    folder.mkdir()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_pieces(SPECIALS, ("user", *WORDS, "\n", "\n\n"), "$A", "$A $B"),
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<image>", *FRAME, *PLACES],
        chat_template=TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {**sizes, "hidden_size": 32, "intermediate_size": 48, "image_size": SIDE, "patch_size": 4}
    text = transformers.LlamaConfig(
        **sizes,
        hidden_size=24,
        num_key_value_heads=2,
        intermediate_size=40,
        vocab_size=len(tokenizer),
        max_position_embeddings=256,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    config_class, model_class = KINDS[kind]
    config = config_class(vision_config=vision, text_config=text, image_token_id=IMAGE, scale_factor=2)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    processor(split).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, "max_new_tokens": 8}))
    return model


def processor(split: bool) -> Any:
    return transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 3 * SIDE}, max_image_size={"longest_edge": SIDE}, do_image_splitting=split
    )


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_library(kind: str, tmp_path: Path) -> None:
    """Rows of two lengths with two images and one, and steps after a prefill."""
    model = idefics(tmp_path / "model", kind)
    ours = load_published(tmp_path / "model").model.eval()
    pixels = torch.randn(3, 3, SIDE, SIDE)
    place = [IMAGE] * COUNT
    rows = torch.tensor([[2, 5, *place, 5, *place, 6, 25, 26, 27], [2, 26, 5, *place, 6, 28, 27, 24, *[0] * 4]])
    lengths, steps = torch.tensor([15, 11]), torch.arange(15)
    both = torch.stack((pixels[:2], torch.stack((pixels[2], torch.zeros_like(pixels[2])))))
    real = steps < lengths[:, None]
    ids = rows.masked_fill(rows == IMAGE, -1)
    with torch.no_grad():
        theirs = model(input_ids=rows, attention_mask=real.long(), pixel_values=both).logits
        found, _ = ours(Signal(ids, lengths=lengths, inputs={"image": Signal(pixels)}))
        begin, state = ours(Signal(ids[:1, :12], inputs={"image": Signal(pixels[:2])}), ours.init_state(1))
        stepped = [begin]
        for i in range(12, 15):
            each, state = ours(Signal(ids[:1, i : i + 1]), state)
            stepped.append(each)
    scale = float(theirs[real].abs().max())
    assert float((found - theirs)[real].abs().max()) < 1e-4 * scale
    assert float((torch.cat(stepped, 1) - theirs[:1]).abs().max()) < 1e-4 * scale


@pytest.mark.parametrize("size", [(40, 17), (90, 50), (21, 64), (16, 16)], ids=str)
@pytest.mark.parametrize("split", [True, False], ids=["tiles", "whole"])
def test_a_chat_about_a_picture_is_that_of_the_library(split: bool, size: tuple[int, int], tmp_path: Path) -> None:
    """Its tiles, the words between them, and the answer."""
    model, path = idefics(tmp_path / "model", split=split), tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)).save(path)
    served = ServedModel("idefics3", load(tmp_path / "model"), Limits())
    uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "red cat"}]
    body = ChatBody.parse({"model": "idefics3", "messages": [{"role": "user", "content": content}]})
    spans, inputs = served.read_pictures(body.pictures)
    ids = served.chat_prompt(body.to_template(), {}, spans=spans)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    whole = transformers.Idefics3Processor(processor(split), tokenizer, image_seq_len=COUNT)
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "red cat"}]}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    theirs = whole(images=[Image.open(path)], text=text, add_special_tokens=False, return_tensors="pt")
    assert [IMAGE if index < 0 else index for index in ids] == theirs["input_ids"][0].tolist()
    assert inputs is not None
    torch.testing.assert_close(inputs["image"].values, theirs["pixel_values"][0], rtol=0, atol=1e-5)
    with torch.no_grad():
        expected = model.generate(**theirs, do_sample=False, max_new_tokens=8)
    (best,) = beam_search(served.run.model, [ids], Generation(max_new_tokens=8, temperature=0), 3, inputs=[inputs])
    written = best[0].tokens
    assert written == expected[0, len(ids) :].tolist()[: len(written)]
    assert len(written) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_folder_opens_in_the_library(kind: str, tmp_path: Path) -> None:
    model = idefics(tmp_path / "model", kind)
    assert main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "again")]) == 0
    again = KINDS[kind][1].from_pretrained(tmp_path / "again").eval()
    ids, pixels = torch.tensor([[2, 5, *[IMAGE] * COUNT, 6, 26]]), torch.randn(1, 1, 3, SIDE, SIDE)
    with torch.no_grad():
        outputs = [each(input_ids=ids, pixel_values=pixels).logits for each in (model, again)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    read = transformers.Idefics3ImageProcessorPil.from_pretrained(tmp_path / "again")
    assert (read.size["longest_edge"], read.max_image_size["longest_edge"]) == (3 * SIDE, SIDE)


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    idefics(tmp_path / "model")
    path = tmp_path / "model" / "preprocessor_config.json"
    keys = json.loads(path.read_text())
    path.write_text(json.dumps({**keys, "max_image_size": {"longest_edge": 20}}))
    with pytest.raises(UserError, match="max_image_size is 20, but the tower reads images of 16"):
        load_published(tmp_path / "model")
    path.write_text(json.dumps(keys))
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "scale_factor": 3}))
    with pytest.raises(UserError, match="3 given, but the 4 × 4 patches of a picture do not divide so"):
        load_published(tmp_path / "model")
    path.write_text(json.dumps({**config, "vision_config": {**config["vision_config"], "image_size": 100}}))
    with pytest.raises(UserError, match="with 25 patches on a side, rounding of fractions"):
        load_published(tmp_path / "model")
