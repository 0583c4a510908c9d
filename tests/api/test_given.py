"""Data in memory given to ``train``, ``evaluate`` and ``predict``: a run like any other, which goes on and is measured
later, wherever its folder lies.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.data.given.frames import ClassLabel, Dataset, Frame, Listed, Value
from tests.tasks.tables import Crash, crash_at, recipe_for
from tests.training.kill_storm import differences, ignore

import qkv
from qkv.choosing import automatic
from qkv.cli.main import main
from qkv.costs.measuring.machine import Machine, store_machine
from qkv.system.errors import UserError
from qkv.system.processor import processor_name

SHORT = ("training.steps=6", "training.validation.every=3", "training.checkpoints.every=3", "model.width=16")
LAYER = (*SHORT, "model.num_layers=1")
ROWS = [{"review": f"{'bad' if i % 3 else 'good'} film {i}", "stars": "down" if i % 3 else "up"} for i in range(36)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; the machine's speed is known."""
    store_machine(Machine(processor_name(), {"fp32": 4e11}, bandwidth=4e10, call=1e-5))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def classify(data: Any = ROWS, out: str | None = "run", **options: Any) -> qkv.Run:
    settings = {"task": "classify", "text": "review", "label": "stars", "overrides": LAYER, "on_event": ignore}
    return qkv.train(data, out, **{**settings, **options})


