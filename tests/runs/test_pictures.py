"""Questions about pictures, and pictures in chats: the command and Python, with a folder of LLaVA's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from PIL import Image
from tests.interop.test_pairs import pictures
from tests.interop.test_vision_chats import llava
from tests.tasks.test_named_inputs import drawn, quiet, recipe

import qkv
from qkv.cli.main import main
from qkv.data.records.images.pictures import as_uri
from qkv.runs.chats.history import checked_messages
from qkv.runs.chats.pictures import picture_uri
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Seen(NamedTuple):
    """Folder of LLaVA's form, the library's model, and files of pictures."""

    folder: Path
    model: Any
    paths: list[Path]

    def answer(self, paths: list[Path], question: str) -> list[str]:
        """Words of the greedy answer of the transformers library, with its own template, tokenizer and processor."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        processor = transformers.CLIPImageProcessorPil.from_pretrained(self.folder)
        content = [*({"type": "image"} for _ in paths), {"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(text.replace("<image>", "<image>" * 16), return_tensors="pt", add_special_tokens=False)
        pixels = processor([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            ids = self.model.generate(**inputs, pixel_values=pixels, do_sample=False, max_length=64)
        return tokenizer.convert_ids_to_tokens(ids[0, inputs["input_ids"].shape[1] :].tolist())


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("pictures")
    model = llava(folder / "llava")
    (folder / "llava" / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, "do_sample": False}))
    return Seen(folder / "llava", model, pictures(folder))


def test_a_question_about_pictures_is_answered_as_in_the_library(
    seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, _ = seen.paths
    assert main(["ask", str(seen.folder), "--image", str(first), "red cat"]) == 0
    wanted = capsys.readouterr().out.removesuffix("\n")
    assert wanted.split() == seen.answer([first], "red cat")
    assert qkv.ask(seen.folder, "red cat", images=[first]) == [{"answer": wanted, "probabilities": None}]
    line = ["ask", str(seen.folder), "--image", str(first), "--image", str(second), "dog", "red cat", "--json"]
    assert main(line) == 0
    rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["dog", "red cat"]
    assert rows[0]["answer"].split() == seen.answer([first, second], "dog")
    opened = [Image.open(path) for path in (first, second)]
    assert qkv.ask(seen.folder, ["dog", "red cat"], images=opened) == [
        {"answer": row["answer"], "probabilities": None} for row in rows
    ]
    parts = [{"type": "image", "path": str(first)}, {"type": "text", "text": "red cat"}]
    assert qkv.chat(seen.folder, [{"role": "user", "content": parts}])["content"] == wanted


def test_a_run_of_pictures_and_texts_answers_a_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = drawn(40)
    run = qkv.train(qkv.override(recipe(), ["training.steps=2"]), tmp_path / "run", data=rows, on_event=quiet)
    path = tmp_path / "a.png"
    Image.fromarray(rows[0]["picture"]).save(path)
    (wanted,) = qkv.predict(run, {"picture": str(path), "words": "it is dark here"})
    line = ["ask", str(run.folder), "--image", str(path), "it is dark here"]
    assert main(line) == 0
    assert capsys.readouterr().out == f"{wanted['answer']}\n"
    found = qkv.ask(run, "it is dark here", images=[rows[0]["picture"]])
    assert found == [{"answer": wanted["answer"], "probabilities": wanted["probabilities"]}]
    assert main([*line, "--image", str(path)]) == 2
    assert "images: 2 given, but" in capsys.readouterr().err


def test_what_cannot_be_asked_is_one_sentence(seen: Seen, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, text = str(seen.paths[0]), tmp_path / "text.png"
    text.write_text("no picture")
    cut = tmp_path / "cut.png"
    cut.write_bytes(seen.paths[0].read_bytes()[:200])
    run = qkv.train(qkv.override(recipe(), ["training.steps=1"]), tmp_path / "run", data=drawn(20), on_event=quiet)
    lines = {
        f"{seen.folder} --image nothing.png": "there is no file nothing.png",
        f"{seen.folder} --image {text}": "text.png is not an image",
        f"{seen.folder} --image {tmp_path}": "it is a directory",
        f"{seen.folder} --image {cut}": "cannot be decoded: image file is truncated",
        f"{seen.folder} --image {picture} --option a": "--option given beside --image",
        f"{seen.folder} --image {picture} --examples {text}": "--examples given beside --image",
        f"{seen.folder} {' '.join([f'--image {picture}'] * 5)}": "5 pictures of 80 positions given, but the",
        f"{seen.folder} {' '.join([f'--image {picture}'] * 4)}": "the chat has 68 tokens, but the context has",
        f"{run.folder} --image {text}": "text.png is not an image",
    }
    for line, sentence in lines.items():
        assert main(["ask", *line.split(), "dog"]) == 2, line
        said = capsys.readouterr()
        assert sentence in said.err
        assert (said.out, said.err.count("\n")) == ("", 1)


def test_contents_of_messages_keep_their_pictures(seen: Seen) -> None:
    path, uri = str(seen.paths[0]), picture_uri(seen.paths[0])
    assert uri.startswith("data:image/png;base64,")
    image = Image.open(path)
    for part, wanted in (
        ({"type": "image", "image": path}, path),
        ({"type": "image", "path": seen.paths[0]}, path),
        ({"type": "image", "url": f"file://{path}"}, path),
        ({"type": "image", "image": image}, as_uri(image)),
        ({"type": "image_url", "image_url": {"url": uri}}, uri),
        ({"type": "input_image", "image_url": uri}, uri),
    ):
        content = [{"type": "text", "text": "a"}, part]
        (message,) = checked_messages([{"role": "user", "content": content}])
        assert message["content"] == [
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": wanted}},
        ]
        assert checked_messages([message]) == [message]
    for part, sentence in (
        ({"type": "image", "url": "https://example.com/a.png"}, "no address is fetched"),
        ({"type": "image"}, "None given; allowed: an image as data:image/"),
        ({"type": "image_url", "image_url": "data:text/plain,a"}, "allowed: an image as data:image/"),
        ({"type": "video", "video": "a.mp4"}, "a part of the type 'video' given"),
    ):
        with pytest.raises(UserError, match=rf"messages: message 1: content: .*{sentence}"):
            checked_messages([{"role": "user", "content": [part]}])
