"""Training from given vectors: rows matched by word, from a run or a text file; nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.running import CAUSAL, PAIR, VECTORS, recipe_of

from qkv.models.build import build
from qkv.runs.storage.load import load
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.registry import build_task
from qkv.training.loop import train
from qkv.training.vectors import start_vectors, words_of
from qkv.training.watch.events import Notice


def with_vectors(source: Path | str, folder: Path, tokenizer: str = "bpe(400)", **model: Any) -> Recipe:
    frontend = {"kind": "text", "vectors": str(source)}
    return recipe_of("next_token", {**CAUSAL, "frontend": frontend, **model}, folder, tokenizer)


def started(recipe: Recipe) -> tuple[Any, Any, list[str]]:
    """(the model as training would start with it, the tokenizer, the sentences)."""
    dataset = build_task(recipe.task).open(recipe)
    model = build(dataset.recipe.model, 1)
    return model, dataset.vocabulary.tokenizer, start_vectors(model, dataset.recipe.model, dataset.vocabulary)


def written(path: Path, vectors: dict[str, list[float]], header: bool = True) -> Path:
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in vectors.items()]
    path.write_text("\n".join([f"{len(vectors)} 16", *lines] if header else lines) + "\n")
    return path


def rows(model: Any, tokenizer: Any, word: str) -> list[list[float]]:
    return [model.frontend.table[i].tolist() for i, own in words_of(tokenizer).items() if own == word]


VECTORS_16 = {"the": [1.0] * 16, "cat": [2.0] * 16, "zebra": [3.0] * 16, "ran": [0.5] * 16}


@pytest.mark.parametrize("header", [True, False], ids=["word2vec", "glove"])
def test_rows_of_a_text_file_are_matched_by_word(header: bool, tmp_path: Path) -> None:
    recipe = with_vectors(written(tmp_path / "a.vec", VECTORS_16, header), tmp_path)
    model, tokenizer, (sentence,) = started(recipe)
    plain = build(model.spec, 1)
    assert rows(model, tokenizer, "cat") == [[2.0] * 16] * 2  # " cat" and "cat" are written alike
    assert {tuple(row) for row in rows(model, tokenizer, "The")} == {(1.0,) * 16}  # by its small letters
    named = [i for i, word in words_of(tokenizer).items() if word.lower() in VECTORS_16]
    others = [i for i in range(tokenizer.vocab_size) if i not in named]
    assert model.frontend.table[others].equal(plain.frontend.table[others])
    assert sentence.startswith(
        f"{len(named)} of {tokenizer.vocab_size} token embeddings are initialised with vectors from '"
    )


def test_rows_of_a_run_are_matched_by_word(tmp_path: Path) -> None:
    run = train(recipe_of("skip_gram", VECTORS, tmp_path, "word_list"), tmp_path / "words", on_event=lambda _: None)
    model, tokenizer, _ = started(with_vectors(tmp_path / "words", tmp_path))
    for word in ("cat", "sat", "house"):
        (own,) = run.tokenizer.encode(word)
        assert rows(model, tokenizer, word)[0] == run.model.frontend.table[own].tolist()


def test_an_encoder_has_vectors_of_its_own(tmp_path: Path) -> None:
    source = written(tmp_path / "a.vec", VECTORS_16)
    encoder = {**PAIR["encoder"], "frontend": {"kind": "text", "positions": "none", "vectors": str(source)}}
    model, tokenizer, sentences = started(recipe_of("denoising", {**PAIR, "encoder": encoder}, tmp_path, "bpe(400)"))
    cat = next(i for i, word in words_of(tokenizer).items() if word == "cat")
    assert model.encoder.frontend.table[cat].tolist() == [2.0] * 16
    assert model.frontend.table[cat].tolist() != [2.0] * 16
    assert len(sentences) == 1


def test_training_starts_with_them_and_a_run_is_read_without(tmp_path: Path) -> None:
    source = written(tmp_path / "a.vec", VECTORS_16)
    plain = with_vectors(source, tmp_path).to_dict()
    plain["training"] |= {"steps": 1, "optimizer": {"kind": "adamw", "lr": 1e-9, "weight_decay": 0.0}}
    notes: list[str] = []
    recipe = Recipe.parse(plain)
    run = train(recipe, tmp_path / "run", on_event=lambda e: notes.append(e.text) if isinstance(e, Notice) else None)
    assert any("token embeddings are initialised with vectors" in note for note in notes)
    torch.testing.assert_close(torch.tensor(rows(run.model, run.tokenizer, "cat")), torch.full((2, 16), 2.0))
    source.unlink()
    assert rows(load(tmp_path / "run").model, run.tokenizer, "cat") == rows(run.model, run.tokenizer, "cat")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"model\.frontend\.vectors: there is no file or run folder '.*'"),
        ("cat 1 2 3\n", r"the vectors in '.*' have 3 features, but the model's embeddings have 16; set model\.width=3"),
        ("zebra " + "1 " * 16, r"'.*' has no vector for any token of the model"),
        ("the 1 2\ncat 1 2 3\n", r"line 2 of .* has 3 numbers, and the lines before it have 2"),
        ("the 1 2\ncat 1 x\n", r"line 2 of .* is not a word followed by numbers"),
    ],
    ids=["missing", "width", "strangers", "ragged", "no numbers"],
)
def test_what_does_not_fit_is_a_sentence(content: str | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "a.vec"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=sentence):
        started(with_vectors(path, tmp_path))


def test_a_folder_without_weights_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"is not the folder of a trained run: it holds no model\.safetensors"):
        started(with_vectors(tmp_path / "empty", tmp_path))
