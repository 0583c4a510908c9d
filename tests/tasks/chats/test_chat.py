"""Training on conversations: what enters the loss, packing, and the run that results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.chats.chat_runs import END, TEMPLATE, recurrent, start, talk, tokenizer, write

import qkv
from qkv.data.batching.batch import IGNORED
from qkv.data.batching.best_fit import pack
from qkv.runs.inference.end_tokens import writing
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import BestFit, Data, LengthBuckets
from qkv.spec.generation import Generation
from qkv.spec.masks import Causal, Prefix
from qkv.spec.model import Block, Model
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Chat
from qkv.spec.training import Training
from qkv.system.errors import UserError
from qkv.tasks.chats import conversational
from qkv.tasks.chats.chat import ChatTask, ChatText, one_per_row
from qkv.tasks.registry import task_of_recipe
from qkv.tokenizers.chat_targets import encode_chat
from qkv.tokenizers.chat_template import ChatTemplate

TALKS = [
    talk("the cat", "sat"),
    talk("the dog", "ran to the house", "and", "the red ball"),
    talk("a", "b"),
    talk("x", "y"),
]
FEW = ["training.steps=2", "training.minutes=null", "training.validation.every=1", "training.adapt=whole"]


def opened(source: Path, folder: Path, **changes: Any) -> tuple[ChatTask, Any]:
    """The task and its data, opened from the start in ``folder``."""
    from qkv.runs.start import with_start

    data = Data(source=str(source), validation=str(source), batching=changes.pop("batching", BestFit(tokens=96)))
    recipe = Recipe(
        data=data, task=Chat(**changes.pop("task", {})), start=str(folder), training=Training(batch_size=4, **changes)
    )
    recipe = with_start(recipe)
    task = task_of_recipe(recipe)
    return task, task.open(recipe)  # type: ignore[return-value]


def looped_loss(model: Any, template: ChatTemplate, talks: list[dict[str, Any]]) -> torch.Tensor:
    """-Σ log p over the tokens of answers, one conversation and one position at a time."""
    nats = torch.zeros((), dtype=torch.float64)
    for each in talks:
        for text in encode_chat(template, each["messages"]):
            logits = model(torch.tensor([text.ids]))[0][0].log_softmax(-1)
            for i, learned in enumerate(text.targets):
                nats = nats - (logits[i - 1, text.ids[i]] if learned else 0)
    return nats


@pytest.mark.parametrize("batching", [BestFit(tokens=96), LengthBuckets()], ids=lambda part: part.kind)
@pytest.mark.parametrize("mixer", [None, recurrent()], ids=["attention", "gru"])
def test_loss_and_gradients_equal_those_of_single_conversations(tmp_path: Path, batching: Any, mixer: Any) -> None:
    folder = start(tmp_path / "start", mixer=mixer)
    task, dataset = opened(write(tmp_path / "talks.jsonl", TALKS), folder, batching=batching)
    model = qkv.load(folder).model.double().train()
    batch = dataset.batch(0)
    if isinstance(batching, BestFit):
        assert batch.input.segments is not None  # several conversations in a row
    task.summed_loss(model, batch).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    nats = looped_loss(model, ChatTemplate(TEMPLATE, tokenizer()), TALKS)
    assert float(task.summed_loss(model, batch).detach()) == pytest.approx(float(nats.detach()), rel=1e-9)
    nats.backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert torch.allclose(found[name], p.grad, atol=1e-9), name


@torch.no_grad()
def test_the_sum_over_two_batches_is_that_over_all(tmp_path: Path) -> None:
    folder = start(tmp_path / "start")
    task, dataset = opened(write(tmp_path / "talks.jsonl", TALKS), folder, batching=LengthBuckets())
    model = qkv.load(folder).model.double()
    examples = [example.fields for example in dataset.examples["train"]]
    whole, parts = one_per_row(examples), [one_per_row(examples[:1]), one_per_row(examples[1:])]
    assert sum(part.num_targets for part in parts) == whole.num_targets
    together = sum(float(task.summed_loss(model, part)) for part in parts)
    assert together == pytest.approx(float(task.summed_loss(model, whole)), rel=1e-9)


def test_the_end_of_an_answer_is_learned_although_it_pads(tmp_path: Path) -> None:
    _, dataset = opened(write(tmp_path / "talks.jsonl", TALKS), start(tmp_path / "start"))
    end = tokenizer().core.token_to_id(END)
    targets = dataset.batch(0).targets
    assert int((targets == end).sum()) == 5
    assert int((targets != IGNORED).sum()) == sum(example.targets for example in dataset.examples["train"])


def test_a_long_conversation_is_cut_after_a_whole_answer(tmp_path: Path) -> None:
    turns = ["the cat sat on the mat and the dog ran"] * 12
    source = write(tmp_path / "talks.jsonl", [talk(*turns), talk("a", "b")])
    task, dataset = opened(source, start(tmp_path / "start"))
    texts = [example.fields for example in dataset.examples["train"]]
    end = tokenizer().core.token_to_id(END)
    assert all(len(text.ids) <= 96 and text.ids[-1] == end and text.targets[-1] for text in texts)
    assert any("after the last answer that fits is left out" in note for note in dataset.notes)
    assert task.limits(dataset.recipe) == {"messages": 96}


def test_a_conversation_without_room_for_an_answer_gets_none(tmp_path: Path) -> None:
    folder = start(tmp_path / "start")
    task, dataset = opened(write(tmp_path / "talks.jsonl", TALKS), folder)
    chats = [([{"role": "user", "content": text}], None) for text in ("the cat sat " * 40, "the cat")]
    texts = task.answers(qkv.load(folder).model, dataset.vocabulary, dataset.recipe, chats)
    assert texts[0] == ""
    assert len(dataset.vocabulary.tokenizer.encode(texts[1])) <= 96


def test_a_long_prompt_does_not_shorten_the_answers_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = start(tmp_path / "start")
    task, dataset = opened(write(tmp_path / "talks.jsonl", TALKS), folder)
    rooms = dict[int, int]()

    def count(model: Any, prompts: list[list[int]], generation: Generation, inputs: None) -> list[list[int]]:
        rooms.update({len(prompt): generation.max_new_tokens for prompt in prompts})
        return [[] for _ in prompts]

    monkeypatch.setattr(conversational, "generate", count)
    chats = [([{"role": "user", "content": text}], None) for text in ("the cat", "the dog sat", "the cat sat " * 24)]
    recipe = dataset.recipe.changed(sample=dataset.recipe.sample.changed(max_new_tokens=200))
    assert task.answers(None, dataset.vocabulary, recipe, chats) == ["", "", ""]  # type: ignore[arg-type]
    assert len(rooms) == 3
    assert all(length + room == 96 for length, room in rooms.items())


def test_what_cannot_be_learned_is_told(tmp_path: Path) -> None:
    silent = {"messages": [{"role": "user", "content": "hello"}]}
    long = talk("the cat sat on the mat " * 30, "sat")
    source = write(tmp_path / "talks.jsonl", [*TALKS, silent, long])
    _, dataset = opened(source, start(tmp_path / "start"))
    notes = " ".join(dataset.notes)
    assert "no answer of the assistant" in notes
    assert "no answer ends within the 96 tokens that fit" in notes
    assert "tokens are targets" in notes
    with pytest.raises(UserError, match="cannot be used"):
        opened(write(tmp_path / "none.jsonl", [silent, silent]), tmp_path / "start")


def test_a_start_without_a_template_is_refused_with_the_way_out(tmp_path: Path) -> None:
    folder, source = start(tmp_path / "start", template=None), write(tmp_path / "talks.jsonl", TALKS)
    with pytest.raises(UserError, match="--chat-template FILE"):
        opened(source, folder)
    (tmp_path / "own.jinja").write_text(TEMPLATE)
    task, dataset = opened(source, folder, task={"chat_template": str(tmp_path / "own.jinja")})
    assert dataset.vocabulary.tokenizer.chat_template == TEMPLATE
    assert task.spec.learn == "answers"


def test_the_prefix_of_a_row_ends_before_its_first_target() -> None:
    """A prefix mask shows the prompt to itself, and no token that is learned."""
    model = Model(blocks=(Block(branches=(Attention(num_heads=2, mask=Causal() | Prefix()), FeedForward())),))
    recipe = Recipe(data=Data(source="a.jsonl"), task=Chat(), model=model)
    collate = task_of_recipe(recipe).collator(recipe, None)  # type: ignore[arg-type]
    texts = [ChatText(np.arange(6), np.arange(6) >= first) for first in (2, 4)]
    batch = collate(texts)
    assert batch.input.prefix.tolist() == [2, 4]
    assert [(row != IGNORED).int().argmax() for row in batch.targets] == [1, 3]


def test_packing_uses_each_example_once_and_fills_rows() -> None:
    sizes = np.array([7, 3, 9, 2, 2, 5, 12])
    rows = pack(sizes, 10)
    assert sorted(i for row in rows for i in row) == list(range(7))
    assert [6] in rows  # longer than a row
    assert all(sizes[row].sum() <= 10 for row in rows if row != [6])
    assert len(rows) == 4
    assert ChatText(np.arange(3), np.ones(3, bool)).targets.all()


def test_a_run_and_its_exports_chat_in_the_trained_form(tmp_path: Path) -> None:
    folder = start(tmp_path / "start", llama=True)
    source = write(tmp_path / "talks.jsonl", TALKS * 3)
    run = qkv.train(source, overrides=FEW, task="chat", start=folder, out=tmp_path / "run", validation=str(source))
    figures = run.evaluation["splits"]["validation"]["figures"]  # type: ignore[index]
    assert figures["loss"] < figures["loss_of_start"]
    rows = qkv.load(run.folder).evaluation["splits"]["validation"]["sections"][0]["rows"]  # type: ignore[index]
    assert rows[0][-1] == "sat"
    small = qkv.quantize(run.folder, tmp_path / "small", bits=8).run.folder
    hf = qkv.export(run.folder, tmp_path / "hf", check=False).place
    gguf = qkv.export(run.folder, tmp_path / "run.gguf", format="gguf", check=False).place
    messages = TALKS[1]["messages"][:3]
    answers = qkv.predict(run, [{"messages": messages}, {"messages": "[laughs] the cat"}])
    assert answers[0]["answer"] == qkv.chat(run, messages, temperature=0.0)["content"].strip()
    assert qkv.predict(run, [{"messages": TALKS[1]["messages"]}])[0]["answer"] == answers[0]["answer"]
    with pytest.raises(UserError, match="there is no message to answer"):
        qkv.predict(run, [{"messages": TALKS[1]["messages"][1:2]}])
    end = tokenizer().core.token_to_id(END)
    for place in (run.folder, small, hf, gguf):
        opened_again = qkv.load(place)
        assert opened_again.tokenizer.chat_template == TEMPLATE, place
        assert end in writing(opened_again).stop_token_ids, place


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    folder, source = start(tmp_path / "start"), write(tmp_path / "talks.jsonl", TALKS * 3)
    arguments = {"task": "chat", "start": folder, "validation": str(source)}
    changes = [*FEW[1:], "training.schedule=constant", "training.checkpoints.every=1", "training.batch_size=1"]
    whole = qkv.train(source, overrides=[*changes, "training.steps=4"], out=tmp_path / "a", **arguments)
    qkv.train(source, overrides=[*changes, "training.steps=2"], out=tmp_path / "b", **arguments)
    resumed = qkv.train(source, overrides=[*changes, "training.steps=4"], out=tmp_path / "b", **arguments)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_adapters_leave_the_start_as_the_baseline(tmp_path: Path) -> None:
    folder, source = start(tmp_path / "start"), write(tmp_path / "talks.jsonl", TALKS * 3)
    arguments = {"task": "chat", "start": folder, "validation": str(source)}
    whole = qkv.train(source, overrides=FEW, out=tmp_path / "whole", **arguments)
    lora = qkv.train(source, overrides=FEW[:3], out=tmp_path / "lora", **arguments)
    assert lora.recipe.training.adapt.kind == "lora"
    loss = [run.evaluation["splits"]["validation"]["figures"]["loss_of_start"] for run in (whole, lora)]  # type: ignore[index]
    assert loss[0] == pytest.approx(loss[1], rel=1e-5)


def test_an_answer_without_a_question_is_learned_but_not_shown(tmp_path: Path) -> None:
    folder, alone = start(tmp_path / "start"), {"messages": [{"role": "assistant", "content": "the red ball"}]}
    source = write(tmp_path / "talks.jsonl", [alone, *TALKS])
    run = qkv.train(source, overrides=FEW, task="chat", start=folder, out=tmp_path / "run", validation=str(source))
    rows = run.evaluation["splits"]["validation"]["sections"][0]["rows"]  # type: ignore[index]
    assert [(row[0], row[-1]) for row in rows] == [("the cat", "sat"), ("and", "the red ball"), ("a", "b")]


@pytest.mark.parametrize("learn", ["last", "everything"])
def test_other_targets(tmp_path: Path, learn: str) -> None:
    _, dataset = opened(write(tmp_path / "talks.jsonl", TALKS), start(tmp_path / "start"), task={"learn": learn})
    texts = [example.fields for example in dataset.examples["train"]]
    shares = [text.targets.mean() for text in texts]
    if learn == "everything":
        assert all(not text.targets[0] and text.targets[1:].all() for text in texts)
    else:
        assert max(shares) < 0.5
        assert all(np.diff(text.targets.astype(int)).tolist().count(1) == 1 for text in texts)
