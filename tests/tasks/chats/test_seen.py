"""Training on conversations with pictures: what enters the loss, whole pictures, files beside the data, answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tests.interop.test_idefics3 import idefics
from tests.interop.test_idefics3 import processor as tiles
from tests.interop.test_pairs import pictures
from tests.interop.test_paligemma import COUNT, IMAGE, paligemma

import qkv
from qkv.cli.main import main
from qkv.data.batching.batch import IGNORED
from qkv.data.records.conversations.contents import with_files
from qkv.data.records.conversations.read import read_conversation, read_preference
from qkv.data.records.values import Unusable
from qkv.runs.start import with_start
from qkv.spec.data import BestFit, Data
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Chat
from qkv.spec.training import Training
from qkv.tasks.chats.pictures import ReadPicture, whole_pictures
from qkv.tasks.registry import task_of_recipe

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
QUESTIONS, ANSWERS = ("a red cat", "blue dog", "a photo of"), ("dog", "cat cat", "blue")


def talk(picture: str, question: str, answer: str) -> dict[str, Any]:
    seen = {"type": "image", "image": picture}
    user = {"role": "user", "content": [seen, {"type": "text", "text": question}]}
    return {"messages": [user, {"role": "assistant", "content": answer}]}


def talks(folder: Path, rows: int = 6) -> Path:
    """Write conversations about pictures, which are files beside them, and one without a picture."""
    names = [path.name for path in pictures(folder)]
    several = [talk(names[i % 3], QUESTIONS[i % 3], ANSWERS[i % 3]) for i in range(rows)]
    plain = [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "dog"}]
    file = folder / "talks.jsonl"
    file.write_text("\n".join(map(json.dumps, [*several, {"messages": plain}])))
    return file


def opened(source: Path, folder: Path, length: int = 64, **task: Any) -> tuple[Any, Any]:
    """The task and its data, opened from the start in ``folder``."""
    data = Data(source=str(source), validation=str(source), batching=BestFit(tokens=length))
    recipe = with_start(Recipe(data=data, task=Chat(**task), start=str(folder), training=Training(batch_size=8)))
    task_ = task_of_recipe(recipe)
    return task_, task_.open(recipe)


def rows_of_paligemma(source: Path, folder: Path) -> list[dict[str, Any]]:
    """Arguments of the library for each conversation, whose labels are the answer and its end."""
    images = transformers.SiglipImageProcessorPil.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = list[dict[str, Any]]()
    for line in source.read_text().splitlines():
        (user, reply) = json.loads(line)["messages"]
        seen = [part for part in user["content"] if isinstance(part, dict) and part["type"] == "image"]
        text = user["content"][1]["text"] if seen else user["content"]
        prompt = [*[IMAGE] * COUNT * len(seen), 2, *tokenizer(text)["input_ids"], *tokenizer("\n")["input_ids"]]
        answer = [*tokenizer(reply["content"])["input_ids"], 3]
        ids, types = torch.tensor([[*prompt, *answer]]), torch.tensor([[0] * len(prompt) + [1] * len(answer)])
        row = {"input_ids": ids, "token_type_ids": types, "labels": ids.masked_fill(types == 0, -100)}
        if seen:
            picture = Image.open(source.parent / seen[0]["image"])
            row["pixel_values"] = images(picture, return_tensors="pt")["pixel_values"]
        rows.append(row)
    return rows


def test_training_is_that_of_a_loop_with_the_library(tmp_path: Path) -> None:
    """PaliGemma: images and prompt are a prefix, the answer with its end is learned, and all weights follow."""
    theirs = paligemma(tmp_path / "model", "first")
    source = talks(tmp_path)
    task, dataset = opened(source, tmp_path / "model")
    ours = qkv.load(tmp_path / "model").model
    rows, batches = rows_of_paligemma(source, tmp_path / "model"), list(dataset.rows("validation"))
    count = sum(int(row["token_type_ids"].sum()) for row in rows)
    assert sum(batch.num_targets for batch in batches) == count
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (theirs, ours)]
    losses = list[tuple[float, float]]()
    for _ in range(3):
        expected = sum(theirs(**row).loss * row["token_type_ids"].sum() for row in rows) / count
        mine = sum(task.summed_loss(ours, batch) for batch in batches) / count
        losses.append((float(mine), float(expected)))
        for optimizer, loss in zip(optimizers, (expected, mine), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert [mine for mine, _ in losses] == pytest.approx([expected for _, expected in losses], rel=1e-3)
    assert losses[0][0] == pytest.approx(losses[0][1], rel=1e-4)
    assert losses[2][0] < losses[0][0]


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    paligemma(tmp_path / "model", "first")
    source = talks(tmp_path)
    arguments = {"task": "chat", "start": tmp_path / "model", "validation": str(source)}
    changes = ["training.minutes=null", "training.adapt=whole", "training.schedule=constant", "training.batch_size=1"]
    changes += ["training.checkpoints.every=1", "training.validation.every=1"]
    whole = qkv.train(source, overrides=[*changes, "training.steps=3"], out=tmp_path / "a", **arguments)
    qkv.train(source, overrides=[*changes, "training.steps=1"], out=tmp_path / "b", **arguments)
    resumed = qkv.train(source, overrides=[*changes, "training.steps=3"], out=tmp_path / "b", **arguments)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("length", [128, 256])
def test_packed_rows_with_tiles_have_the_loss_of_single_rows(length: int, tmp_path: Path) -> None:
    """SmolVLM: the tiles of a picture, and the words between them, are read as in the library and never learned."""
    theirs = idefics(tmp_path / "model", "smolvlm")
    template = tmp_path / "model" / "chat_template.jinja"  # an answer begins as the template asks for it
    template.write_text(template.read_text().replace("message['role']", "{'user': 'user'}.get(message['role'], 'dog')"))
    source = talks(tmp_path, 3)
    task, dataset = opened(source, tmp_path / "model", length)
    ours = qkv.load(tmp_path / "model").model.eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    whole = transformers.Idefics3Processor(tiles(True), tokenizer, image_seq_len=4)
    nats = 0.0
    for line in source.read_text().splitlines():
        (user, reply) = json.loads(line)["messages"]
        content = user["content"] if isinstance(user["content"], list) else [{"type": "text", "text": user["content"]}]
        turns = [{"role": "user", "content": content}]
        opening = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        names = [part["image"] for part in content if part["type"] == "image"]
        seen = {"images": [Image.open(tmp_path / name) for name in names]} if names else {}
        prompt = whole(text=opening, add_special_tokens=False, return_tensors="pt", **seen)
        turns.append({"role": "assistant", "content": [{"type": "text", "text": reply["content"]}]})
        written = tokenizer.apply_chat_template(turns, tokenize=False)
        everything = whole(text=written, add_special_tokens=False, return_tensors="pt", **seen)
        ids, begin = everything["input_ids"], prompt["input_ids"].shape[1]
        assert ids[0, :begin].tolist() == prompt["input_ids"][0].tolist()
        end = int((ids[0] == tokenizer.convert_tokens_to_ids("<end_of_utterance>")).nonzero()[-1]) + 1
        with torch.no_grad():
            logits = theirs(**everything).logits[0].log_softmax(-1)
        nats -= sum(float(logits[i - 1, ids[0, i]]) for i in range(begin, end))
    with torch.no_grad():
        mine = sum(float(task.summed_loss(ours, batch)) for batch in dataset.rows("validation"))
    assert mine == pytest.approx(nats, rel=1e-4)


def test_placeholders_are_never_targets(tmp_path: Path) -> None:
    paligemma(tmp_path / "model", "first")
    _, dataset = opened(talks(tmp_path), tmp_path / "model", learn="everything")
    targets = torch.cat([batch.targets[batch.targets != IGNORED] for batch in dataset.rows("validation")])
    assert int(targets.min()) >= 0


def test_a_text_is_never_cut_inside_a_picture() -> None:
    ids = np.array([5, -1, -1, 6, -2, 7, -2, 8])
    read = [ReadPicture("image", None, 2), ReadPicture("image", None, 2)]
    kept = [whole_pictures(ids, limit, read) for limit in range(9)]
    sizes = [(0, 0), (1, 0), (1, 0), (1, 0), (4, 1), (4, 1), (4, 1), (4, 1), (8, 2)]
    assert [(limit, len(some)) for limit, some in kept] == sizes


def test_rows_that_cannot_be_learned_say_why(tmp_path: Path) -> None:
    """A picture that leaves no room, one that is no file, an answer with a picture, a preference about a picture."""
    paligemma(tmp_path / "model", "first")
    source = talks(tmp_path)
    with pytest.raises(qkv.UserError, match=r"1 pictures of 16 positions given, but the context has room for 12"):
        opened(source, tmp_path / "model", 12)
    with pytest.raises(qkv.UserError, match=r"within the 18 tokens that fit, of which .*0\.png has 16"):
        opened(source, tmp_path / "model", 18)
    lines = source.read_text().splitlines()
    source.write_text("\n".join(line.replace("0.png", "absent.png") for line in lines))
    _, dataset = opened(source, tmp_path / "model")
    assert any("absent.png" in note for note in dataset.notes)
    answer = {"role": "assistant", "content": [{"type": "image", "image": "a.png"}]}
    with pytest.raises(Unusable, match="an answer, has a picture"):
        read_conversation({"messages": [{"role": "user", "content": "a"}, answer]})
    user = talk("a.png", "a", "b")["messages"][0]
    with pytest.raises(Unusable, match="preferences are learned from texts"):
        read_preference({"prompt": [user], "chosen": "a", "rejected": "b"})


@pytest.mark.parametrize("adapt", ["whole", "lora(4)"])
def test_a_run_learns_and_answers(adapt: str, tmp_path: Path) -> None:
    """The loss falls, and the run answers about a picture in a prediction as in a chat."""
    paligemma(tmp_path / "model", "first")
    source, run = talks(tmp_path), tmp_path / "run"
    options = [
        "training.minutes=null",
        "training.validation.every=20",
        "training.validation.patience=null",
        "training.optimizer.lr=0.02",
        f"training.adapt={adapt}",
    ]
    begin = ["train", "chat", "--data", str(source), "--from", str(tmp_path / "model"), "--out", str(run)]
    assert main([*begin, *options, "training.steps=40"]) == 0
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in metrics if "loss" in row]
    assert losses[-1] < 0.5 * losses[0]
    chat = talk(str(tmp_path / "0.png"), QUESTIONS[0], ANSWERS[0])["messages"]
    (answer,) = qkv.predict(run, {"messages": chat[:1]})
    (asked,) = qkv.ask(run, QUESTIONS[0], images=[str(tmp_path / "0.png")])
    assert answer["answer"] == asked["answer"].strip()


def test_names_of_files_are_found_beside_the_data_and_texts_stay_as_they_are(tmp_path: Path) -> None:
    """Also in the JSON of a cell; a text that only speaks of images is no JSON of messages."""
    (tmp_path / "a.png").write_bytes(b"")
    row = talk("a.png", "a", "b")["messages"]
    beside = talk(str(tmp_path / "a.png"), "a", "b")["messages"]
    assert with_files(row, tmp_path) == beside
    assert json.loads(with_files(json.dumps(row), tmp_path)) == beside
    address = [{"type": "image_url", "image_url": {"url": "a.png"}}]
    assert with_files(address, tmp_path) == [{"type": "image_url", "image_url": {"url": str(tmp_path / "a.png")}}]
    for text in ('"image"', "what is in the image?", '{"type": "image", "size": 3}', '[{"type": "image"'):
        assert with_files(text, tmp_path) == text
