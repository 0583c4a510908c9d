"""Batches by step, held-out batches, digests, and sizes that the data decides."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.tables import dataset_of, recipe_for, rows_of, translating

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import Corpus, open_corpus
from qkv.data.vocabulary import Vocabulary
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import ExampleDataset, TextDataset

TASKS = ["classification", "regression", "token_classification", "question_answering", "translation"]
BATCHINGS = ["random_crops", "length_buckets", "token_buckets(tokens=90)"]


def opened(task: str, rows: list[dict[str, Any]] | None = None, **options: Any) -> ExampleDataset:
    make = (
        (lambda **given: translating(True, **given))
        if task == "translation"
        else (lambda **given: recipe_for(task, context_length=64, **given))
    )
    return dataset_of(make(**options), rows or rows_of(task, 11))[1]


def equal(a: Batch, b: Batch) -> bool:
    def plain(batch: Batch) -> Any:
        read = {
            name: {field.name: getattr(signal, field.name) for field in fields(signal)}
            for name, signal in batch.signals.items()
        }
        return {"read": read, "targets": batch.targets, "extras": dict(batch.extras), "count": batch.count}

    def alike(x: Any, y: Any) -> bool:
        if isinstance(x, dict):
            return x.keys() == y.keys() and all(alike(x[name], y[name]) for name in x)
        return torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y

    return alike(plain(a), plain(b))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_batch_is_a_function_of_seed_and_step(task: str, batching: str) -> None:
    data = {"batching": batching}
    first, second = opened(task, data=data), opened(task, data=data)
    steps = [7, 0, 3, 12, 3]
    assert all(equal(first.batch(step), second.batch(step)) for step in [*range(13), *steps])
    assert all(equal(opened(task, data=data).batch(step), first.batch(step)) for step in (12, 5))
    other = opened(task, data=data, training={"seed": 9})
    assert not all(equal(first.batch(step), other.batch(step)) for step in range(6))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("batching", BATCHINGS[1:])
def test_an_epoch_has_every_example_once(task: str, batching: str) -> None:
    dataset = opened(task, data={"batching": batching})
    wanted = Counter(_content(dataset, example.fields) for example in dataset.examples["train"])
    for epoch in range(2):
        seen: Counter[Any] = Counter()
        total = sum(wanted.values())
        step = epoch * _steps_of_an_epoch(dataset, total)
        while seen.total() < total:
            batch = dataset.batch(step)
            seen.update(_rows(batch))
            step += 1
        assert seen == wanted


def _steps_of_an_epoch(dataset: ExampleDataset, total: int) -> int:
    step = count = 0
    while count < total:
        count += len(dataset.batch(step).input.values)
        step += 1
    return step


def _content(dataset: ExampleDataset, parts: Any) -> Any:
    (row,) = _rows(dataset._collate([parts]))
    return row


def _rows(batch: Batch) -> list[Any]:
    lengths = (
        [batch.input.values.shape[1]] * len(batch.input.values)
        if batch.input.lengths is None
        else batch.input.lengths.tolist()
    )
    targets = [
        row[:n].tolist() if batch.targets.shape == batch.input.values.shape else row.tolist()
        for row, n in zip(batch.targets, lengths, strict=True)
    ]
    return [
        repr((ids[:n].tolist(), target)) for ids, n, target in zip(batch.input.values, lengths, targets, strict=True)
    ]


@pytest.mark.parametrize("task", TASKS)
def test_a_held_out_part_is_read_once_and_always_the_same(task: str) -> None:
    dataset = opened(task)
    batches = list(dataset.rows("validation"))
    wanted = Counter(_content(dataset, example.fields) for example in dataset.examples["validation"])
    assert Counter(row for batch in batches for row in _rows(batch)) == wanted
    assert all(equal(a, b) for a, b in zip(batches, dataset.rows("validation"), strict=True))
    sizes = [batch.input.values.shape[1] for batch in batches]
    assert task == "translation" or sizes == sorted(sizes)
    few = list(dataset.rows("validation", 2))
    assert sum(len(batch.input.values) for batch in few) == min(6, sum(wanted.values()))
    assert sum(batch.num_targets for batch in batches) == dataset.epoch_targets


CHANGES: dict[str, Callable[[Any], Any]] = {
    "label": lambda label: "none" if label == "animal" else "animal",
    "value": lambda value: value + 1,
    "words": lambda words: [*words[:-1], "slept" if words[-1] != "slept" else "ran"],
    "tags": lambda tags: ["O" if tags[0] != "O" else "B-place", *tags[1:]],
    "answers": lambda answers: [],
}


@pytest.mark.parametrize("task", TASKS)
def test_a_digest_changes_with_every_row_and_its_answer(task: str) -> None:
    rows = rows_of(task, 8)
    first = opened(task, rows)
    assert first.digest() == opened(task, copy.deepcopy(rows)).digest()
    for i, row in enumerate(rows):
        for name, value in row.items():
            change = CHANGES.get(name, lambda text: f"slept {text}")
            changed = [*rows[:i], {**row, name: change(value)}, *rows[i + 1 :]]
            assert opened(task, changed).digest() != first.digest(), (i, name)


def test_a_part_without_an_example_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"data\.source: the validation split of 'table' has no example that can be used"
    ):
        dataset_of(recipe_for("classification"), rows_of("classification", 5), [])


def test_a_split_that_is_not_there_is_named() -> None:
    dataset = opened("classification")
    assert dataset.splits == ("train", "validation")
    with pytest.raises(UserError, match=r"there is no split 'valdation'; did you mean 'validation'"):
        list(dataset.rows("valdation"))


def test_sizes_are_filled_in_and_too_small_ones_refused() -> None:
    dataset = opened("translation")
    model, size = dataset.recipe.model, dataset.vocabulary.target.vocab_size
    assert model.encoder is not None
    assert model.frontend.vocab_size == model.encoder.frontend.vocab_size == size
    big = {"kind": "text", "vocab_size": 500}
    assert opened("classification", frontend=big).recipe.model.frontend.vocab_size == 500
    with pytest.raises(
        SpecError,
        match=r"model\.frontend\.vocab_size: 5 ids are fewer than the \d+ of the tokenizer; leave the key out",
    ):
        opened("classification", frontend={"kind": "text", "vocab_size": 5})


def test_shared_vectors_need_a_shared_tokenizer() -> None:
    recipe = translating(True, data={"target_tokenizer": "characters"})
    assert recipe.model.encoder is not None
    shared = recipe.changed(model=recipe.model.changed(encoder=recipe.model.encoder.changed(share_embedding=True)))
    with pytest.raises(SpecError, match=r"model\.encoder\.share_embedding: source and target have separate tokenizers"):
        dataset_of(shared, rows_of("translation", 5))


def text_dataset(tmp_path: Path, change: Any = None, seed: int = 1) -> tuple[Corpus, TextDataset]:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat, and the dog ran. " * 40)
    recipe = Recipe.parse(
        {"data": str(path), "model": {"context_length": 8, "width": 8}, "training": {"batch_size": 4, "seed": seed}}
    )
    corpus = open_corpus(recipe.data)
    return corpus, TextDataset(recipe, corpus, Vocabulary(corpus.tokenizer, corpus.tokenizer), change)


def masked(batch: Batch, rng: np.random.Generator) -> Batch:
    return Batch.of(
        batch.input.values * torch.from_numpy(rng.integers(0, 2, batch.input.values.shape)), batch.input.values
    )


def test_a_running_text_is_changed_with_random_numbers_of_its_step(tmp_path: Path) -> None:
    _, plain = text_dataset(tmp_path)
    _, dataset = text_dataset(tmp_path, masked)
    _, again = text_dataset(tmp_path, masked)
    for step in (5, 0, 5):
        assert equal(dataset.batch(step), again.batch(step))
        assert torch.equal(dataset.batch(step).targets, plain.batch(step).input.values)
    assert not torch.equal(dataset.batch(0).input.values == 0, dataset.batch(1).input.values == 0)
    held_out = [list(m.rows("validation")) for m in (dataset, again, dataset)]
    assert all(equal(a, b) and equal(a, c) for a, b, c in zip(*held_out, strict=True))
    assert not torch.equal(held_out[0][0].input.values == 0, held_out[0][1].input.values == 0)


def test_a_running_text_knows_its_digest_and_its_scale(tmp_path: Path) -> None:
    corpus, dataset = text_dataset(tmp_path)
    assert dataset.digest() == text_dataset(tmp_path)[1].digest()
    assert dataset.epoch_targets == len(corpus.train)
    assert dataset.scale()[:2] == (1.0, 1.0)
    ids = corpus.splits["train"].ids.copy()
    ids[100] += 1
    changed = replace(corpus, splits={**corpus.splits, "train": replace(corpus.splits["train"], ids=ids)})
    other = TextDataset(dataset.recipe, changed, dataset.vocabulary)
    assert other.digest() != dataset.digest()
