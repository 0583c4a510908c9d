"""Span corruption and denoising: what is read and written, in one sequence and with an encoder, against the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.running import PAIR, PREFIX, TEXT, opened, recipe_of
from torch import Tensor

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.batching.rows import random
from qkv.layers.signal import Signal
from qkv.spec.data import Data
from qkv.spec.errors import SpecError
from qkv.system.errors import UserError
from qkv.tasks.objectives.denoise import SentencePermutation, TextInfilling, denoise
from qkv.tasks.pairs import restoration
from qkv.tasks.pairs.denoising import full_stops
from qkv.tasks.pairs.restoration import RestorationTask
from qkv.tasks.pairs.span_corruption import sentinels, spans_of
from qkv.tasks.task import Totals
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

MODELS = {"encoder": PAIR, "prefix": PREFIX}
TASKS = ("span_corruption", "denoising")


def read_and_written(batch: Batch, eos: int, bos: int) -> Iterator[tuple[list[int], list[int]]]:
    """Source and target of each row, without marks, after a check of how they are laid out."""
    for row in range(len(batch.input.values)):
        count = batch.input.values.shape[1] if batch.input.lengths is None else int(batch.input.lengths[row])
        ids, targets = batch.input.values[row, :count].tolist(), batch.targets[row, :count].tolist()
        if batch.source is None:
            start = int(batch.input.prefix[row]) - 1  # type: ignore[index]
            source = ids[:start]
            assert set(targets[:start]) <= {IGNORED}
        else:
            start, source = 0, batch.source.values[row, : batch.source.lengths[row]].tolist()  # type: ignore[index]
            assert source.pop() == eos
        assert ids[start:] == [bos, *targets[start:-1]]
        assert targets[-1] == eos
        yield source, targets[start:-1]


def windows(text: np.ndarray, length: int) -> set[tuple[int, ...]]:
    return {tuple(text[i : i + length].tolist()) for i in range(len(text) - length + 1)}


def specials(tokenizer: Tokenizer) -> tuple[int, int]:
    found = tokenizer.special("eos"), tokenizer.special("bos")
    assert found[0] is not None
    assert found[1] is not None
    return found


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_spans_put_back_are_the_text(model: dict[str, Any], tmp_path: Path) -> None:
    task, dataset, _ = opened(recipe_of("span_corruption(density=0.3, mean_length=2)", model, tmp_path))
    tokenizer, marks = dataset.vocabulary.tokenizer, sentinels(dataset.vocabulary.tokenizer)
    known = windows(dataset.corpus.train, task.window(dataset.recipe))  # type: ignore[attr-defined]
    for step in range(4):
        batch = dataset.batch(step)
        assert batch.input.lengths is None  # every row is full
        for source, target in read_and_written(batch, *specials(tokenizer)):  # type: ignore[arg-type]
            spans = spans_of(target, marks, len(marks))
            whole = [t for token in source for t in (spans[marks.index(token)] if token in marks else [token])]
            assert tuple(whole) in known
            assert sum(token in marks for token in source) == sum(token in marks for token in target) > 1


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", TASKS)
def test_a_window_is_the_longest_that_fits(name: str, model: dict[str, Any], tmp_path: Path) -> None:
    task, dataset, _ = opened(recipe_of(name, model, tmp_path))
    assert isinstance(task, RestorationTask)
    for length, fits in ((task.window(dataset.recipe), True), (task.window(dataset.recipe) + 1, False)):
        source, target = task.sizes(length)
        assert (max(source, target) <= 32 if "encoder" in model else source - 1 + target <= 32) == fits


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_whole_text_is_written_after_a_damaged_one(model: dict[str, Any], tmp_path: Path) -> None:
    task, dataset, _ = opened(recipe_of("denoising", model, tmp_path))
    tokenizer = dataset.vocabulary.tokenizer
    mask, length = tokenizer.special("mask"), task.window(dataset.recipe)  # type: ignore[attr-defined]
    assert mask is not None
    known = windows(dataset.corpus.train, length)  # type: ignore[attr-defined]
    noises, rng = (SentencePermutation(full_stops(tokenizer)), TextInfilling(mask, 0.3, 3.0)), random(1337, 2)
    for source, target in read_and_written(dataset.batch(2), *specials(tokenizer)):  # type: ignore[arg-type]
        assert tuple(target) in known
        assert source == denoise(np.array(target), rng, noises).tolist()[:length]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", TASKS)
def test_the_loss_is_that_of_writing_token_by_token(name: str, model: dict[str, Any], tmp_path: Path) -> None:
    task, dataset, module = opened(recipe_of(name, model, tmp_path))
    tokenizer, batch = dataset.vocabulary.tokenizer, dataset.batch(0)
    eos, bos = specials(tokenizer)
    nats, count = 0.0, 0
    for source, target in read_and_written(batch, eos, bos):  # type: ignore[arg-type]
        for place, token in enumerate([*target, eos]):
            before = [bos, *target[:place]]
            logits = _after(module, [*source, eos], before)
            nats, count = nats - logits.log_softmax(-1)[token].item(), count + 1
    assert batch.num_targets == count
    assert task.summed_loss(module, batch).item() == pytest.approx(nats, rel=1e-6)
    seen = Totals()
    seen.add(task.observe(module, batch))
    figures = task.figures(seen, dataset.scale())
    assert figures == pytest.approx({"loss": nats / count, "perplexity": np.exp(nats / count)}, rel=1e-6)


@torch.no_grad()
def _after(module: Any, source: list[int], before: list[int]) -> Tensor:
    """Logits of the next token after ``before``, alone in its batch."""
    if module.encoder is None:
        ids = torch.tensor([[*source[:-1], *before]])
        return module(Signal(ids, prefix=torch.tensor([len(source)])))[0][0, -1]
    return module(torch.tensor([before]), memory=module.encode(torch.tensor([source])))[0][0, -1]


@pytest.mark.parametrize(
    ("name", "answer"), [("span_corruption", "The dogs sat on the house."), ("denoising", "The dogs sat.")]
)
def test_what_was_written_is_put_into_the_text(
    name: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, dataset, module = opened(recipe_of(name, PAIR, tmp_path))
    tokenizer = dataset.vocabulary.tokenizer
    read: list[list[int]] = []

    def write(model: Any, vocabulary: Any, generation: Any, sources: list[np.ndarray]) -> Iterator[list[int]]:
        read.extend(source.tolist() for source in sources)
        marks = sentinels(tokenizer)
        spans = [marks[0], *tokenizer.encode(" dogs"), marks[1], *tokenizer.encode(" the house")] if marks else []
        return iter([spans or tokenizer.encode("The dogs sat.")])

    monkeypatch.setattr(restoration, "write_after", write)
    (found,) = task.predict(module, dataset.vocabulary, dataset.recipe, [{"text": "The <mask> sat on <mask>."}])
    gaps = sentinels(tokenizer)[:2] or [tokenizer.special("mask")] * 2
    pieces = [tokenizer.encode(piece) for piece in ("The", " sat on", ".")]
    assert read == [[*pieces[0], gaps[0], *pieces[1], gaps[1], *pieces[2], tokenizer.special("eos")]]
    assert found["answer"] == answer


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", TASKS)
def test_the_model_itself_writes(name: str, model: dict[str, Any], tmp_path: Path) -> None:
    # The most probable token each time, found by reading everything anew.
    task, dataset, module = opened(recipe_of(name, model, tmp_path))
    tokenizer = dataset.vocabulary.tokenizer
    eos, bos = specials(tokenizer)
    evaluation = task.evaluate(module, dataset, "validation", Totals(1.0, 1), dataset.recipe)
    (table,) = evaluation.sections
    source, _ = next(read_and_written(next(iter(dataset.rows("validation", 1))), eos, bos))  # type: ignore[arg-type]
    most, text = task.sizes(task.window(dataset.recipe))[1], []  # type: ignore[attr-defined]
    while len(text) < most:
        text.append(int(_after(module, [*source, eos], [bos, *text]).argmax()))
        if text[-1] == eos:
            break
    assert table["rows"][0][:2] == [tokenizer.decode(source), tokenizer.decode([t for t in text if t != eos])]


def test_more_gaps_than_the_model_has_sentinels_for_are_refused(tmp_path: Path) -> None:
    task, dataset, module = opened(recipe_of("span_corruption", PAIR, tmp_path))
    most = len(sentinels(dataset.vocabulary.tokenizer))
    with pytest.raises(UserError, match=f"the text has {most + 1} gaps, but the model can fill at most {most} at once"):
        task.predict(module, dataset.vocabulary, dataset.recipe, [{"text": "a <mask>" * (most + 1)}])
    with pytest.raises(UserError, match=r"tokens, and the model reads 31; give a shorter one"):
        task.predict(module, dataset.vocabulary, dataset.recipe, [{"text": "<mask> sat" + " on the mat" * 20}])


def test_a_context_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"model\.context_length: 2 positions are too few for a corrupted text and its target"
    ):
        opened(recipe_of("span_corruption", {**PREFIX, "context_length": 2}, tmp_path))


@pytest.mark.parametrize("kind", ["characters", "bpe(300)", "wordpiece(100)", "word_list"])
def test_full_stops_are_found_in_every_vocabulary(kind: str) -> None:
    tokenizer = train(Data.parse({"source": "x", "tokenizer": kind}).tokenizer, [TEXT])
    assert sorted({tokenizer.decode([index]).strip() for index in full_stops(tokenizer)}) == ["!", ".", "?"]


def test_spans_are_what_follows_each_sentinel() -> None:
    assert spans_of([7, 90, 1, 2, 92, 3, 90, 4], [90, 91, 92], 3) == [[1, 2, 4], [], [3]]
