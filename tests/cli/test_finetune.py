"""``qkv train`` with a verb and ``--from``: a published checkpoint and a run of one's own, changed for a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call
from tests.cli.tables import write_tables
from tests.training.test_start import published_bert

import qkv as library
from qkv.choosing.guessed import guess_task
from qkv.costs.measuring.machine import Machine, store_machine
from qkv.spec.files.yaml_io import read_recipe
from qkv.system.processor import processor_name

SHORT = ("training.steps=12", "training.validation.every=6")
TOLD = {
    "reviews.csv": "classification",
    "prices.csv": "regression",
    "names.conll": "token_classification",
    "squad.json": "question_answering",
    "news.jsonl": "summarization",
    "pairs.csv": "translation",
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Path:
    """Tables, a published BERT that knows their words, and a run that was pretrained by hiding words."""
    store_machine(Machine(processor_name(), {"fp32": 4e11}, bandwidth=4e10, call=1e-5))
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    (folder / "pairs.csv").write_text("source,target\n" + "eins zwei,one two\nzwei,two\n" * 20)
    published_bert(folder / "bert", ("film", "plot", "actors", "scene", "good", "bad"))
    text = "the film good plot and the scene bad actors\n" * 60
    (folder / "text.txt").write_text(text)
    model = {
        "width": 16,
        "context_length": 24,
        "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(32)"]}],
    }
    training = {"steps": 3, "batch_size": 2, "validation": {"every": 3, "batches": 1}}
    data = {"source": str(folder / "text.txt"), "tokenizer": "words(64)"}
    library.train(
        library.Recipe.parse({"data": data, "model": model, "task": "masked_tokens", "training": training}),
        folder / "hidden",
    )
    return folder


@pytest.fixture
def here(tables: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tables)
    return tables


@pytest.mark.parametrize("adapt", ["whole", "head", "lora(2)"])
@pytest.mark.parametrize("start", ["bert", "hidden"])
def test_a_model_that_is_there_is_changed_for_a_table(qkv: Call, here: Path, start: str, adapt: str) -> None:
    folder = here / "runs" / f"{start}-{adapt[:4]}"
    typed = ("train", "finetune", "--from", start, "--data", "reviews.csv", "--adapt", adapt)
    said = qkv(*typed, *SHORT, "--out", folder)
    assert said.code == 0, said.err
    recipe = read_recipe(folder)
    assert (recipe.task.kind, recipe.start.checkpoint, recipe.training.adapt.kind) == (
        "classification",
        start,
        adapt[:5].removesuffix("("),
    )
    assert (recipe.model.width, recipe.training.steps) == (16, 12)
    assert f"from {start}" in said.err
    assert f"is initialised with the weights of '{start}'" in said.err
    assert ("parameters are trainable" in said.err) == (adapt != "whole")
    evaluation = json.loads((folder / "evaluation.json").read_text())["splits"]["validation"]["figures"]
    assert evaluation["targets"] == 5
    answered = qkv("predict", folder, "film good plot", "--json")
    assert json.loads(answered.out)["answer"] in ("1", "5")
    again = qkv(*typed, *SHORT, "--out", folder)
    assert (again.code, "is finished" in again.err) == (0, True), again.err


def test_more_steps_tell_good_from_bad_and_go_back_to_the_other_library(qkv: Call, here: Path) -> None:
    typed = ("train", "classify", "--from", "bert", "--data", "reviews.csv", "--text", "review", "--out", "learned")
    said = qkv(*typed, "training.steps=60", "training.optimizer.lr=0.005")
    assert said.code == 0, said.err
    assert (
        json.loads((here / "learned" / "evaluation.json").read_text())["splits"]["validation"]["figures"]["accuracy"]
        == 100.0
    )
    exported = qkv("export", "learned", "--out", "back", "--check")
    assert "BERT (BertForSequenceClassification)" in exported.out
    assert "the linear path beside the model is left out" in exported.err
    sections = json.loads((here / "learned" / "evaluation.json").read_text())["splits"]["validation"]["sections"]
    contestants = next(section for section in sections if section["kind"] == "contestants")
    assert {row[0] for row in contestants["rows"]} == {"n-grams", "attention", "attention, n-grams"}


@pytest.mark.parametrize("name", TOLD)
def test_the_data_tells_the_task(here: Path, name: str) -> None:
    assert guess_task({"source": name}) == TOLD[name]


def test_fewer_weights_learn_at_a_higher_rate_and_all_at_a_low_one(here: Path) -> None:
    rates: dict[str, Any] = {}
    for adapt in ("whole", "last(1)", "lora", "head"):
        recipe, _ = library.find_recipe("reviews.csv", task="classification", start="bert", adapt=adapt)
        rates[adapt] = recipe.training.optimizer.lr
    assert rates["whole"] < rates["last(1)"] <= rates["lora"] <= rates["head"] <= 5e-3
    recipe, _ = library.find_recipe(
        "reviews.csv", overrides=["training.adapt=whole"], task="classification", start="bert", adapt="lora"
    )
    assert recipe.training.optimizer.lr == rates["whole"]


WRONG = {
    "no start": (("finetune", "--data", "reviews.csv"), "with --from"),
    "no data": (("finetune", "--from", "bert"), "--data FILE"),
    "no folder": (
        ("classify", "--from", "./nothing", "--data", "reviews.csv"),
        "start: './nothing' is neither a trained run nor a published checkpoint",
    ),
    "unknown adapt": (
        ("classify", "--from", "bert", "--data", "reviews.csv", "--adapt", "lorra"),
        "did you mean 'lora'",
    ),
    "unknown task": (
        ("finetune", "--from", "bert", "--data", "reviews.csv", "--task", "clasify"),
        "did you mean 'classify'",
    ),
    "task beside a verb": (
        ("classify", "--data", "reviews.csv", "--task", "tag"),
        "--task is an option of 'qkv train finetune'",
    ),
    "not a table": (("text.txt", "--from", "bert"), "--from needs a verb"),
    "writes": (("translate", "--from", "bert", "--data", "pairs.csv"), "this branch sees later positions"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_said_in_a_sentence(qkv: Call, here: Path, case: str) -> None:
    typed, sentence = WRONG[case]
    said = qkv("train", *typed, "--out", "wrong")
    assert said.code == 2
    assert sentence in said.err
    assert not (here / "wrong").exists()
