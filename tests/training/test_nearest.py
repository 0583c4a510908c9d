"""Captions of the nearest training rows: found by their definition, chosen by the validation split, kept by the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tasks.test_matching import write_pairs

import qkv
from qkv.models.nearest import Nearest
from qkv.models.wide import DEEP, WIDE
from qkv.runs.run import Run
from qkv.spec.errors import SpecError
from qkv.spec.models import wide as spec
from qkv.spec.recipe import Recipe


def test_the_text_is_that_of_the_greatest_cosine() -> None:
    rng = np.random.default_rng(1)
    features, unseen = rng.normal(size=(7, 5)), rng.normal(size=(4, 5))
    texts = ["one", "zwei – ü", "", "four", "five 5", "six", "seven"]
    path = Nearest(spec.Nearest(count=5).of_texts([*texts, "a row that cannot be read"]), 1)
    path.place(features, texts)
    mean, deviation = features.mean(0), features.std(0)
    found = []
    for row in (unseen - mean) / deviation:
        cosines = [
            float(row @ other) / float(np.linalg.norm(row) * np.linalg.norm(other))
            for other in (features - mean) / deviation
        ]
        found.append(texts[cosines.index(max(cosines))])
    assert path.nearest(unseen) == found


def recipe_of(table: Path, steps: int) -> Recipe:
    return Recipe.parse(
        {
            "data": {
                "source": str(table),
                "processor": "images",
                "tokenizer": {"kind": "wordpiece", "vocab_size": 60},
                "columns": {"image": "picture", "target": "words"},
            },
            "task": "captioning",
            "wide": "nearest",
            "model": {
                "width": 16,
                "num_layers": 1,
                "context_length": 12,
                "blocks": [{"branches": ["attention(2)", "cross_attention(2)", "feed_forward(32)"]}],
                "encoder": {"num_layers": 1, "frontend": "patches(patch=8)"},
            },
            "training": {"steps": steps, "batch_size": 8, "validation": {"every": steps}},
            "sample": {"max_new_tokens": 6, "temperature": 0.0},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    pytest.importorskip("sacrebleu")
    folder = tmp_path_factory.mktemp("nearest")
    return qkv.train(recipe_of(write_pairs(folder), 2), out=folder / "run")


def test_a_run_keeps_the_nearest_rows_if_they_are_better(run: Run) -> None:
    assert run.evaluation is not None
    assert run.wide is not None
    assert run.wide.reads(WIDE)
    assert not run.wide.reads(DEEP)
    validation = run.evaluation["splits"]["validation"]
    table = next(each for each in validation["sections"] if each["kind"] == "contestants")
    assert [row[0] for row in table["rows"]] == ["nearest neighbour", "attention"]
    assert "best validation" in table["note"]
    figures = validation["figures"]
    assert figures["cider"] == pytest.approx(figures["cider_of_nearest_neighbour"], rel=1e-6)


def test_a_run_writes_the_captions_that_it_knows(run: Run) -> None:
    again, pictures = qkv.load(run.folder), [str(run.folder.parent / f"{i}.png") for i in range(12)]
    answers = [each["answer"] for each in qkv.predict(again, pictures)]
    known = {line.partition(",")[2] for line in (run.folder.parent / "pairs.csv").read_text().split("\n")[1:]}
    assert set(answers) <= known
    assert answers == [each["answer"] for each in qkv.predict(run, pictures)]


def test_a_part_of_many_rows_is_kept_and_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.tasks.multimodal.baseline._MOST_ROWS", 12)
    table = write_pairs(tmp_path)
    lines = table.read_text().splitlines()
    lines[2::2] = [f"{line} with a longer text" for line in lines[2::2]]
    table.write_text("\n".join(lines) + "\n")
    for i in range(0, 72, 7):
        (tmp_path / f"{i}.png").write_bytes(b"no picture")
    path = qkv.train(recipe_of(table, 1), out=tmp_path / "run").wide
    assert isinstance(path, Nearest)
    assert len(path.vectors) == int(path.kept) == 12


def test_texts_without_an_image_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="'nearest' finds texts of images or other signals"):
        Recipe.parse({"data": {"source": "a.txt"}, "wide": "nearest"})
