"""Questions about pictures, and pictures in chats: the command and Python, with a folder of LLaVA's form."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from PIL import Image
from tests.cli.chats import TEMPLATE, saved
from tests.interop.test_pairs import pictures
from tests.interop.test_vision_chats import llava
from tests.tasks.test_named_inputs import drawn, quiet, recipe

import qkv
from qkv.cli.main import main
from qkv.data.records.images.pictures import as_uri
from qkv.runs.chats.chat import open_model
from qkv.runs.chats.history import checked_messages
from qkv.runs.chats.pictures import picture_uri
from qkv.runs.chats.session import ChatSession
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Seen(NamedTuple):
    """Folder of LLaVA's form, the library's model, and files of pictures."""

    folder: Path
    model: Any
    paths: list[Path]

    def answer(self, paths: list[Path], question: str, **settings: Any) -> list[str]:
        """Words of the greedy answer of the transformers library, with its own template, tokenizer and processor."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        processor = transformers.CLIPImageProcessorPil.from_pretrained(self.folder)
        content = [*({"type": "image"} for _ in paths), {"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(text.replace("<image>", "<image>" * 16), return_tensors="pt", add_special_tokens=False)
        pixels = processor([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            ids = self.model.generate(**inputs, pixel_values=pixels, do_sample=False, max_length=64, **settings)
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
        f"{seen.folder} --image {picture} --calibrate": "--calibrate given beside --image",
        f"{seen.folder} {' '.join([f'--image {picture}'] * 5)}": "5 pictures of 80 positions given, but the",
        f"{seen.folder} {' '.join([f'--image {picture}'] * 4)}": "the chat has 68 tokens, but the context has",
        f"{run.folder} --image {text}": "text.png is not an image",
    }
    for line, sentence in lines.items():
        assert main(["ask", *line.split(), "dog"]) == 2, line
        said = capsys.readouterr()
        assert sentence in said.err
        assert (said.out, said.err.count("\n")) == ("", 1)


def test_questions_about_pictures_are_not_prompted(seen: Seen) -> None:
    for settings in ({"options": ["a"]}, {"template": "{text} {label}"}, {"examples": [{"text": "a", "label": "b"}]}):
        with pytest.raises(UserError, match="given beside 'images'; questions about pictures are texts"):
            qkv.ask(seen.folder, ["dog"], images=seen.paths[:1], **settings)
    with pytest.raises(UserError, match="inputs that are no texts given beside 'images'"):
        qkv.ask(seen.folder, [{"text": "dog"}], images=seen.paths[:1])
    with pytest.raises(UserError, match="images: 3 given; allowed: an image as data:image/"):
        qkv.ask(seen.folder, ["dog"], images=[3])


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


def test_a_chat_keeps_its_pictures(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, file = seen.paths[0], tmp_path / "chat.jsonl"
    line = ["chat", str(seen.folder), "--save", str(file), "--max-new-tokens", "4"]
    for index in (0, 1, 4):  # special tokens, which messages in this vocabulary cannot hold
        line += ["--logit-bias", f"{index}=-100"]
    monkeypatch.setattr("sys.stdin", io.StringIO(f'/image {picture}\n/image ""\n/image {picture}\nred cat\ndog\n'))
    assert main(line) == 0
    said = capsys.readouterr()
    counts = ["1 picture", "0 pictures", "1 picture"]
    assert said.err.splitlines() == [f"the next message has {count}" for count in counts]
    first, second = said.out.splitlines()
    assert first.split() == seen.answer([picture], "red cat", suppress_tokens=[0, 1, 4])[:4]
    messages = json.loads(file.read_text())["messages"]
    uri = {"type": "image_url", "image_url": {"url": picture_uri(picture)}}
    assert messages[0] == {"role": "user", "content": [uri, {"type": "text", "text": "red cat"}]}
    assert [message["content"] for message in messages[1:]] == [first, "dog", second]
    monkeypatch.setattr("sys.stdin", io.StringIO("/undo\n/retry\n/undo\n/image text.txt\n"))
    assert main(line) == 2
    said = capsys.readouterr()
    assert said.out == f"{first}\n"  # the picture of the file is read
    assert 'taken back: "[picture] red cat"; 0 messages left' in said.err
    assert said.err.endswith("qkv: there is no file text.txt\n")


def test_a_model_of_text_takes_no_picture(seen: Seen, tmp_path: Path) -> None:
    session = ChatSession(open_model(qkv.load(saved(tmp_path / "run", TEMPLATE))))
    with pytest.raises(UserError, match="run reads no pictures; leave them out"):
        session.attach(seen.paths[0])
    assert session.pictures == []
    with pytest.raises(UserError, match="run reads no pictures; leave them out"):
        session.model.answer([{"role": "user", "content": [{"type": "image", "image": str(seen.paths[0])}]}])
