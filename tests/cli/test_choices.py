"""``qkv evaluate --choices``: multiple choice against log probabilities of the transformers library."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Call
from transformers import GPT2Config, GPT2LMHeadModel

import qkv as package
from qkv.spec.tokenizers import Characters
from qkv.system.errors import UserError
from qkv.tokenizers.train import characters

WORDS = ["fox", "dog", "lazy dog", "quick brown fox", "jumps", "over the", "the"]
TEMPLATE = "{question} is {label}; "
EXAMPLES = [{"question": "a dog", "label": "lazy"}, {"question": "a fox", "label": "quick"}]


@pytest.fixture(scope="module")
def questions() -> list[dict[str, Any]]:
    draw = random.Random(0)
    rows = []
    for number in range(24):
        options = draw.sample(WORDS, draw.randint(2, 4))
        place = draw.randrange(len(options))
        answer = [place, "ABCD"[place], options[place]][number % 3]
        rows.append({"question": f"the {draw.choice(WORDS)}", "choices": options, "answer": answer})
    return rows


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GPT2LMHeadModel]:
    """A folder written by transformers, of weights large enough for answers to differ."""
    folder = tmp_path_factory.mktemp("gpt2")
    tokenizer = characters(Characters(), ["the quick brown fox jumps over the lazy dog; is a"])
    torch.manual_seed(0)
    size: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "n_positions": 128,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 2,
    }
    config = GPT2Config(**size, initializer_range=0.4, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder, model


def log_likelihood(model: GPT2LMHeadModel, ids: list[int], count: int) -> float:
    """Σ log p of the last ``count`` ids."""
    with torch.no_grad():
        logs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return sum(float(logs[place - 1, ids[place]]) for place in range(len(ids) - count, len(ids)))


def expected(model: GPT2LMHeadModel, folder: Path, rows: list[dict[str, Any]], shots: int) -> dict[str, float]:
    tokenizer = package.load(folder).tokenizer
    before = "".join(f"{row['question']} is {row['label']}; " for row in EXAMPLES[:shots])
    right, loss = {"sum": 0, "character": 0}, 0.0
    for row in rows:
        prompt, options = f"{before}{row['question']} is", row["choices"]
        logs = [log_likelihood(model, tokenizer.encode(f"{prompt} {option}"), len(option) + 1) for option in options]
        answer = row["answer"]
        label = answer if isinstance(answer, int) else options.index(answer) if answer in options else ord(answer) - 65
        right["sum"] += max(range(len(logs)), key=logs.__getitem__) == label
        by_length = [log / len(option) for log, option in zip(logs, options, strict=True)]
        right["character"] += max(range(len(logs)), key=by_length.__getitem__) == label
        loss += math.log(sum(math.exp(log - logs[label]) for log in logs))
    n = len(rows)
    chance = sum(1 / len(row["choices"]) for row in rows) / n
    return {
        "accuracy": right["sum"] / n,
        "accuracy_per_character": right["character"] / n,
        "loss": loss / n,
        "baseline": chance,
    }


@pytest.mark.parametrize("shots", [0, 2])
def test_metrics_are_those_of_the_log_probabilities_of_transformers(
    qkv: Call, published: tuple[Path, GPT2LMHeadModel], questions: list[dict[str, Any]], tmp_path: Path, shots: int
) -> None:
    folder, model = published
    table, examples, report = tmp_path / "questions.jsonl", tmp_path / "examples.jsonl", tmp_path / "report.html"
    table.write_text("".join(json.dumps(row) + "\n" for row in questions))
    examples.write_text("".join(json.dumps(row) + "\n" for row in EXAMPLES))
    extra = ["--examples", str(examples)] if shots else []
    said = qkv("evaluate", folder, "--choices", table, "--template", TEMPLATE, *extra, "--json", "--report", report)
    assert said.code == 0, said.err
    found, wanted = json.loads(said.out), expected(model, folder, questions, shots)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)
    assert found["targets"] == len(questions)
    assert 0 < found["accuracy"] < 1
    page = report.read_text()
    assert "Most certain mistakes" in page
    told = package.evaluate_choices(folder, questions, EXAMPLES[:shots], TEMPLATE)
    assert {name: told[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)


def test_without_options_the_labels_of_all_questions_are_the_options(run: Path) -> None:
    form = "{text} is {label}; "
    rows = [{"text": text, "label": label} for text, label in (("the quick", "fox"), ("the lazy", "dog"), ("a", "dog"))]
    found = package.evaluate_choices(run, rows, template=form)
    answers = package.ask(run, [row["text"] for row in rows], options=["dog", "fox"], template=form)
    right = sum(answer["answer"] == row["label"] for answer, row in zip(answers, rows, strict=True))
    assert found["accuracy"] == pytest.approx(right / 3)
    assert found["baseline"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--choices", "Q", "--split", "test"], "--choices evaluates on its own table of questions; leave out --"),
        (["--choices", "Q", "data.columns.text=x"], "leave out changes of the recipe"),
        (["--template", "{question} {label}"], "--template and --examples apply to --choices only"),
        (["--choices", "Q", "--template", "{question}"], "template: '{question}' given"),
        (["--choices", "missing.csv"], "--choices"),
    ],
)
def test_wrong_input_gets_one_sentence(
    qkv: Call, run: Path, questions: list[dict[str, Any]], tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    table = tmp_path / "questions.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in questions))
    said = qkv("evaluate", run, *[str(table) if word == "Q" else word for word in arguments])
    assert said.code == 2
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_a_question_of_one_option_is_refused(run: Path) -> None:
    rows = [{"text": "the", "options": ["fox"], "label": "fox"}]
    with pytest.raises(UserError, match="question 1 has 1 option; a choice needs at least two"):
        package.evaluate_choices(run, rows, template="{text} {label}")
