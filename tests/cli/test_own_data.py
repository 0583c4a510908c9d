"""``qkv train`` with a verb and ``qkv predict``, on tiny tables of one's own."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.cli.conftest import Call
from tests.cli.tables import write_tables
from tests.inventory import assert_lists

from qkv.choosing.verbs import VERBS
from qkv.cli.main import main
from qkv.costs.measuring.machine import Machine, store_machine
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.processors import processor_roles
from qkv.system.processor import processor_name

SHORT = ("training.steps=12", "training.validation.every=6", "model.width=32")


class Case(NamedTuple):
    """Arguments of ``qkv train``, the columns found, a figure of the evaluation, and the question to the run."""

    typed: tuple[str, ...]
    columns: dict[str, str]
    figure: str
    asked: tuple[str, ...]


CASES = {
    "classify": Case(
        ("--data", "reviews.csv", "--text", "review", "--label", "stars"),
        {"text": "review", "label": "stars"},
        "accuracy",
        ("a good film",),
    ),
    "multilabel": Case(("--data", "topics.csv", "--labels", "topics"), {"labels": "topics"}, "micro F1", ("a film",)),
    "regress": Case(("--data", "prices.csv", "--value", "price"), {"value": "price"}, "rmse", ("a b b x",)),
    "transcribe": Case(("--data", "songs.jsonl"), {"transcript": "text"}, "WER", ("[0.1, 0.9, 0.8, 0, 0.9, 1]",)),
    "tag": Case(("--data", "names.conll"), {}, "F1", ("Ann lives in Rome",)),
    "answer": Case(("--data", "squad.json"), {}, "exact match", ("Who lives there?", "--context", "@page.txt")),
    "translate": Case(("--source", "a.txt", "--target", "b.txt"), {}, "BLEU", ("eins drei",)),
    "summarize": Case(
        ("--data", "news.jsonl", "--text", "article", "--summary", "summary"),
        {"source": "article", "target": "summary"},
        "ROUGE-L",
        ("Eva went.",),
    ),
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Path:
    """A folder with a table for each verb; the machine's speed is known."""
    store_machine(Machine(processor_name(), {"fp32": 4e11}, bandwidth=4e10, call=1e-5))
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    (folder / "page.txt").write_text("Eva lives in Rome.")
    return folder


