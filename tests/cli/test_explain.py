"""``qkv explain``: equations in the terminal, as JSON and on a page; the influence of words for classifiers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    from qkv.cli.main import main

    assert main(["train", str(folder / "tiny.yaml"), "--out", str(folder / "explained"), "training.steps=1"]) == 0
    return folder / "explained"


def test_a_language_model_is_walked_through(qkv: Call, run: Path, tmp_path: Path) -> None:
    page = tmp_path / "steps.html"
    result = qkv("explain", run, "the quick", "--out", page)
    assert result.code == 0, result.err
    for text in (
        "x = E[id] + p[position]",
        "o = Σ a v",
        "h = φ(x W₁ + b₁)",
        "p = softmax(z)",
        "the largest difference",
    ):
        assert text in result.out
    assert "layer 0 · attention" in page.read_text()
    values = json.loads(qkv("explain", run, "the quick", "--json").out)
    assert values["tokens"][-1] == "k"
    assert len(values["answers"]) == 5


def test_refusals(qkv: Call, run: Path) -> None:
    assert "the text is empty" in qkv("explain", run, " ").err
    assert "position 99 given" in qkv("explain", run, "the", "--position", "99").err


def test_a_classifier_ends_with_the_influence_of_words(qkv: Call, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("text,label\n" + "a good film,yes\na bad film,no\n" * 12)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"task: classification\ndata: {{source: {table}, tokenizer: words}}\n"
        "model: {width: 8, context_length: 8, head: classification,"
        " blocks: [{branches: ['attention(1, mask=full)']}]}\n"
        "training: {steps: 1, batch_size: 2}\n"
    )
    assert qkv("train", recipe, "--out", tmp_path / "run").code == 0
    result = qkv("explain", tmp_path / "run", "a good film")
    assert result.code == 0, result.err
    assert "change of log-probability without it" in result.out.partition("p = softmax(z)")[2]
