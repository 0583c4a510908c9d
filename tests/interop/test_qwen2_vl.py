"""Folders of Qwen2-VL: logits at positions of three axes, chats and export, as in the transformers library."""

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
IMAGE, PATCH = 4, 4
FRAME = ["<|vision_start|>", "<|vision_end|>"]
SPECIALS = ["<pad>", "<unk>", "<s>", "</s>", "<|image_pad|>", *FRAME]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }} {% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}dog {% endif %}"
)
VISION = {"depth": 2, "embed_dim": 32, "hidden_size": 24, "num_heads": 4, "patch_size": PATCH, "mlp_ratio": 2}
TEXT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 40,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "mrope_section": [1, 2, 3]},
}


def qwen(folder: Path) -> transformers.Qwen2VLForConditionalGeneration:
    """Write a folder with random weights, all moved away from their starts, with tokenizer and processor."""
    folder.mkdir()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_pieces(SPECIALS, ("user", *WORDS), "$A", "$A $B"),
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="</s>",
        additional_special_tokens=["<|image_pad|>", *FRAME],
        chat_template=TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.Qwen2VLConfig(
        vision_config=VISION, text_config={**TEXT, "vocab_size": len(tokenizer)}, image_token_id=IMAGE
    )
    model = transformers.Qwen2VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    processor().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, "max_new_tokens": 8}))
    return model


def processor() -> transformers.Qwen2VLImageProcessorPil:
    return transformers.Qwen2VLImageProcessorPil(
        size={"shortest_edge": 128, "longest_edge": 1024}, patch_size=PATCH, merge_size=2
    )


def theirs_of(pixels: torch.Tensor, ids: torch.Tensor) -> dict[str, Any]:
    """Arguments of the library for images (B, C, H, W) and rows of ids."""
    cut = [processor().patchify(each.numpy(), PATCH, 2, 2) for each in pixels]
    return {
        "input_ids": ids,
        "pixel_values": torch.tensor(np.concatenate([patches for patches, *_ in cut])),
        "image_grid_thw": torch.tensor([[1, *grid] for _, *grid in cut]),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }


@pytest.mark.parametrize("sides", [(16, 24), (32, 8)], ids=str)
def test_logits_are_those_of_the_library(sides: tuple[int, int], tmp_path: Path) -> None:
    """Rows of two lengths with two images and one, and steps after a prefill, whose positions lag behind the index."""
    model = qwen(tmp_path / "model")
    ours = load_published(tmp_path / "model").model.eval()
    pixels = torch.randn(3, 3, *sides)
    place = [IMAGE] * (sides[0] * sides[1] // 64)
    first = [9, 5, *place, 6, 10, 5, *place, 6, 11, 12, 13]
    second = [10, 11, 5, *place, 6, 9, 8]
    rows = torch.tensor([first, [*second, *[0] * (len(first) - len(second))]])
    steps, lengths = torch.arange(len(first)), torch.tensor([len(first), len(second)])
    real, ids = steps < lengths[:, None], rows.masked_fill(rows == IMAGE, -1)
    with torch.no_grad():
        theirs = model(**theirs_of(pixels, rows), attention_mask=real.long()).logits
        found, _ = ours(Signal(ids, lengths=lengths, inputs={"image": Signal(pixels)}))
        cut = len(first) - 3
        begin, state = ours(Signal(ids[:1, :cut], inputs={"image": Signal(pixels[:2])}), ours.init_state(1))
        stepped = [begin]
        for i in range(cut, len(first)):
            each, state = ours(Signal(ids[:1, i : i + 1]), state)
            stepped.append(each)
    scale = float(theirs[real].abs().max())
    assert float((found - theirs)[real].abs().max()) < 1e-4 * scale
    assert float((torch.cat(stepped, 1) - theirs[:1]).abs().max()) < 1e-4 * scale
    assert state.behind == (2 * (len(place) - max(sides) // 8),)


@pytest.mark.parametrize("size", [(40, 17), (90, 50), (9, 11)], ids=str)
def test_a_chat_about_a_picture_is_that_of_the_library(size: tuple[int, int], tmp_path: Path) -> None:
    """A picture of any size is read at its own ratio; the answer goes on at positions of three axes."""
    model, path = qwen(tmp_path / "model"), tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)).save(path)
    served = ServedModel("qwen2-vl", load(tmp_path / "model"), Limits())
    uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "red cat"}]
    body = ChatBody.parse({"model": "qwen2-vl", "messages": [{"role": "user", "content": content}]})
    spans, inputs = served.read_pictures(body.pictures)
    ids = served.chat_prompt(body.to_template(), {}, spans=spans)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "red cat"}]}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    read = processor()(images=[Image.open(path)], return_tensors="pt")
    count = int(read["image_grid_thw"].prod()) // 4
    theirs = tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * count), return_tensors="pt")
    assert [IMAGE if index < 0 else index for index in ids] == theirs["input_ids"][0].tolist()
    assert inputs is not None
    pixels = theirs_of(inputs["image"].values, theirs["input_ids"])["pixel_values"]
    torch.testing.assert_close(pixels, read["pixel_values"], rtol=0, atol=1e-5)
    kinds = (theirs["input_ids"] == IMAGE).int()
    with torch.no_grad():
        expected = model.generate(**theirs, **read, mm_token_type_ids=kinds, do_sample=False, max_new_tokens=8)
    (best,) = beam_search(served.run.model, [ids], Generation(max_new_tokens=8, temperature=0), 3, inputs=[inputs])
    written = best[0].tokens
    assert written == expected[0, len(ids) :].tolist()[: len(written)]
    assert len(written) > 3


def test_an_exported_folder_opens_in_the_library(tmp_path: Path) -> None:
    model = qwen(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "again")]) == 0
    again = transformers.Qwen2VLForConditionalGeneration.from_pretrained(tmp_path / "again").eval()
    given = theirs_of(torch.randn(1, 3, 16, 16), torch.tensor([[9, 5, *[IMAGE] * 4, 6, 10]]))
    with torch.no_grad():
        outputs = [each(**given).logits for each in (model, again)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    read = transformers.Qwen2VLImageProcessorPil.from_pretrained(tmp_path / "again")
    assert (read.size["shortest_edge"], read.size["longest_edge"], read.patch_size) == (128, 1024, PATCH)


def test_a_config_of_older_form_is_read_alike(tmp_path: Path) -> None:
    """The keys of the decoder stand beside those of the tower, and the kind of rotation is "mrope"."""
    qwen(tmp_path / "model")
    first = load_published(tmp_path / "model").spec
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    text = config.pop("text_config")
    table = text.pop("rope_parameters")
    older = {"rope_theta": table["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 3]}}
    path.write_text(json.dumps({**text, **config, **older}))
    assert load_published(tmp_path / "model").spec == first


def test_pictures_of_several_sizes_in_one_row_are_refused(tmp_path: Path) -> None:
    qwen(tmp_path / "model")
    served = ServedModel("qwen2-vl", load(tmp_path / "model"), Limits())
    uris = []
    for size in ((40, 16), (16, 40)):
        Image.new("RGB", size).save(tmp_path / "a.png")
        uris.append("data:image/png;base64," + base64.b64encode((tmp_path / "a.png").read_bytes()).decode())
    with pytest.raises(UserError, match="images of 16 × 40 and 40 × 16 pixels are in one call"):
        served.read_pictures(uris)