@pytest.fixture
def here(tables: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tables, as the working folder."""
    monkeypatch.chdir(tables)
    return tables


@pytest.fixture(scope="module")
def stars(tables: Path) -> Path:
    """A run that has learned to tell good from bad. Read only."""
    folder = tables / "stars"
    typed = ["train", "classify", "--data", str(tables / "reviews.csv"), "--label", "stars", "--out", str(folder)]
    assert main([*typed, "training.steps=80", "training.optimizer.lr=0.003"]) == 0
    return folder


def test_every_verb_is_tried() -> None:
    tested_elsewhere = {"forecast", "edges", "chat", "prefer", "compress", "speak", "match", "caption"}
    assert_lists("tests/cli/test_own_data.py, CASES or tested_elsewhere", {*CASES, *tested_elsewhere}, VERBS)


@pytest.mark.parametrize("verb", CASES)
def test_a_verb_trains_examines_and_answers(qkv: Call, here: Path, verb: str) -> None:
    needed = {"tag": "seqeval", "translate": "sacrebleu", "summarize": "rouge_score", "transcribe": "jiwer"}
    if verb in needed:
        pytest.importorskip(needed[verb])
    case, folder = CASES[verb], here / "runs" / verb
    said = qkv("train", verb, *case.typed, *SHORT, "--out", folder)
    assert said.code == 0, said.err
    recipe = read_recipe(folder)
    assert (recipe.task.kind, recipe.training.steps) == (VERBS[verb].task, 12)
    assert case.columns.items() <= recipe.data.columns.items()
    optional = {"pair", "known", "speaker", *processor_roles(), "cells", *(("text",) if verb == "transcribe" else ())}
    assert recipe.data.columns.keys() >= {*VERBS[verb].columns.values()} - optional
    assert "chosen for this data and this machine" in said.err
    assert "held out for validation" in said.err
    assert f"qkv predict {folder}" in said.out
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert list(evaluation["splits"]) == ["validation"]
    assert case.figure in said.out
    assert case.figure in (folder / "report.html").read_text()
    answered = qkv("predict", folder, *case.asked, "--json")
    assert answered.code == 0, answered.err
    assert "answer" in json.loads(answered.out)
    again = qkv("train", verb, *case.typed, "--out", folder)
    assert (again.code, "is finished" in again.err) == (0, True), again.err


def test_the_evaluation_is_what_evaluate_says(qkv: Call, stars: Path, tmp_path: Path) -> None:
    figures = json.loads(qkv("evaluate", stars, "--json", "--report", tmp_path / "page.html").out)
    evaluation = json.loads((stars / "evaluation.json").read_text())["splits"]["validation"]["figures"]
    assert evaluation["accuracy"] == figures["accuracy"] == 100.0
    assert evaluation["loss"] == pytest.approx(figures["loss"])
    assert "Confusion matrix" in (tmp_path / "page.html").read_text()


def test_the_words_that_mattered_are_a_table_and_a_page(qkv: Call, stars: Path, tmp_path: Path) -> None:
    page = tmp_path / "why.html"
    said = qkv("predict", stars, "good film scene", "--why", "--report", page)
    assert said.code == 0, said.err
    lines = [line.split() for line in said.out.splitlines()]
    changes = {line[0]: float(line[1]) for line in lines if len(line) == 2 and line[0] in ("good", "film", "scene")}
    assert min(changes, key=changes.__getitem__) == "good"
    assert changes["good"] < 0
    assert "Words that mattered" in page.read_text()
    (found,) = [
        json.loads(line) for line in qkv("predict", stars, "good film scene", "--why", "--json").out.splitlines()
    ]
    assert [word["word"] for word in found["words"]] == ["good", "film", "scene"]


def test_columns_are_guessed_and_bad_rows_counted(qkv: Call, here: Path) -> None:
    said = qkv("train", "classify", "--data", "reviews.csv", *SHORT, "--out", "guessed")
    assert "'review' is taken as text, 'stars' as label (guessed)" in said.err
    assert "1 of 81 rows of reviews.csv was skipped: line 82" in said.err
    refused = qkv("train", "classify", "--data", "reviews.csv", "--bad-rows", "refuse", "--out", "refused")
    assert (refused.code, refused.out) == (2, "")
    assert "1 of 81 rows of reviews.csv cannot be used: line 82" in refused.err
    assert not (here / "refused").exists()


def test_parts_of_ones_own_and_the_short_form(qkv: Call, here: Path) -> None:
    data = ("--data", "reviews.csv", "--validation", "reviews.csv", "--test", "reviews.csv")
    said = qkv("train", "classify", *data, "--quick", "model.width=32")
    assert said.code == 0, said.err
    assert list(json.loads((here / "runs" / "reviews-quick" / "evaluation.json").read_text())["splits"]) == [
        "validation",
        "test",
    ]
    assert ["metric", "validation", "test"] in [line.split() for line in said.out.splitlines()]


def test_a_file_of_the_name_of_a_verb_is_a_file(qkv: Call, here: Path) -> None:
    (here / "classify").write_text("the quick brown fox jumps over the lazy dog; " * 40)
    said = qkv(
        "train",
        "./classify",
        "training.steps=1",
        "model.width=16",
        "model.num_layers=1",
        "model.blocks.attention.num_heads=2",
        "--out",
        "t",
    )
    assert said.code == 0, said.err
    assert read_recipe(here / "t").task.kind == "next_token"


def test_a_table_is_learned_from_in_python(here: Path) -> None:
    import qkv

    run = qkv.train("reviews.csv", "python", SHORT, task="classification", columns={"text": "review"}, bad_rows="skip")
    assert run.evaluation is not None
    assert run.evaluation["splits"]["validation"]["figures"]["targets"] == 5
    assert set(qkv.predict(run, "a good film")[0]["probabilities"]) == {"1", "5"}
    with pytest.raises(qkv.UserError, match="name the task too"):
        qkv.train("reviews.csv", columns={"text": "review"})
    with pytest.raises(qkv.UserError, match="did you mean 'classification'"):
        qkv.train("reviews.csv", task="classificaton")


def test_answers_for_people(qkv: Call, stars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = qkv("predict", stars, "film good plot")
    assert [line.split()[0] for line in one.out.splitlines()] == ["answer", "5", "1"]
    two = qkv("predict", stars, "film good plot", "film bad plot")
    assert [line.split()[-2] for line in two.out.splitlines()] == ["answer", "5", "1"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"film good plot\n\nfilm bad plot\n")))
    lines = [json.loads(line) for line in qkv("predict", stars, "-", "--json").out.splitlines()]
    assert [(line["text"], line["answer"]) for line in lines] == [("film good plot", "5"), ("film bad plot", "1")]
    assert lines[0]["probabilities"]["5"] == lines[0]["probability"] > 0.5
    cut = qkv("predict", stars, "good " * 200)
    assert cut.err.startswith("note: the input has 200 tokens and the model reads 31")


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_every_row_of_a_table_is_answered(qkv: Call, stars: Path, here: Path, tmp_path: Path, ending: str) -> None:
    (here / "new.csv").write_text('stars,review,answer\n?,"film, good plot",x\n?,film bad scene,y\n')
    out = tmp_path / f"out.{ending}"
    said = qkv("predict", stars, "--data", "new.csv", "--out", out)
    assert (said.code, said.out) == (0, "")
    assert "2 answers in" in said.err
    text = out.read_text()
    if ending == "jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
    else:
        rows = list(csv.DictReader(io.StringIO(text), delimiter="\t" if ending == "tsv" else ","))
    assert [(row["review"], row["answer"], row["predicted_answer"]) for row in rows] == [
        ("film, good plot", "x", "5"),
        ("film bad scene", "y", "1"),
    ]
    assert all(0.5 < float(row["probability"]) <= 1 for row in rows)


def test_rows_that_cannot_be_answered_are_named(qkv: Call, stars: Path, here: Path) -> None:
    (here / "holes.csv").write_text("number,review\n1,film good plot\n2,\n3,film bad plot\n")
    said = qkv("predict", stars, "--data", "holes.csv", "--column", "text=review")
    assert [row["answer"] for row in csv.DictReader(io.StringIO(said.out))] == ["5", "1"]
    assert "1 of 3 rows of holes.csv has no prediction: line 3" in said.err


BAD_TRAINING = {
    "no data": (["classify"], "'qkv train classify' needs training data: --data FILE"),
    "a file without its option": (
        ["classify", "reviews.csv"],
        "if it is the data: qkv train classify --data reviews.csv",
    ),
    "a missing file": (["classify", "--data", "revews.csv"], "did you mean 'reviews.csv'?"),
    "an empty file": (["classify", "--data", "empty.csv"], "'empty.csv' is empty"),
    "a header alone": (["classify", "--data", "header.csv"], "header.csv has no rows after its header"),
    "no such column": (
        ["classify", "--data", "reviews.csv", "--text", "revew"],
        "has no column 'revew'; did you mean 'review'?",
    ),
    "nothing but bad rows": (
        ["classify", "--data", "bad.csv"],
        "2 of 2 rows of bad.csv cannot be used, more than half",
    ),
    "a text for a number": (
        ["regress", "--data", "reviews.csv", "--value", "review", "--text", "stars"],
        "80 of 80 cells of the column 'review' of reviews.csv are not numbers, such as 'scene good scene' in line 2",
    ),
    "one label": (["classify", "--data", "one.csv"], "there are no classes to distinguish"),
    "an option of another verb": (
        ["tag", "--data", "names.conll", "--label", "x"],
        "'label' is not an argument of the task 'tag'",
    ),
    "an option without a verb": (
        ["a.txt", "--label", "x"],
        "--label needs a verb instead of 'a.txt': classify, multilabel",
    ),
    "half of a pair": (["translate", "--source", "a.txt"], "--target is missing"),
    "a text that is not there": (
        ["translate", "--source", "a.txt", "--target", "c.txt"],
        "--target: there is no file 'c.txt'",
    ),
    "texts of different length": (
        ["translate", "--source", "a.txt", "--target", "page.txt"],
        "the same number, line by line",
    ),
    "an unknown way with bad rows": (
        ["classify", "--data", "reviews.csv", "--bad-rows", "skp"],
        "it should be 'skip' or 'refuse'",
    ),
    "two ways to split": (
        ["classify", "--data", "reviews.csv", "--split-group", "stars", "--split-time", "stars"],
        "rows are split by group or by time",
    ),
    "a column to split by that is not there": (
        ["classify", "--data", "reviews.csv", "--split-group", "star"],
        "did you mean 'stars'?",
    ),
    "no CoNLL": (["tag", "--data", "lonely.conll"], "CoNLL needs a token and a tag per line"),
    "a folder of another run": (
        ["tag", "--data", "names.conll", "--out", "stars"],
        "holds a run of the task 'classification'",
    ),
}


@pytest.mark.usefixtures("stars")
@pytest.mark.parametrize(("args", "sentence"), BAD_TRAINING.values(), ids=BAD_TRAINING.keys())
def test_bad_data_gets_a_sentence(qkv: Call, here: Path, args: list[str], sentence: str) -> None:
    (here / "empty.csv").write_text("")
    (here / "header.csv").write_text("review,stars\n")
    (here / "bad.csv").write_text("review,stars\none\ntwo\n")
    (here / "one.csv").write_text("review,stars\n" + "good,5\n" * 20)
    (here / "lonely.conll").write_text("Ann\nlives\n")
    said = qkv("train", *args)
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert [line[:5] for line in said.err.splitlines() if not line.startswith("reading ")] == ["qkv: "]


BAD_QUESTIONS = {
    "nothing": ([], "no input; give a text, '-' for lines on standard input, or --data FILE"),
    "an empty text": ([" "], "the input is empty"),
    "a part of another task": (
        ["x", "--context", "y"],
        "the task 'classification' has the input fields text, pair, not 'context'",
    ),
    "a part without a value": (["--set", "text"], "--set: 'text' given, but it should be a name, '=' and a value"),
    "a file that is not there": (["--set", "text=@absent.txt"], "absent.txt cannot be read: no such file"),
    "two inputs": (["x", "--data", "reviews.csv"], "--data predicts for the rows of a file; give no other input"),
    "an output for nothing": (["x", "--out", "o.csv"], "--out needs --data"),
    "words of a table": (["--data", "reviews.csv", "--why"], "--why is for single inputs, and --data gives a table"),
    "a page of nothing": (["x", "--report", "o.html"], "--report needs --why"),
    "a single letter": (["x", "--why"], "the input has a single word; the influence of words needs at least two"),
    "an ending that is no table": (["--data", "reviews.csv", "--out", "o.pdf"], "should end in .csv, .tsv or .jsonl"),
    "no such table": (["--data", "revews.csv"], "--data: there is no file 'revews.csv'"),
    "an empty table": (["--data", "empty.csv"], "--data: 'empty.csv' is empty"),
    "no such column": (
        ["--data", "reviews.csv", "--column", "text=revew"],
        "has no column 'revew'; did you mean 'review'?",
    ),
    "rows that are all bad": (
        ["--data", "gaps.csv", "--column", "text=review"],
        "no row of gaps.csv can be used: line 2",
    ),
}


@pytest.mark.parametrize(("args", "sentence"), BAD_QUESTIONS.values(), ids=BAD_QUESTIONS.keys())
def test_bad_questions_get_a_sentence(qkv: Call, here: Path, stars: Path, args: list[str], sentence: str) -> None:
    (here / "empty.csv").write_text("")
    (here / "gaps.csv").write_text("review,stars\n,1\n,2\n")
    said = qkv("predict", stars, *args)
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_standard_input_without_a_line(qkv: Call, stars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n \n")))
    said = qkv("predict", stars, "-")
    assert (said.code, said.err) == (2, "qkv: standard input has no line of text\n")


def test_a_language_model_predicts_nothing(qkv: Call, run: Path, here: Path) -> None:
    for asked in (["x"], ["--data", str(here / "reviews.csv")]):
        said = qkv("predict", run, *asked)
        assert (said.code, said.out) == (2, "")
        assert "'next_token'" in said.err


def test_a_task_on_running_text_answers_a_table_too(qkv: Call, here: Path) -> None:
    (here / "fill.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    (here / "fill.yaml").write_text(
        "data: {source: fill.txt, tokenizer: wordpiece(300)}\ntask: masked_tokens\n"
        "model: {width: 16, context_length: 32, blocks: [{branches: ['attention(2, mask=full)', feed_forward]}]}\n"
        "training: {steps: 3, batch_size: 4, validation: {every: 3, batches: 2}}\n"
    )
    (here / "gaps.csv").write_text("text,id\nthe quick <mask> fox,7\n")
    assert qkv("train", "fill.yaml", "--out", "fill").code == 0
    said = qkv("predict", "fill", "--data", "gaps.csv")
    (row,) = csv.DictReader(io.StringIO(said.out))
    assert (row["id"], row["answer"][:9]) == ("7", "the quick")


def test_a_lost_evaluation_is_taken_again(
    qkv: Call, stars: Path, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tables)
    copy = Path(shutil.copytree(stars, tmp_path / "copy"))
    before = json.loads((copy / "evaluation.json").read_text())
    (copy / "evaluation.json").unlink()
    (copy / "report.html").unlink()
    said = qkv("train", copy)
    assert said.code == 0, said.err
    assert "is finished" in said.err
    assert "evaluating the weights of step" in said.err
    after = json.loads((copy / "evaluation.json").read_text())
    for figures in (before["splits"]["validation"]["figures"], after["splits"]["validation"]["figures"]):
        figures.pop("seconds")
    assert after == before
    assert "Confusion matrix" in (copy / "report.html").read_text()
    assert "evaluating" not in qkv("train", copy).err
