"""Word vectors: objectives against loops over pairs, words seen, neighbours and analogies by numpy, and learning."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.running import VECTORS, opened, recipe_of

from qkv.models.build import build
from qkv.spec.errors import SpecError
from qkv.system.errors import UserError
from qkv.tasks.registry import build_task
from qkv.tasks.task import Totals
from qkv.tasks.text.analogies import GROUPS, Analogy, analogies
from qkv.tasks.text.word_vectors import Lexicon
from qkv.training.loop import train

WORDS = "word_list(30)"
KINDS = ("skip_gram", "cbow")


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_every_pair(kind: str, tmp_path: Path) -> None:
    task, dataset, model = opened(recipe_of(f"{kind}(window=3, negatives=4, threshold=0.05)", VECTORS, tmp_path, WORDS))
    batch = dataset.batch(0)
    v, u = model.frontend.table.detach().numpy(), model.head.weight.detach().numpy()  # type: ignore[operator, union-attr]
    nats, count = 0.0, 0
    rows = zip(
        batch.targets.tolist(),
        batch.input.values.tolist(),
        batch.extras["present"].tolist(),
        batch.extras["negatives"].tolist(),
        strict=True,
    )  # type: ignore[union-attr]
    for word, places, present, negatives in rows:
        near = [v[i] for i, there in zip(places, present, strict=True) if there]
        inner = near if kind == "skip_gram" else [np.mean(near, axis=0)]
        for x in inner:
            nats -= math.log(sigmoid(u[word] @ x)) + sum(math.log(sigmoid(-u[n] @ x)) for n in negatives if n != word)
            count += 1
    assert any(
        n == word
        for word, row in zip(batch.targets.tolist(), batch.extras["negatives"].tolist(), strict=True)
        for n in row
    )  # type: ignore[union-attr]
    assert batch.num_targets == count
    assert task.summed_loss(model, batch).item() == pytest.approx(nats, rel=1e-6)
    seen = Totals()
    with torch.no_grad():
        seen.add(task.observe(model, batch))
    assert task.figures(seen, dataset.scale()) == pytest.approx({"loss": nats / count}, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_formula(kind: str, tmp_path: Path) -> None:
    # Of -log σ(s) by s: σ(s) - 1;  of -log σ(-s): σ(s);  and s = u·x.
    task, dataset, model = opened(recipe_of(f"{kind}(window=2, negatives=3)", VECTORS, tmp_path, WORDS))
    batch, table, outer = dataset.batch(1), model.frontend.table, model.head.weight
    task.summed_loss(model, batch).backward()
    v, u = table.detach().numpy(), outer.detach().numpy()  # type: ignore[operator, union-attr]
    for_v, for_u = np.zeros_like(v), np.zeros_like(u)
    rows = zip(
        batch.targets.tolist(),
        batch.input.values.tolist(),
        batch.extras["present"].tolist(),
        batch.extras["negatives"].tolist(),
        strict=True,
    )  # type: ignore[attr-defined]
    for word, places, present, negatives in rows:
        near = [i for i, there in zip(places, present, strict=True) if there]
        for group in [[i] for i in near] if kind == "skip_gram" else [near]:
            x = np.mean([v[i] for i in group], axis=0)
            for other, right in [(word, 1), *((n, 0) for n in negatives if n != word)]:
                slope = sigmoid(u[other] @ x) - right
                for_u[other] += slope * x
                for i in group:
                    for_v[i] += slope * u[other] / len(group)
    np.testing.assert_allclose(table.grad.numpy(), for_v, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
    np.testing.assert_allclose(outer.grad.numpy(), for_u, rtol=1e-4, atol=1e-5)  # type: ignore[operator, union-attr]


def test_unknown_words_are_neither_seen_nor_drawn_and_rows_do_not_meet(tmp_path: Path) -> None:
    _, dataset, _ = opened(recipe_of("skip_gram(window=4, threshold=null)", VECTORS, tmp_path, "word_list(8)"))
    unknown = dataset.vocabulary.tokenizer.unknown_id
    plain = dataset._batches.batch(2).input.values  # type: ignore[attr-defined]
    assert (plain == unknown).any()
    kept = [[word for word in row if word != unknown] for row in plain.tolist()]
    near = {(a, b) for row in kept for i, a in enumerate(row) for b in (*row[max(0, i - 4) : i], *row[i + 1 : i + 5])}
    batch = dataset.batch(2)
    pairs = {
        (w, b)
        for w, row, there in zip(
            batch.targets.tolist(),
            batch.input.values.tolist(),  # type: ignore[union-attr]
            batch.extras["present"].tolist(),
            strict=True,
        )
        for b, t in zip(row, there, strict=True)
        if t
    }
    assert pairs <= near
    assert batch.targets.tolist() == [word for row in kept for word in row]
    assert not (batch.extras["negatives"] == unknown).any()


@pytest.mark.parametrize("kind", KINDS)
def test_words_with_the_same_neighbours_come_to_lie_together(kind: str, tmp_path: Path) -> None:
    # Ten words, two kinds: words of one kind stand between words of that kind alone.
    rng = np.random.default_rng(0)
    kinds = (["anna", "berta", "clara", "dora", "emma"], ["stone", "sand", "clay", "chalk", "slate"])
    (tmp_path / "words.txt").write_text(" ".join(" ".join(rng.choice(kinds[i % 2], 40)) for i in range(80)))
    recipe = recipe_of(f"{kind}(window=2, threshold=null)", {**VECTORS, "context_length": 64}, tmp_path)
    run = train(_longer(recipe, tmp_path / "words.txt"), tmp_path / "run", on_event=lambda _: None)
    lexicon = Lexicon.of(run.model, run.tokenizer)
    for own in kinds:
        for word in own:
            assert set(lexicon.near(word)[:4]) == set(own) - {word}


def _longer(recipe: Any, path: Path) -> Any:
    plain = recipe.to_dict()
    plain["data"] = {"source": str(path), "tokenizer": "word_list"}
    plain["training"] |= {"steps": 60, "batch_size": 8, "optimizer": {"kind": "adamw", "lr": 0.05, "weight_decay": 0.0}}
    return type(recipe).parse(plain)


def lexicon_of(words: list[str], vectors: Any) -> Lexicon:
    table = torch.nn.functional.normalize(torch.tensor(vectors, dtype=torch.float32), dim=1)
    return Lexicon(words, table, {word: i for i, word in enumerate(words)})


def test_neighbours_are_nearest_by_cosine() -> None:
    rng = np.random.default_rng(0)
    words, vectors = [f"w{i}" for i in range(30)], rng.normal(size=(30, 5)) * rng.uniform(0.1, 9, (30, 1))
    lexicon = lexicon_of(words, vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = [words[i] for i in np.argsort(-(unit @ unit[4])) if i != 4]
    assert lexicon.near("w4") == order[:6]
    sums = unit @ (unit[1] - unit[2] + unit[3])
    assert [i for i, _ in lexicon.nearest([1, 2, 3], [1, -1, 1])] == [
        i for i in np.argsort(-sums) if i not in (1, 2, 3)
    ][:6]


def test_analogies_are_answered_by_the_sum() -> None:
    # A plane in which "woman" is one step to the right of "man", and one pair is out of place.
    places = {"man": (1, 0), "woman": (1, 1), "king": (3, 0), "queen": (3, 1), "father": (2, -3), "mother": (-9, 1)}
    lexicon = lexicon_of(list(places), [[x, y, 4.0] for x, y in places.values()])
    asked, right = lexicon.analogies()
    assert len(asked) == 6
    answers = {(q.a, q.c): answer for q, answer in zip(asked, right, strict=True)}
    assert answers["man", "king"]
    assert answers["king", "man"]
    assert not answers["man", "father"]


def test_the_questions_are_pairs_of_pairs() -> None:
    assert len(GROUPS) > 10
    assert all(len(pair.split()) == 2 for text in GROUPS.values() for pair in text.split(", "))
    every = analogies()
    assert Analogy("woman", "man", "woman", "king", "queen") in every
    assert len(set(every)) == len(every)
    assert all(len({*analogy[1:]}) == 4 for analogy in every)
    assert all(text == text.lower() for text in GROUPS.values())


def test_a_sum_of_words_is_asked_for_and_unknown_words_are_named(tmp_path: Path) -> None:
    task, dataset, model = opened(recipe_of("cbow", VECTORS, tmp_path, WORDS))
    lexicon = Lexicon.of(model, dataset.vocabulary.tokenizer)
    numbers = [lexicon.number(word) for word in ("king", "cat", "house")]
    (found,) = task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": "King - cat + house"}])
    assert [entry["word"] for entry in found["nearest"]] == [
        lexicon.words[i] for i, _ in lexicon.nearest(numbers, [1, -1, 1])
    ]
    with pytest.raises(UserError, match=r"the word 'kong' has no vector; did you mean 'king'"):
        task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": "kong"}])
    with pytest.raises(UserError, match="'- ' names no word"):
        task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": "- "}])


def test_the_evaluation_shows_words_and_counts_analogies(tmp_path: Path) -> None:
    task, dataset, model = opened(recipe_of("skip_gram", VECTORS, tmp_path, WORDS))
    evaluation = task.evaluate(model, dataset, "validation", Totals(3.0, 2), dataset.recipe)
    (neighbours,) = evaluation.sections
    assert evaluation.figures == {"loss": 1.5, "analogies": 0}
    assert {"king", "house"} <= {row[0] for row in neighbours["rows"]}
    assert task.sample(model, dataset, dataset.recipe)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"blocks": [{}]},
            r"model\.blocks: the task 'cbow' trains word vectors without blocks; give model\.blocks=\[\]",
        ),
        (
            {"head": "language_model"},
            r"model\.head\.tied: the task 'cbow' has a separate table of output vectors; give false",
        ),
    ],
    ids=["blocks", "tied"],
)
def test_a_model_with_more_or_less_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=sentence):
        recipe_of("cbow", {**VECTORS, **change}, tmp_path)


def test_a_model_without_blocks_is_a_bag_of_vectors() -> None:
    recipe = recipe_of(
        "recall(distances=[3])",
        {
            "blocks": [],
            "norm": "none",
            "frontend": {"kind": "text", "positions": "none"},
            "head": "classification(pooling=mean)",
        },
    )
    dataset = build_task(recipe.task).open(recipe)
    model = build(dataset.recipe.model, 0)
    ids = dataset.batch(0).input.values
    shuffled = ids[:, torch.randperm(ids.shape[1])]
    torch.testing.assert_close(model(ids)[0], model(shuffled)[0])
    mean = model.frontend.table[ids].mean(1)
    torch.testing.assert_close(model(ids)[0], model.head.output(mean))  # type: ignore[operator, union-attr]
