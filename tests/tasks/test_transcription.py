"""Transcription by CTC: loss, impossible rows, search and error rates, against loops in float64."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.sounds import RATE, tune, write_tunes

import qkv
from qkv.data.features.token_ngrams import TokenNgrams
from qkv.models.build import build
from qkv.models.heads.head import build_head
from qkv.spec.errors import SpecError
from qkv.spec.heads import CTCHead
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.metrics.speech_metrics import error_rates, normalised, token_error
from qkv.tasks.registry import build_task
from qkv.tasks.sound.language_scores import read_language_model, text_scores
from qkv.tasks.sound.search import aligned, beam_search, greedy
from qkv.tasks.sound.transcription import frames_needed

BLANK = 3


def forward_algorithm(chances: np.ndarray, text: Sequence[int], blank: int) -> float:
    """-log p(text), by the forward variables of Graves et al. (2006), equations 5 to 8, over probabilities."""
    extended = [blank] + [token for each in text for token in (each, blank)]
    alpha = np.zeros(len(extended))
    alpha[0] = chances[0, blank]
    if len(extended) > 1:
        alpha[1] = chances[0, extended[1]]
    for row in chances[1:]:
        before, alpha = alpha, np.zeros(len(extended))
        for place, symbol in enumerate(extended):
            total = before[place] + (before[place - 1] if place else 0)
            if place > 1 and symbol != blank and symbol != extended[place - 2]:
                total += before[place - 2]
            alpha[place] = total * row[symbol]
    probability = alpha[-1] + (alpha[-2] if len(alpha) > 1 else 0)
    return -math.log(probability) if probability else math.inf


def merged(path: Sequence[int], blank: int) -> tuple[int, ...]:
    return tuple(token for token, _ in itertools.groupby(path) if token != blank)


def all_texts(chances: np.ndarray, blank: int) -> dict[tuple[int, ...], float]:
    """Probability of each text, by enumeration of the alignments."""
    texts = dict[tuple[int, ...], float]()
    for path in itertools.product(range(chances.shape[1]), repeat=len(chances)):
        text = merged(path, blank)
        texts[text] = texts.get(text, 0.0) + float(
            np.prod([row[token] for row, token in zip(chances, path, strict=True)])
        )
    return texts


def drawn(frames: int, classes: int = 4, seed: int = 0, sharp: float = 1.0) -> np.ndarray:
    logits = sharp * np.random.default_rng(seed).normal(size=(frames, classes))
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def test_forward_algorithm_sums_all_alignments() -> None:
    chances = drawn(5)
    for text, probability in all_texts(chances, BLANK).items():
        assert forward_algorithm(chances, text, BLANK) == pytest.approx(-math.log(probability))


def head(blank: int | None = BLANK) -> torch.nn.Module:
    return build_head(CTCHead(num_classes=4, blank=blank), 8, None).double()


def test_loss_is_that_of_the_forward_algorithm() -> None:
    chances = np.stack([drawn(7, seed=seed) for seed in range(4)])
    texts, lengths = [(0, 1), (2, 2, 1), (), (0, 0, 0)], [7, 6, 3, 5]
    targets = torch.full((4, 3), -1)
    for row, text in enumerate(texts):
        targets[row, : len(text)] = torch.tensor(text)
    found = head().loss_within(torch.from_numpy(np.log(chances)) + 3.0, torch.tensor(lengths), targets)
    rows = zip(chances, texts, lengths, strict=True)
    expected = sum(forward_algorithm(row[:length], text, BLANK) for row, text, length in rows)
    assert found.item() == pytest.approx(expected)


def test_texts_without_an_alignment_have_no_loss() -> None:
    logits = torch.from_numpy(np.log(drawn(4)))[None].requires_grad_()
    loss = head().loss(logits, torch.tensor([[1, 1, 1]]))  # needs two blanks: five positions
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0
    assert forward_algorithm(drawn(4), (1, 1, 1), BLANK) == math.inf
    assert frames_needed([1, 1, 1]) == 5
    assert frames_needed([1, 2, 1]) == 3
    assert frames_needed([]) == 0


def test_greedy_merges_neighbours_and_removes_blanks() -> None:
    path = [3, 0, 0, 3, 0, 1, 1, 3, 3, 2]
    chances = np.full((len(path), 4), 0.1)
    chances[np.arange(len(path)), path] = 0.7
    assert greedy(np.log(chances), BLANK).tokens == (0, 0, 1, 2)
    assert greedy(np.zeros((0, 4)), BLANK).tokens == ()


@pytest.mark.parametrize("seed", range(6))
def test_wide_beam_finds_the_most_probable_text(seed: int) -> None:
    chances = drawn(6, seed=seed, sharp=0.5)
    texts = all_texts(chances, BLANK)
    best = max(texts, key=lambda text: texts[text])
    found = beam_search(np.log(chances), BLANK, 5000)
    assert found[0].tokens == best
    assert {text: math.exp(score) for text, score in found} == pytest.approx(texts)


def test_language_model_and_bonus_enter_the_score() -> None:
    chances, language = drawn(4, seed=3), TokenNgrams.counted(2, 3, [[0, 1], [0, 1, 1], [2]])
    expected = {}
    for text, probability in all_texts(chances, BLANK).items():
        prior = sum(language.next_logits(text[:i])[token] for i, token in enumerate((*text, 3)))
        expected[text] = math.log(probability) + 0.7 * prior + 0.2 * len(text)
    found = beam_search(np.log(chances), BLANK, 5000, language.next_logits, 0.7, 0.2)
    assert {text: score for text, score in found} == pytest.approx(expected)
    assert found[0].score == max(expected.values())


def test_ngrams_are_interpolated_by_witten_and_bell() -> None:
    language = TokenNgrams.counted(2, 3, [[0, 1], [0, 2], [0, 1]])
    uniform = 1 / 4
    counts = {0: 3, 1: 2, 2: 1, 3: 3}  # token 3 ends a text
    empty = {token: (count + 4 * uniform) / (9 + 4) for token, count in counts.items()}
    after = {1: 2, 2: 1}
    expected = [(after.get(token, 0) + 2 * empty[token]) / (3 + 2) for token in range(4)]
    assert np.exp(language.next_logits((2, 0))) == pytest.approx(expected)
    assert np.exp(language.next_logits((1, 1, 1))).sum() == pytest.approx(1)
    assert np.exp(language.next_logits(()))[0] == pytest.approx((3 + empty[0]) / (3 + 1))
    copy = TokenNgrams.of_plain(language.to_plain())
    assert copy.next_logits((0,)).tolist() == language.next_logits((0,)).tolist()


def test_error_rates_are_over_all_words() -> None:
    truth, texts = ["One two, three", "Four"], ["one two three three", "five six"]
    rates = error_rates(truth, texts)
    # raw: One→one, two,→two, + three; Four→five, + six.   normalised: + three; four→five, + six
    assert rates["wer"] == pytest.approx(100 * 5 / 4)
    assert rates["wer_normalised"] == pytest.approx(100 * 3 / 4)
    assert (rates["substitutions"], rates["insertions"], rates["deletions"]) == pytest.approx((75, 50, 0))
    assert normalised('It\'s  two_three — "Four"!') == "it's two three four"
    assert math.isnan(error_rates([""], ["a b"])["wer"])


SHAPES = {"a": (1.0, 0.0), "b": (0.0, 1.0), "c": (-1.0, 0.5)}


def sung(text: str, seed: int, each: int = 8) -> list[list[float]]:
    """A series of two channels: each letter is a level of ``each`` steps, with a rest after it, in noise."""
    levels = [value for letter in text for value in [SHAPES[letter]] * (each - 2) + [(0.0, 0.0)] * 2]
    noise = np.random.default_rng(seed).normal(scale=0.1, size=(len(levels), 2))
    return (np.array(levels) + noise).round(3).tolist()


def table(folder: Path, texts: Sequence[str], name: str = "songs.jsonl", each: int = 8) -> Path:
    rows = [
        {"series": sung(text, seed, each), "transcript": text, "speaker": "xyz"[seed % 3]}
        for seed, text in enumerate(texts)
    ]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


def recipe_for(path: Path, steps: int = 4, **task: object) -> Recipe:
    blocks = [{"branches": ["attention(2, mask=full)", "feed_forward(32)"]}]
    frontend = {"kind": "series_patches", "patch": 4, "stride": 2, "channels": "mixed", "normalise": "none"}
    model = {"width": 16, "frontend": {**frontend, "pad_end": False}, "blocks": blocks, "head": "ctc"}
    training = {"steps": steps, "batch_size": 8, "optimizer": "adamw(lr=1e-2)", "validation": {"every": steps}}
    return Recipe.parse(
        {
            "data": {"source": str(path), "processor": "series", "batching": "length_buckets"},
            "model": model,
            "task": {"kind": "transcription", **task},
            "training": training,
        }
    )


TEXTS = ["".join(some) for some in itertools.product("abc", repeat=3)] * 3


def test_batches_losses_and_answers(tmp_path: Path) -> None:
    recipe = recipe_for(table(tmp_path, TEXTS))
    task = build_task(recipe.task, recipe.data)
    dataset = task.open(recipe)
    assert dataset.recipe.model.head == CTCHead(num_classes=5, blank=4)  # a, b, c, unknown, blank
    assert not any("alignment" in note for note in dataset.notes)
    model = build(dataset.recipe.model, 0)
    batch = next(iter(dataset.rows("validation")))
    logits = model(batch.input)[0].double().detach()
    chances = logits.softmax(-1).numpy()
    texts = [row[row >= 0].tolist() for row in batch.targets]
    expected = sum(forward_algorithm(*pair, 4) for pair in zip(chances, texts, strict=True))
    assert task.summed_loss(model, batch).item() == pytest.approx(expected, rel=1e-5)
    assert batch.num_targets == sum(map(len, texts))


def test_padding_of_a_batch_changes_nothing(tmp_path: Path) -> None:
    recipe = recipe_for(table(tmp_path, ["a", "abc", "cabba", "ab"] * 5))
    task = build_task(recipe.task, recipe.data)
    dataset = task.open(recipe)
    assert isinstance(dataset, ExampleDataset)
    model = build(dataset.recipe.model.changed(init_std=0.3), 0).eval()
    together = task.summed_loss(model, dataset.batch_of([0, 1, 2, 3])).item()
    apart = sum(task.summed_loss(model, dataset.batch_of([i])).item() for i in range(4))
    assert together == pytest.approx(apart, rel=1e-5)


def test_learns_and_tells_error_rates(tmp_path: Path) -> None:
    recipe = recipe_for(table(tmp_path, TEXTS), 120, search={"beams": 4, "ngram": 2})
    run = qkv.train(recipe, tmp_path / "run", on_event=lambda event: None)
    figures = next(iter(json.loads((tmp_path / "run" / "evaluation.json").read_text())["splits"].values()))["figures"]
    assert figures["wer"] < 20 < figures["wer_of_most_frequent"]
    assert {"cer", "wer_normalised", "cer_normalised", "substitutions", "insertions", "deletions"} <= figures.keys()
    answers = qkv.predict(qkv.load(tmp_path / "run"), [{"series": sung("abca", 99)}])
    assert answers[0]["answer"] == "abca"
    assert run.vocabulary.ngrams is not None
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Error rates by speaker" in page
    assert "Alignment of" in page


def test_impossible_rows_are_told_and_refused_if_all_are(tmp_path: Path) -> None:
    possible, short = recipe_for(table(tmp_path, ["ab", "ba", "ca"] * 6)), ["aaaaaa", "bbbbbb", "cccccc"] * 4
    task = build_task(possible.task, possible.data)
    wrong = recipe_for(table(tmp_path, short, "short.jsonl", 3))
    with pytest.raises(
        UserError, match="11 of 11 texts of the train split are too long for their signals: 'aaaaaa' needs 11"
    ):
        task.open(wrong)
    mixed = table(tmp_path, short[:1], "mixed.jsonl", 3)
    mixed.write_text(mixed.read_text() + (tmp_path / "songs.jsonl").read_text())
    notes = [note for note in task.open(recipe_for(mixed)).notes if "alignment" in note]
    assert len(notes) == 1
    assert "'aaaaaa' needs 11 positions of 8" in notes[0]


def test_text_is_refused_as_input() -> None:
    with pytest.raises(SpecError, match="the task 'transcription' reads a sound"):
        Recipe.parse({"data": "x.csv", "task": "transcription", "model": {"head": "ctc"}})
    with pytest.raises(SpecError, match="a language model needs several beams"):
        Recipe.parse({"data": "x.csv", "task": {"kind": "transcription", "search": {"ngram": 3}}})


def best_alignment(chances: np.ndarray, text: tuple[int, ...], blank: int) -> float:
    """Largest log-probability of an alignment of a text, by enumeration."""
    paths = (path for path in itertools.product(range(chances.shape[1]), repeat=len(chances)))
    return max(
        math.log(math.prod(float(row[token]) for row, token in zip(chances, path, strict=True)))
        for path in paths
        if merged(path, blank) == text
    )


@pytest.mark.parametrize("text", [(0,), (1, 1), (0, 2, 0)])
def test_alignment_is_the_most_probable_one(text: tuple[int, ...]) -> None:
    for seed in range(4):
        chances = drawn(6, seed=seed)
        places = aligned(np.log(chances), text, BLANK)
        assert places == sorted(places)
        forced = chances.copy()
        for place, token in zip(places, text, strict=True):
            forced[place, np.arange(4) != token] = 1e-30  # the best alignment has these tokens there
        assert best_alignment(forced, text, BLANK) == pytest.approx(best_alignment(chances, text, BLANK))
    assert aligned(np.log(drawn(3)), (1, 1, 1), BLANK) == [0, 1, 2]


def test_sounds_in_files_are_transcribed(tmp_path: Path) -> None:
    path = write_tunes(tmp_path, TEXTS)
    changes = ["training.steps=150", "training.validation.every=75", "model.width=32", "model.num_layers=1"]
    run = qkv.train(str(path), tmp_path / "run", changes, task="transcribe", on_event=lambda event: None)
    assert run.recipe.data.columns == {"sound": "file", "transcript": "text", "speaker": "speaker"}
    sound = tune("abcb", 5)
    answer = qkv.predict(run, [{"sound": (sound.samples, RATE)}])[0]["answer"]
    assert qkv.transcribe(run, (sound.samples, RATE), guard=False).text == answer
    assert token_error([list(map(ord, "abcb"))], [list(map(ord, answer))]) <= 50


def test_a_language_model_of_a_run_orders_texts(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("ab\nabb\nba\n" * 60)
    changes = ["training.steps=4", "training.minutes=null", "training.validation.every=4", "model.width=32"]
    run = qkv.train(str(tmp_path / "text.txt"), tmp_path / "lm", changes, on_event=lambda event: None)
    model = read_language_model(str(tmp_path / "lm"))
    ids = run.tokenizer.encode("\nab\n")
    logits = run.model.eval()(torch.tensor([ids]))[0][0].detach().double().log_softmax(-1)
    expected = sum(float(logits[i, token]) for i, token in enumerate(ids[1:]))
    assert text_scores(model, ["ab", "ba"])[0] == pytest.approx(expected, rel=1e-4)
    assert text_scores(model, [""])[0] < 0
    path = table(tmp_path, TEXTS)
    search = {"beams": 3, "language_model": str(tmp_path / "lm"), "weight": 2.0}
    task: Any = build_task(recipe_for(path, search=search).task, recipe_for(path).data)
    vocabulary = task.open(recipe_for(path)).vocabulary
    chances = np.log(drawn(4, 5, sharp=0.3))
    best = task.search(chances, 4, vocabulary)
    texts = beam_search(chances, 4, 3)
    words = [vocabulary.target.decode(list(text.tokens)).strip() for text in texts]
    totals = [text.score + 2 * score for text, score in zip(texts, text_scores(model, words), strict=True)]
    assert best.tokens == texts[int(np.argmax(totals))].tokens
    with pytest.raises(UserError, match=r"task\.search\.language_model: .* holds no trained run"):
        read_language_model(str(tmp_path))