def test_a_killed_run_goes_on_bit_for_bit_and_is_measured_after_a_move(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight = classify(out="straight")
    with pytest.raises(Crash):
        classify(on_event=crash_at(4))
    run = classify(Frame({name: [row[name] for row in ROWS] for name in ROWS[0]}))
    assert differences(here / "straight", here / "run") == []
    assert run.recipe.name == "run"
    figures = qkv.evaluate(straight)
    (here / "elsewhere").mkdir()
    shutil.move("straight", "elsewhere/moved")
    assert main(["evaluate", "elsewhere/moved", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == figures["accuracy"]
    again = classify(out="elsewhere/moved")
    assert again.step == straight.step
    assert again.recipe.data.source.startswith("elsewhere")


def test_the_default_folder_is_named_after_the_data(here: Path) -> None:
    first = classify(out=None)
    name = Path(first.recipe.data.source).name
    assert first.folder == Path("runs", f"classification-{name[:8]}")
    assert first.recipe.name == first.folder.name
    assert classify(out=None).folder == first.folder
    assert classify(ROWS[:-1], out=None).folder != first.folder
    with pytest.raises(UserError, match="holds a run of"):
        classify(ROWS[:-1], out=str(first.folder))
    assert [path.name for path in (first.folder / "data").iterdir()] == [name]


def test_predictions_for_rows_of_every_kind(here: Path) -> None:
    run = classify()
    one = [qkv.predict(run, row["review"])[0] for row in ROWS[:3]]
    texts = [row["review"] for row in ROWS[:3]]
    for many in (texts, tuple(texts), ROWS[:3], {"review": texts}, Frame({"n": [1, 2, 3], "review": texts})):
        found = qkv.predict(run, many)
        assert [answer["answer"] for answer in found] == [answer["answer"] for answer in one]
    assert qkv.predict(run, [{"text": texts[0]}, texts[1]]) == qkv.predict(run, *texts[:2])
    assert len(qkv.predict(run, {"said": texts, "noted": ROWS[:3]}, columns={"text": "said"})) == 3
    assert qkv.predict(run, []) == []
    assert [answer["answer"] for answer in qkv.explain(run, texts)] == [answer["answer"] for answer in one]
    assert len(qkv.predict(run, {"text": texts[0]})) == 1


def test_evaluation_on_data_in_memory(here: Path) -> None:
    run = classify()
    answers = [answer["answer"] for answer in qkv.predict(run, ROWS)]
    right = 100 * sum(answer == row["stars"] for answer, row in zip(answers, ROWS, strict=True)) / len(ROWS)
    found = qkv.evaluate(run, data=ROWS)
    assert found["accuracy"] == pytest.approx(right)
    assert found["targets"] == len(ROWS)
    renamed = {"said": [row["review"] for row in ROWS], "is": [row["stars"] for row in ROWS]}
    named = qkv.evaluate(run, data=renamed, overrides=["data.columns={text: said, label: is}"])
    assert named["accuracy"] == found["accuracy"]


def test_splits_are_those_that_are_given(here: Path) -> None:
    held = [{"review": "good thing", "stars": "up"}] * 4
    run = classify({"train": ROWS, "validation": held, "test": held[:2]})
    assert [qkv.evaluate(run, split)["targets"] for split in ("train", "validation", "test")] == [36, 4, 2]
    other = classify(out="other", validation=held, test=held[:2])
    assert other.recipe.data.validation == str(Path("other/data", Path(str(run.recipe.data.validation)).name))
    with pytest.raises(UserError, match="'test' is given twice"):
        classify({"train": ROWS, "test": held}, test=held)


def test_tags_of_a_datasets_object(here: Path) -> None:
    tokens = [["Ann", "lives", "in", "Rome"] if i % 2 else ["Bob", "sleeps"] for i in range(12)]
    tags = [[1, 0, 0, 1] if i % 2 else [1, 0] for i in range(12)]
    table = Dataset(
        {"tokens": tokens, "ner_tags": tags},
        {"tokens": Listed(Value()), "ner_tags": Listed(ClassLabel(["O", "B-X"]))},
    )
    run = qkv.train(table, "run", task="tag", overrides=LAYER, on_event=ignore)
    assert set(run.vocabulary.labels) == {"O", "B-X"}
    texts = qkv.predict(run, ["Ann sleeps", "Bob"])
    assert [answer["words"] for answer in texts] == [["Ann", "sleeps"], ["Bob"]]
    for words in ([["Ann", "sleeps"], ["Bob"]], {"tokens": [["Ann", "sleeps"], ["Bob"]]}):
        assert [answer["tags"] for answer in qkv.predict(run, words)] == [answer["tags"] for answer in texts]
    assert qkv.predict(run, {"words": ["Ann", "sleeps"]})[0]["tags"] == texts[0]["tags"]


def test_texts_are_a_running_text_with_splits(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "_SIZES", automatic._SIZES[:1])
    texts = [f"the cat {i},sat on the mat" for i in range(60)]  # like the lines of a table
    run = qkv.train({"train": texts, "test": texts[:40]}, overrides=SHORT, on_event=ignore)
    assert run.folder == Path("runs", f"text-{Path(run.recipe.data.source).name[:8]}")
    assert run.recipe.task.kind == "next_token"
    assert qkv.evaluate(run, "test")["targets"] > 0
    assert qkv.evaluate(run, data=texts[:40])["loss"] == pytest.approx(qkv.evaluate(run, "test")["loss"])
    assert qkv.generate(run, "the cat", max_new_tokens=3)


def test_a_recipe_takes_data_in_memory(here: Path) -> None:
    recipe = recipe_for("classification", "nowhere.csv", {"tokenizer": "words(60)"}, {"steps": 4})
    qkv.write_spec("mine.yaml", recipe)
    given = {"data": {"train": ROWS, "test": ROWS[:4]}, "text": "review", "label": "stars", "on_event": ignore}
    run = qkv.train("mine.yaml", "run", **given)
    assert qkv.evaluate(run, "test")["targets"] == 4
    assert run.recipe.data.columns == {"text": "review", "label": "stars"}
    qkv.train(recipe, "other", **given)
    assert differences(here / "run", here / "other") == []
    written = qkv.Recipe.parse({"data": "nowhere.txt", "model": {"width": 16, "context_length": 8}})
    texts = qkv.train(written, "texts", ["training.steps=1"], on_event=ignore, data=["a text of some letters"] * 9)
    assert texts.recipe.data.source.endswith(".txt")
    with pytest.raises(UserError, match="draws its own data"):
        qkv.train("recall_attention", "none", data=["a"])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: classify([*ROWS, {"review": None, "stars": "up"}]), "row 36: no text"),
        (lambda: classify([*ROWS, {"review": "x", "stars": float("nan")}]), "row 36: no label"),
        (lambda: classify({"review": ["a", "b"], "stars": ["c"]}), "row 1 .* is incomplete"),
        (lambda: qkv.train(ROWS, "run", on_event=ignore), "has the columns review, stars"),
        (lambda: classify(ROWS, lable="stars"), "'lable' is not an argument of the task 'classify'.*'label'"),
        (lambda: classify(ROWS, columns={"label": "stars"}), "the column of 'label' is named twice"),
        (lambda: classify(ROWS, label="star"), "no column 'star'"),
        (lambda: qkv.train(3, "run"), "a number is given to train on"),
        (lambda: qkv.train(["a", None], "run"), "row 1 .* is not a text"),
        (lambda: qkv.train({"train": ROWS, "more": Frame({})}, "run", task="classify"), "no split 'more'"),
    ],
)
def test_one_sentence_for_bad_data_and_no_folder(call: Callable[[], Any], sentence: str, here: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        call()
    assert not list(here.iterdir())


def test_bad_inputs_are_told_by_their_number(here: Path) -> None:
    run = classify([*ROWS, {"review": "", "stars": "up"}], bad_rows="skip")
    for bad in (["a", None], ["a", " "], ["a", True], {"review": ["a", None]}):
        with pytest.raises(UserError, match=r"1 of 2 rows .* cannot be used: row 1: "):
            qkv.predict(run, bad)
    with pytest.raises(UserError, match=r"1 of 37 rows .*: row 36: no label"):
        qkv.evaluate(run, data=[*ROWS, {"review": "a"}])
    with pytest.raises(UserError, match="has the splits train, test; give one of them"):
        qkv.evaluate(run, data={"train": ROWS, "test": ROWS})
    with pytest.raises(UserError, match="'columns' names the columns of a table"):
        qkv.predict(run, "a", columns={"text": "review"})


def test_notebooks_show_runs_evaluations_and_costs(here: Path) -> None:
    run = classify()
    for shown, words in (
        (run, ("run, step", "accuracy", "Full report: run/report.html", "<img")),
        (qkv.evaluate(run), ("validation", "accuracy of most frequent label")),
        (qkv.evaluate(run, data=ROWS), ("data in memory", "macro F1")),
        (qkv.cost(run.recipe), ("feed forward", "memory, training step")),
    ):
        html = shown._repr_html_()  # type: ignore[attr-defined]
        assert all(word in html for word in words), html
    figures = qkv.evaluate(run)
    assert json.loads(json.dumps(figures)) == dict(figures)
