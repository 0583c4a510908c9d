"""Tests of runs on several named inputs: read from a table, trained, resumed, predicted, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from openai import BadRequestError
from PIL import Image
from tests.serving.conftest import serving

import qkv
from qkv.cli.main import main
from qkv.data.processors.processor import build_processor
from qkv.data.records.images.pictures import as_uri
from qkv.data.vocabulary import Vocabulary
from qkv.runs.run import Run
from qkv.serving.engine.model import ServedModel
from qkv.serving.limits import Limits
from qkv.serving.requests.chats import ChatBody
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.spec.signals.images import Images
from qkv.spec.tokenizers import WordList
from qkv.system.errors import UserError
from qkv.tasks.dataset import with_vocabulary
from qkv.tasks.named_inputs import InputsEncoder
from qkv.tokenizers.train import train


def drawn(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of a picture, bright or dark, and a sentence. The label needs both: is what the sentence says true?"""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(count):
        bright, said = rng.random(2) < 0.5
        level = 200 if bright else 40
        picture = np.clip(level + rng.normal(0, 10, (8, 8)), 0, 255).astype(np.uint8)
        words = "it is bright here" if said else "it is dark here"
        rows.append({"picture": picture, "words": words, "label": "true" if bright == said else "false"})
    return rows


def recipe(task: str = "classification", **data: Any) -> Recipe:
    inputs = {"picture": "images(height=8, width=8, channels=1)", "words": "word_list(min_frequency=1)"}
    return Recipe.parse(
        {
            "data": {"source": "memory", "inputs": inputs, **data},
            "task": task,
            "model": {
                "width": 32,
                "num_layers": 2,
                "context_length": 24,
                "frontend": {"kind": "joined", "inputs": {"picture": "patches(patch=4)"}},
                "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward"]}],
                "head": "classification(pooling=mean)",
            },
            "training": {
                "steps": 80,
                "batch_size": 32,
                "optimizer": {"kind": "adamw", "lr": 3e-3},
                "schedule": "constant",
                "validation": {"every": 40},
            },
        }
    )


def quiet(event: object) -> None:
    """Show nothing."""


def test_a_run_reads_both_inputs(tmp_path: Path) -> None:
    half = qkv.override(recipe(), ["training.steps=40"])
    qkv.train(half, tmp_path / "run", data=drawn(400), on_event=quiet)
    run = qkv.train(recipe(), tmp_path / "run", data=drawn(400), on_event=quiet)
    once = qkv.train(recipe(), tmp_path / "once", data=drawn(400), on_event=quiet)
    assert [row.get("loss") for row in run.metrics][-3:] == [row.get("loss") for row in once.metrics][-3:]
    figures = qkv.evaluate(run)
    assert figures["accuracy"] == 100
    assert figures["accuracy_of_ngrams"] < 75  # a text alone does not tell
    asked = drawn(20, seed=1)
    answers = qkv.predict(qkv.load(tmp_path / "run"), [{k: row[k] for k in ("picture", "words")} for row in asked])
    assert [answer["answer"] for answer in answers] == [row["label"] for row in asked]
    with pytest.raises(UserError, match="predicts from picture, words; 'picture' is missing"):
        qkv.predict(run, {"words": "it is dark here"})


