"""What the tasks on tables share: cutting with a note, padding, and opening a table that lies in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.running import BYTE_PAIRS, PAIR, SEES_ALL, VECTORS, opened, recipe_of
from tests.tasks.tables import dataset_of, model_of, recipe_for, rows_of, translating, write_table

from qkv.data.batching.padding import lengths_or_none, padded
from qkv.data.corpora.corpus import TRAIN
from qkv.data.vocabulary import Vocabulary
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.example_task import Truncation, text_in, trained
from qkv.tasks.registry import build_task

TASKS = ["classification", "regression", "token_classification", "question_answering", "translation", "summarization"]


def some_recipe(task: str, source: Path | str = "table.jsonl") -> Recipe:
    if task in ("translation", "summarization"):
        return translating(True, task, source=source)
    return recipe_for(task, source, context_length=64)


@given(st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(0, 9), max_size=9))
def test_what_is_cut_is_counted(first: list[int], second: list[int]) -> None:
    cut = Truncation({"text": 3, "other": 5})
    for ids in (first, second, np.array(first, np.uint8)):
        found = cut(ids, "text")
        assert found.dtype == np.int64
        assert found.tolist() == list(ids)[:3]
    cut(second, "other")
    long = [len(ids) for ids in (first, second, first) if len(ids) > 3]
    wanted = (
        [
            f"{len(long)} of 4 examples were truncated: their text is longer than the 3 tokens that fit "
            f"(the longest has {max(long)})"
        ]
        if long
        else []
    )
    if len(second) > 5:
        wanted.append(
            "1 of 4 examples were truncated: their other is longer than the 5 tokens that fit (the longest has "
            f"{len(second)})"
        )
    assert cut.notes(4) == wanted


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=5), st.sampled_from([0, -100]))
def test_padding_stands_on_the_right(rows: list[list[int]], filler: int) -> None:
    ids, lengths = padded([np.array(row, np.int64) for row in rows], filler)
    longest = max(1, *map(len, rows)) if len(rows) > 1 else max(1, len(rows[0]))
    assert ids.tolist() == [row + [filler] * (longest - len(row)) for row in rows]
    assert lengths.tolist() == list(map(len, rows))
    kept = lengths_or_none(ids, lengths)
    assert (kept is None) == (len({*map(len, rows), longest}) == 1)
    assert ids.dtype == lengths.dtype == torch.int64
    counts, _ = padded([np.array(row, np.float32) for row in rows], filler, np.float32)
    assert (counts.dtype, counts.tolist()) == (torch.float32, ids.tolist())


def test_a_trained_tokenizer_has_its_special_tokens_once() -> None:
    spec = Recipe.parse({"data": "x"}).data.tokenizer
    tokenizer = trained(spec, ["ab", "bc"], ("cls", "sep"))
    marks = {tokenizer.special("cls"), tokenizer.special("sep")}
    assert len(marks) == 2
    assert not marks & set(tokenizer.encode("abc<cls>"))
    assert trained(spec, ["ab", "bc"]).vocab_size == tokenizer.vocab_size - 2


def test_what_is_no_text_is_refused() -> None:
    assert text_in({"text": "a"}, "text") == "a"
    with pytest.raises(UserError, match=r"question: \['a'\] is not a text"):
        text_in({"question": ["a"]}, "question")


@pytest.mark.parametrize("task", TASKS)
def test_a_table_in_a_file_is_the_table_in_memory(task: str, tmp_path: Path) -> None:
    rows, held_out = rows_of(task, 12), rows_of(task, 5, seed=1)
    recipe = some_recipe(task, write_table(tmp_path / "train.jsonl", rows))
    validation = write_table(tmp_path / "validation.jsonl", held_out)
    recipe = recipe.changed(data=recipe.data.changed(validation=str(validation)))
    dataset = build_task(recipe.task).open(recipe)
    _, wanted = dataset_of(some_recipe(task), rows, held_out)
    assert isinstance(dataset, ExampleDataset)
    assert dataset.digest() == wanted.digest()
    assert dataset.recipe.changed(data=wanted.recipe.data) == wanted.recipe
    assert dataset.vocabulary.digest() == wanted.vocabulary.digest()


@pytest.mark.parametrize("task", TASKS)
def test_a_vocabulary_that_was_kept_is_used_again(task: str, tmp_path: Path) -> None:
    recipe = some_recipe(task, write_table(tmp_path / "train.jsonl", rows_of(task, 12)))
    first = build_task(recipe.task).open(recipe)
    first.vocabulary.save(tmp_path)
    again = build_task(first.recipe.task).open(first.recipe, Vocabulary.load(tmp_path))
    assert again.digest() == first.digest()
    assert again.recipe == first.recipe
    assert len(list(again.rows(TRAIN))) == len(list(first.rows(TRAIN)))
    assert any("held out" in note for note in first.notes)


ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "sorting": ("sorting(length=3, high=4)", {**SEES_ALL, "head": "tokens"}),
    "subleq": ("subleq(bits=2)", {**SEES_ALL, "head": "tokens"}),
    "recall": ("recall(distances=[1, 2])", {"head": "classification(pooling=last)"}),
    "associative_recall": ("associative_recall(sizes=[2])", {"head": "tokens"}),
    "copying": ("copying(sizes=[2])", {"head": "tokens"}),
    "masked_tokens": ("masked_tokens", SEES_ALL),
    "permutation": ("permutation", SEES_ALL),
    "span_corruption": ("span_corruption", PAIR),
    "denoising": ("denoising", PAIR),
    "skip_gram": ("skip_gram", VECTORS),
}


GENERATED = ("sorting", "subleq", "recall", "associative_recall", "copying")
"""Tasks that generate their own data."""


@pytest.mark.parametrize("name", ASKED)
def test_every_task_asks_for_a_text(name: str, tmp_path: Path) -> None:
    task, model = ASKED[name]
    words = "word_list(60, min_frequency=1)" if name == "skip_gram" else BYTE_PAIRS
    recipe = recipe_of(task, model, None if name in GENERATED else tmp_path, words)
    made, dataset, model_made = opened(recipe)
    with pytest.raises(UserError, match=r"text: \['a'\] is not a text"):
        made.predict(model_made, dataset.vocabulary, dataset.recipe, [{"text": ["a"]}])


@pytest.mark.parametrize("task", ["translation", "summarization", "classification", "regression", "question_answering"])
def test_every_task_of_a_table_asks_for_a_text(task: str) -> None:
    made, dataset = dataset_of(some_recipe(task), rows_of(task, 12))
    row = {name: 5 for name in made.asks}
    with pytest.raises(UserError, match=f"{made.asks[0]}: 5 is not a text"):
        made.predict(model_of(dataset), dataset.vocabulary, dataset.recipe, [row])
