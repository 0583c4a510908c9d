"""The recipe that a table of examples gets: it grows with the table, fits the time, and can be trained on."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from qkv.choosing import automatic_task as module
from qkv.choosing.automatic_task import automatic_task, name_of, wide_path
from qkv.choosing.signals import register
from qkv.choosing.signals.settings import MINUTES
from qkv.costs.measuring.machine import Machine
from qkv.data.records.model import Records
from qkv.spec.models.wide import Ngrams
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.registry import tasks
from qkv.tasks.task import Defaults

SLOW = Machine("a processor", {"fp32": 4e10}, 4.8e9, 6e-5)
FAST = Machine("ten of them", {"fp32": 4e12, "bf16": 8e12}, 4.8e11, 1e-6)
COLUMNS: dict[str, Callable[[str], dict[str, object]]] = {
    "classification": lambda text: {"text": text, "label": "1"},
    "multilabel": lambda text: {"text": text, "labels": ["a"]},
    "regression": lambda text: {"text": text, "value": 1.0},
    "token_classification": lambda text: {"words": text.split(), "tags": ["O"] * len(text.split())},
    "question_answering": lambda text: {"question": "Who?", "context": text, "answers": []},
    "translation": lambda text: {"source": text, "target": text},
    "summarization": lambda text: {"source": text, "target": text[:50]},
}


@pytest.fixture
def recipe_for(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recipe]:
    """The recipe of a table of so many rows of so many words, without the table."""

    def make(kind: str, rows: int, words: int = 20, machine: Machine = FAST) -> Recipe:
        row = COLUMNS[kind]("great " * words)
        found = Records("mine", {"train": [row] * rows}, {}, (), "", ())
        monkeypatch.setattr(register, "open_records", lambda *_: found)
        return automatic_task(kind, {"source": "folder/mine.csv"}, machine=machine)

    return make


def test_every_plan_is_tried() -> None:
    assert COLUMNS.keys() == {
        part.kind for part, made in tasks().items() if made.automatic is not None and part.__module__.startswith("qkv.")
    }


@pytest.mark.parametrize("kind", COLUMNS)
def test_more_examples_get_more_of_everything(recipe_for: Callable[..., Recipe], kind: str) -> None:
    found = [recipe_for(kind, rows) for rows in (20, 2000, 40_000)]
    assert [recipe.model.width for recipe in found] == sorted(recipe.model.width for recipe in found)
    sizes = [getattr(recipe.model.frontend.words, "buckets", recipe.data.tokenizer.num_ids) for recipe in found]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert {(recipe.name, recipe.task.kind) for recipe in found} == {("mine", kind)}
    assert all(recipe.training.validation.patience for recipe in found)
    assert {recipe.model.encoder is not None for recipe in found} == {kind in ("translation", "summarization")}


def test_the_budget_decides_the_steps_and_no_guess(recipe_for: Callable[..., Recipe]) -> None:
    slow, fast = (recipe_for("classification", 15_000, 60, machine).training for machine in (SLOW, FAST))
    assert slow.minutes == fast.minutes == MINUTES
    assert slow == fast.changed(precision=slow.precision)


def test_a_small_table_is_not_read_for_ever(recipe_for: Callable[..., Recipe]) -> None:
    recipe = recipe_for("classification", 1600)
    assert recipe.training.steps * recipe.training.batch_size <= 40 * 1600
    assert recipe_for("classification", 20).training.steps == 200


@pytest.mark.parametrize(
    ("words", "length", "windows"), [(4, 32, 1), (30, 128, 1), (200, 256, 3), (800, 256, 8), (9000, 256, 8)]
)
def test_nearly_every_text_fits_into_windows_up_to_a_limit(
    recipe_for: Callable[..., Recipe], words: int, length: int, windows: int
) -> None:
    recipe = recipe_for("classification", 50, words)
    assert (recipe.model.context_length, recipe.task.windows) == (length, windows)  # type: ignore[attr-defined]
    assert recipe.training.batch_size == max(4, min(16, round(4096 / (2 * words + 2))))


def test_the_wide_path_follows_the_texts_and_the_labels() -> None:
    def path(texts: list[str], labels: list[str]) -> Ngrams | None:
        rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        return wide_path(Records("mine", {"train": rows}, {}, (), "", ()), Defaults(("text",), target="label"))

    words, draw = [f"w{i}" for i in range(5000)], random.Random(0)
    english = [" ".join(draw.choices(words, k=20)) for _ in range(500)]
    proteins = ["".join(draw.choices("ACDEFGHIKLMNPQRSTVWY", k=300)) for _ in range(50)]
    two, many = ["a", "b"] * 250, [str(i % 400) for i in range(500)]
    assert path(english, two) == Ngrams(buckets=1 << 17, least=3)
    assert path(english, many) is None  # 400 labels times 43,000 n-grams
    assert path(english[:100], many[:100]) == Ngrams(buckets=1 << 15, least=3)
    assert path(proteins, two[:50]) == Ngrams(buckets=1 << 14, least=1)


def test_words_of_a_sentence_are_counted_not_its_characters(recipe_for: Callable[..., Recipe]) -> None:
    recipe = recipe_for("token_classification", 50, 30)
    assert (recipe.model.context_length, recipe.model.head.kind) == (64, "crf")
    assert recipe.description.startswith("50 examples, 16,384 word features, an encoder of 1 layer of width 64: chosen")


def test_what_is_said_of_the_data_and_overrides_hold(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("review,stars,other\n" + "".join(f"good film {i},5,x\nbad film {i},1,y\n" for i in range(20)))
    data = {"source": str(path), "columns": {"text": "review", "label": "other"}, "validation_fraction": 0.25}
    recipe = automatic_task("classification", data, ["training.steps=7"], machine=FAST)
    assert (recipe.data.columns, recipe.data.validation_fraction, recipe.training.steps) == (data["columns"], 0.25, 7)
    assert recipe.description.startswith("30 examples, 3 models in short heats beside n-grams: chosen for")
    alone = automatic_task("classification", data, ["model.norm=rms_norm"], machine=FAST)
    assert alone.description.startswith("30 examples, 512 ids (wordpiece), an encoder of 2 layers of width 64: chosen")
    whole = automatic_task("classification", data, machine=FAST)
    assert automatic_task("classification", data, quick=True, machine=FAST).training.steps == whole.training.steps // 10


def test_a_task_that_no_table_is_enough_for() -> None:
    with pytest.raises(
        UserError, match="cannot be trained on a table of examples; allowed: autoencoding, captioning, chat, c"
    ):
        automatic_task("next_token", {"source": "mine.csv"}, machine=FAST)


@pytest.mark.parametrize(
    ("source", "name"),
    [("mine.csv", "mine"), (os.path.join("a", "mine.jsonl.gz"), "mine"), ("a/x.de | a/x.en", "x"), ("sst2", "sst2")],
)
def test_a_run_is_named_after_its_data(source: str, name: str) -> None:
    assert name_of(source) == name


@pytest.mark.parametrize("kind", ["classification", "translation"])
def test_batches_shrink_to_the_memory(
    recipe_for: Callable[..., Recipe], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = recipe_for(kind, 20_000, 60)
    monkeypatch.setattr(module, "fits_memory", lambda needed: needed <= module._bytes(free) / 3)
    tight = recipe_for(kind, 20_000, 60)
    assert tight.model == free.model
    assert module._bytes(tight) <= module._bytes(free) / 3
    assert 1 <= tight.training.batch_size < free.training.batch_size


def test_texts_without_spaces_are_read_by_characters(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [("".join(draw.choices("ACDEFGHIKLMNPQRSTVWY", k=300)), draw.choice("ab")) for _ in range(60)]
    path = tmp_path / "proteins.csv"
    path.write_text("sequence,place\n" + "".join(f"{text},{label}\n" for text, label in rows))
    recipe = automatic_task("classification", {"source": str(path)}, machine=FAST)
    assert recipe.data.tokenizer.kind == "characters"
    assert recipe.model.context_length * recipe.task.windows >= 300  # type: ignore[attr-defined]
    assert not any("data.tokenizer" in changes for changes in recipe.candidates.values())
    alone = automatic_task("classification", {"source": str(path)}, ["model.norm=rms_norm"], machine=FAST)
    assert "characters, an encoder" in alone.description