@pytest.mark.slow
def test_the_command_trains_evaluates_and_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, table = drawn(60), ["picture,words,label"]
    for number, row in enumerate(rows):
        Image.fromarray(row["picture"]).save(tmp_path / f"{number}.png")
        table.append(f"{number}.png,{row['words']},{row['label']}")
    (tmp_path / "rows.csv").write_text("\n".join(table), encoding="utf-8")
    changed = qkv.override(recipe(), [f"data.source={tmp_path / 'rows.csv'}", "training.steps=20"])
    qkv.write_spec(tmp_path / "recipe.yaml", changed)
    folder = str(tmp_path / "run")
    assert main(["train", str(tmp_path / "recipe.yaml"), "--out", folder]) == 0
    assert main(["evaluate", folder, "--data", str(tmp_path / "rows.csv")]) == 0
    capsys.readouterr()
    assert main(["predict", folder, str(tmp_path / "0.png"), "--set", "words=it is dark here"]) == 0
    assert capsys.readouterr().out.split()[2] in ("true", "false")
    assert main(["predict", folder, "--data", str(tmp_path / "rows.csv")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 61
    assert main(["info", folder]) == 0
    assert "word_list, " in capsys.readouterr().out


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run that writes after a picture and words."""
    rows = [{**row, "target": f"so it is {row['label']}"} for row in drawn(200)]
    changes = ["task=translation", "model.head=language_model", "training.steps=5"]
    changes += ["sample={temperature: 0, max_new_tokens: 5}"]
    changes += ["model.blocks=[{branches: ['attention(2, mask=prefix)', feed_forward]}]"]
    return qkv.train(
        qkv.override(recipe(), changes), tmp_path_factory.mktemp("writer") / "run", data=rows, on_event=quiet
    )


def test_a_run_that_writes_after_both_inputs_is_served(writer: Run) -> None:
    run, asked = writer, drawn(6, seed=2)
    inputs = [{"picture": as_uri(row["picture"]), "words": row["words"]} for row in asked]
    expected = qkv.predict(run, inputs)
    alone = [answer for row in inputs for answer in qkv.predict(run, [row])]
    assert alone == expected
    with pytest.raises(UserError, match="the image is not an image"):
        qkv.predict(run, {**inputs[0], "picture": "data:image/png;base64,AAAA"})
    with serving({"both": run}) as server:
        found = httpx.post(f"{server.url}/predict", json={"inputs": inputs}, timeout=60).json()["data"]
        refused = httpx.post(f"{server.url}/predict", json={"inputs": [{"picture": "a.png", "words": "a"}]}, timeout=60)
    assert found == expected
    assert refused.status_code == 400
    assert "'a.png' given; allowed: numbers, or an image" in refused.json()["error"]["message"]


TEMPLATE = "{{ messages[-1].content }}{{ bos_token }}"
"""Chat template that writes a message in the form in which the run reads its source."""


def parts(*pieces: Any) -> list[dict[str, Any]]:
    """Content of a message: a part for each text, and for each picture."""
    made = []
    for piece in pieces:
        if isinstance(piece, str):
            made.append({"type": "text", "text": piece})
        else:
            made.append({"type": "image_url", "image_url": {"url": as_uri(piece)}})
    return made


def test_a_chat_carries_pictures_where_its_parts_stand(writer: Run) -> None:
    model = ServedModel("both", writer, Limits(), chat_template=TEMPLATE)
    first, second = (row["picture"] for row in drawn(2, seed=4))
    message = {"role": "user", "content": parts("it is ", first, " bright here")}
    body = ChatBody.parse({"model": "both", "messages": [message]})
    spans, inputs = model.read_pictures(body.pictures)
    ids = model.chat_prompt(body.to_template(), {}, spans=spans)
    assert inputs is not None
    encoder = InputsEncoder(writer.recipe, writer.vocabulary, 20)
    read, _ = encoder.encode({"picture": first, "words": "it is <picture> bright here"})
    assert ids == [*read.ids.tolist(), writer.tokenizer.special("bos")]
    torch.testing.assert_close(inputs["picture"].values, encoder.signals([read.values])["picture"].values)
    several, signals = model.read_pictures([as_uri(first), as_uri(second), as_uri(first)])
    assert several[0] == several[2] != several[1]
    assert signals is not None
    assert signals["picture"].num_rows == 3


def test_a_chat_about_a_picture_is_answered_as_a_prediction(writer: Run) -> None:
    rows = [{"picture": as_uri(row["picture"]), "words": row["words"]} for row in drawn(2, seed=5)]
    expected = [answer["answer"] for answer in qkv.predict(writer, rows)]
    model = ServedModel("both", writer, Limits(), chat_template=TEMPLATE)
    pictures = [{"type": "image_url", "image_url": {"url": row["picture"]}} for row in rows]
    messages = [
        [{"role": "user", "content": [picture, *parts(row["words"])]}]
        for picture, row in zip(pictures, rows, strict=True)
    ]
    addresses = ("data:image/png;base64,AAAA", "https://a.b/c.png")
    damaged, far = (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": address}}]}] for address in addresses
    )
    with serving({"both": model}) as server:
        client = server.client()
        chats = [client.chat.completions.create(model="both", messages=each, temperature=0) for each in messages]  # type: ignore[call-overload]
        item = {"role": "user", "content": [{"type": "input_image", "image_url": rows[0]["picture"]}]}
        item["content"] += [{"type": "input_text", "text": rows[0]["words"]}]  # type: ignore[operator]
        response = client.responses.create(model="both", input=[item], temperature=0)  # type: ignore[list-item]
        for refused, sentence in ((damaged, "the image is not an image"), (far, "allowed: an image as data:image/")):
            with pytest.raises(BadRequestError, match=sentence):
                client.chat.completions.create(model="both", messages=refused)  # type: ignore[arg-type]
    assert [(chat.choices[0].message.content or "").strip() for chat in chats] == expected
    assert response.output_text.strip() == expected[0]


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("it is <picture> here", [0, 0, -1, -1, -1, -1, 0]),
        ("it is here", [-1, -1, -1, -1, 0, 0, 0]),
        ("<picture> <picture>", [-1, -1, -1, -1]),
    ],
)
def test_the_text_says_where_a_value_stands(text: str, order: list[int]) -> None:
    encoder = encoder_of(20)
    read, _ = encoder.encode({"picture": np.zeros((8, 8), np.uint8), "words": text})
    assert [-1 if token < 0 else 0 for token in read.ids.tolist()][: len(order)] == order
    assert len(read.ids) >= len(order)


def encoder_of(room: int) -> InputsEncoder:
    """Encoder of a picture of 4 positions and a text of words."""
    texts = ["it is dark here", "it is bright here"]
    tokenizer = train(WordList(min_frequency=1), texts)
    fitted = build_processor(Images(height=8, width=8, channels=1)).fitted([np.zeros((8, 8), np.uint8)])
    vocabulary = Vocabulary(tokenizer, tokenizer, ("a", "b"), {"picture": fitted})
    return InputsEncoder(with_vocabulary(recipe(), vocabulary), vocabulary, room)


def test_a_run_may_name_a_text_alone() -> None:
    texts = ["it is <> here"]
    tokenizer = train(WordList(min_frequency=1), texts)
    plain = qkv.override(recipe(), ["data.inputs={words: word_list}", "model.frontend.inputs={}"])
    encoder = InputsEncoder(plain, Vocabulary(tokenizer, tokenizer, ("a", "b")), 20)
    read, _ = encoder.encode({"words": texts[0]})
    assert read.ids.tolist() == tokenizer.encode(texts[0])


def two_pictures(order: list[str]) -> InputsEncoder:
    """Encoder of pictures of 4 and of 1 position; the model names its front ends in ``order``."""
    sizes = {"large": 8, "small": 4}
    specs = {name: f"images(height={size}, width={size}, channels=1)" for name, size in sizes.items()}
    frontends = {name: "patches(patch=4)" for name in order}
    data = {"inputs": specs, "source": "memory"}
    plain = recipe().to_dict()
    plain["model"]["frontend"] = {"kind": "joined", "inputs": frontends}
    both = Recipe.parse({**plain, "data": data})
    blank = {name: np.zeros((size, size), np.uint8) for name, size in sizes.items()}
    fitted = {name: build_processor(each).fitted([blank[name]]) for name, each in both.data.processors.items()}
    vocabulary = Vocabulary(labels=("a", "b"), processors=fitted)
    return InputsEncoder(with_vocabulary(both, vocabulary), vocabulary, 20)


@pytest.mark.parametrize("order", [["large", "small"], ["small", "large"]])
def test_placeholders_number_the_front_ends_of_the_model(order: list[str]) -> None:
    encoder = two_pictures(order)
    read, _ = encoder.encode({"large": np.zeros((8, 8), np.uint8), "small": np.zeros((4, 4), np.uint8)})
    numbers = [(-1 - int(token)) % 2 for token in read.ids]
    assert [order[number] for number in numbers] == ["large"] * 4 + ["small"]  # rows keep the order of the data


def test_a_run_goes_on_from_another_with_its_inputs(tmp_path: Path) -> None:
    short = qkv.override(recipe(), ["training.steps=2"])
    first = qkv.train(short, tmp_path / "first", data=drawn(40), on_event=quiet)
    plain: dict[str, Any] = {"task": "classification", "training": {"steps": 1}, "start": str(tmp_path / "first")}
    again = Recipe.parse({**plain, "data": "memory"})
    second = qkv.train(again, tmp_path / "second", data=drawn(40, seed=3), on_event=quiet)
    assert list(second.recipe.data.inputs) == ["picture", "words"]
    assert second.vocabulary.tokenizer.to_json() == first.vocabulary.tokenizer.to_json()
    assert second.vocabulary.processors == first.vocabulary.processors  # not those of the new rows
    data = {"source": "memory", "inputs": {"photo": "images", "words": "bytes"}}
    with pytest.raises(UserError, match=r"photo, words given, but the start .* reads picture, words"):
        qkv.train(Recipe.parse({**plain, "data": data}), tmp_path / "third", data=drawn(40), on_event=quiet)
    data["inputs"] = {"picture": "images", "words": "bytes"}
    with pytest.raises(UserError, match=r"data.inputs.words: bytes given, but the start .* omit data.inputs"):
        qkv.train(Recipe.parse({**plain, "data": data}), tmp_path / "third", data=drawn(40), on_event=quiet)


@pytest.mark.parametrize("task", ["classification", "translation"])
def test_a_row_whose_picture_is_damaged_is_named(task: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{**row, "target": "so it is"} for row in drawn(20)]
    rows[3]["picture"] = "data:image/png;base64,AAAA"
    for row in (row for row in rows if not isinstance(row["picture"], str)):
        row["picture"] = as_uri(row["picture"])
    changes = [f"task={task}", "training.steps=1"]
    if task == "translation":
        changes += ["model.head=language_model", "model.blocks=[{branches: ['attention(2)', feed_forward]}]"]
        changes += ["sample={temperature: 0, max_new_tokens: 3}"]
    with pytest.raises(UserError, match=r"1 of \d+ rows of .* cannot be used: the image is not an image"):
        qkv.train(qkv.override(recipe(), changes), tmp_path / "run", data=rows, on_event=quiet)


def test_values_are_kept_whole_and_the_text_is_cut() -> None:
    encoder = encoder_of(6)
    row = {"picture": np.zeros((8, 8), np.uint8), "words": "it is dark <picture> here"}
    read, length = encoder.encode(row)
    assert [token < 0 for token in read.ids.tolist()] == [False, False, True, True, True, True]
    assert length == 4
    assert encoder.notes(1) == ["1 of 1 examples were truncated: their words and other inputs do not fit"]
    with pytest.raises(UserError, match="4 of picture, more positions than the 3"):
        encoder_of(3).encode(row)


def test_equal_values_have_equal_places_and_others_do_not() -> None:
    encoder = encoder_of(20)
    pictures = [np.full((8, 8), level, np.uint8) for level in (0, 0, 1)]
    first, again, other = (encoder.encode({"picture": each, "words": "it"})[0].ids.tolist() for each in pictures)
    assert first == again
    assert first[:4] != other[:4]
    assert len(set(first[:4])) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["data.inputs={picture: images}"], None),
        (["data.inputs={picture: images, words: bytes, more: bytes}"], "'words' is a text, too"),
        (["data.inputs={picture: images, input: bytes}"], "not a valid input name"),
        (["data.inputs={picture: graphs, words: bytes}"], "the front end 'patches' does not read graphs"),
        (["data.inputs={photo: images, words: bytes}"], "missing; the data has this input"),
        (["data.processor=images"], "each of the inputs has its own"),
        (["task=next_token"], "the task 'next_token' reads one input"),
        (["wide=ngrams"], "'ngrams' reads one input; use 'inputs'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(changes: list[str], reason: str | None) -> None:
    if reason is None:
        assert qkv.override(recipe(), changes).data.text_input is None
    else:
        with pytest.raises(SpecError, match=reason):
            qkv.override(recipe(), changes)


def test_a_recipe_of_several_inputs_is_written_and_read_back() -> None:
    assert Recipe.parse(recipe().to_dict()) == recipe()
    assert Recipe.parse(recipe().essential()) == recipe()
