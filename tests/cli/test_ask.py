"""``qkv ask``: answers by few-shot prompting, their accuracy, and the sentence that each bad input gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from qkv.api.functions import ask as qkv_ask
from qkv.generation.few_shot import FewShot, Template
from qkv.generation.text import generate_text
from qkv.runs.storage.load import load
from qkv.spec.generation import Generation
from qkv.system.errors import UserError

EXAMPLES = "text,label\nthe quick fox,fox\nthe lazy dog,dog\nthe dog,dog\n"


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    path = tmp_path / "examples.csv"
    path.write_text(EXAMPLES)
    return path


def answer_of(run: Path, text: str, options: list[str]) -> dict[str, float]:
    loaded = load(run)
    rows = [{"text": t, "label": x} for t, x in (line.split(",") for line in EXAMPLES.splitlines()[1:])]
    prompt = FewShot(loaded.model, loaded.tokenizer, rows, Template("{text} is {label}; "))
    (found,) = prompt.fitted([{"text": text}]).choose([{"text": text}], [options])
    assert found.probabilities is not None
    return found.probabilities


def test_labels_of_the_examples_are_the_options(qkv: Call, run: Path, examples: Path) -> None:
    said = qkv("ask", run, "the fox", "--examples", examples, "--template", "{text} is {label}; ", "--json")
    assert said.code == 0
    line = json.loads(said.out)
    expected = answer_of(run, "the fox", ["dog", "fox"])
    assert line["probabilities"] == pytest.approx(expected, rel=1e-5)
    assert line["answer"] == max(expected, key=expected.__getitem__)


def test_a_table_with_labels_gives_the_accuracy_and_the_baseline(qkv: Call, run: Path, examples: Path) -> None:
    said = qkv(
        "ask",
        run,
        "--data",
        examples,
        "--examples",
        examples,
        "--num-examples",
        1,
        "--json",
        "--template",
        "{text} {label};",
    )
    found = [json.loads(line) for line in said.out.splitlines()]
    right = sum(line["answer"] == line["label"] for line in found)
    assert f"accuracy {right / 3:.1%} (" in said.err
    assert "of 3 rows; most frequent label (dog): 66.7%" in said.err
    assert ("not above the baseline" in said.err) == (right <= 2)


def test_options_of_each_row_are_read_and_labels_may_be_places(qkv: Call, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    rows = [
        {"question": "the quick", "choices": ["fox", "dog", "the"], "answer": 0},
        {"question": "the lazy", "choices": ["fox", "dog"], "answer": "B"},
        {"question": "the dog", "choices": ["over", "jumps"], "answer": "jumps"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = qkv("ask", run, "--data", path, "--template", "{question} {label}", "--json")
    assert said.code == 0, said.err
    found = [json.loads(line) for line in said.out.splitlines()]
    assert [line["label"] for line in found] == ["fox", "dog", "jumps"]
    assert [list(line["probabilities"]) for line in found] == [row["choices"] for row in rows]
    assert "chance: 44.4%" in said.err


def test_without_options_the_answer_is_generated(qkv: Call, run: Path) -> None:
    loaded = load(run)
    whole = generate_text(loaded.model, loaded.tokenizer, "the dog is", Generation(temperature=0, max_new_tokens=32))
    said = qkv("ask", run, "the dog", "--template", "{text} is {label};", "--json")
    assert json.loads(said.out) == {
        "text": "the dog",
        "answer": whole.partition(";")[0].strip(),
        "probabilities": None,
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give texts to answer, or a table with --data, and not both"),
        (["a", "--data", "EXAMPLES"], "give texts to answer, or a table with --data, and not both"),
        (["a", "--by", "word"], "--by: 'word' given; "),
        (["a", "--template", "{text}"], "template: '{text}' given; it should have a field"),
        (["a", "--template", "{text} {more} {label}"], "the template has the fields text, more; give a table of them"),
        (["a", "--examples", "missing.csv"], "--examples"),
        (["a", "--option", "b", "--option", "b"], "the option 'b' is given twice"),
        (
            ["--data", "EXAMPLES", "--column", "text"],
            "--column: 'text' given, but it should be a name, '=' and a value",
        ),
    ],
)
def test_wrong_input_gets_one_sentence(
    qkv: Call, run: Path, examples: Path, arguments: list[str], sentence: str
) -> None:
    said = qkv("ask", run, *[str(examples) if word == "EXAMPLES" else word for word in arguments])
    assert said.code == 2
    assert said.err.startswith(f"qkv: {sentence}") or sentence in said.err
    assert said.err.count("\n") == 1


def test_a_label_that_is_no_option_is_refused(qkv: Call, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"text": "the", "choices": ["fox", "dog"], "answer": "cat"}) + "\n")
    said = qkv("ask", run, "--data", path)
    assert (said.code, said.err) == (2, "qkv: the label 'cat' is not among the options 'fox', 'dog'\n")


def test_the_function_answers_as_the_command(run: Path) -> None:
    rows = [{"text": t, "label": x} for t, x in (line.split(",") for line in EXAMPLES.splitlines()[1:])]
    (found,) = qkv_ask(run, ["the fox"], rows, template="{text} is {label}; ")
    assert found["probabilities"] == pytest.approx(answer_of(run, "the fox", ["dog", "fox"]), rel=1e-5)
    form = "{text}{label} "  # so short that each of the examples fits the 16 positions
    letters = [{"text": text, "label": label} for text, label in ("ox", "dg", "ly", "qu")]
    few = [
        qkv_ask(run, ["f"], letters, options=["x", "g"], template=form, num_examples=1, seed=seed)
        for seed in (0, 0, 1, 2, 3)
    ]
    assert few[0] == few[1]
    assert any(few[0] != other for other in few[2:])
    options = [["fox", "dog"], ["the", "lazy", "dog"]]
    several = qkv_ask(run, ["the fox", "the dog"], rows, options=options, template=form)
    assert [list(answer["probabilities"]) for answer in several] == options
    with pytest.raises(UserError, match="options: 1 lists given for 2 inputs; give one for each, or one for all"):
        qkv_ask(run, ["the fox", "the dog"], rows, options=options[:1], template=form)
    (generated,) = qkv_ask(run, [{"text": "the dog"}], template="{text} is {label};")
    assert generated["probabilities"] is None
    with pytest.raises(UserError, match="example 0 has no 'label'; give each example a label"):
        qkv_ask(run, ["the fox"], [{"text": "a"}])
