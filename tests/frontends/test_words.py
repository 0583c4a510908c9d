"""Words as sums of the vectors of their features."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.data.batching.padding import padded_tables
from qkv.data.features.word_features import PADDING, hashed_words, strings
from qkv.frontends.words import WordsFrontend
from qkv.layers.context import Context
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.errors import SpecError
from qkv.spec.frontends import HashedWords
from qkv.spec.model import Model, Stack
from qkv.spec.parts import Learned, NoPositions
from qkv.spec.processors import WordFeatures
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

WIDTH = 8
FEATURES = WordFeatures(buckets=1 << 14, longest=4, neighbours=1)
SENTENCES = [["The", "cat", "sat"], ["Un-4"]]


def built(**fields: Any) -> WordsFrontend:
    part = HashedWords(features=FEATURES, **fields)
    frontend = WordsFrontend(part, Stack(frontend=part, context_length=4), WIDTH)
    generator = torch.Generator().manual_seed(0)
    for parameter in frontend.parameters():
        parameter.data.normal_(generator=generator)
    return frontend.eval()


def signal() -> Signal:
    values, lengths = padded_tables([hashed_words(FEATURES)(words) for words in SENTENCES], PADDING)
    return Signal(values, lengths)


def context() -> Context:
    return Context(torch.arange(3)[None])


def test_a_word_is_the_sum_of_the_vectors_of_its_features_in_a_dictionary() -> None:
    frontend, given = built(positions=NoPositions()), signal()
    names = sorted({name for words in SENTENCES for features in strings(words, FEATURES) for name in features})
    hashed = hashed_words(FEATURES)
    table: dict[str, Tensor] = {}
    for words in SENTENCES:
        for features, buckets in zip(strings(words, FEATURES), hashed(words).tolist(), strict=True):
            table |= {name: frontend.features[bucket] for name, bucket in zip(features, buckets, strict=False)}
    assert list(sorted(table)) == names
    seen = frontend(given, context())
    for row, words in enumerate(SENTENCES):
        for place, features in enumerate(strings(words, FEATURES)):
            torch.testing.assert_close(seen[row, place], sum(table[name] for name in features))
    assert seen[1, 1:].eq(0).all()


def test_positions_are_added_and_padding_has_no_gradient() -> None:
    plain, placed = built(positions=NoPositions()), built(positions=Learned())
    placed.features.data = plain.features.data
    given = signal()
    assert placed.positions is not None
    expected = plain(given, context()) + placed.positions(torch.arange(3)[None], torch.float32)
    torch.testing.assert_close(placed(given, context()), expected)
    (grad,) = torch.autograd.grad(plain(given, context())[1, 1:].sum(), plain.features)
    assert grad.eq(0).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.long), r"features have the shape \(2, 3\); give B rows of N words"),
        (torch.zeros(2, 3, 0, dtype=torch.long), r"features have the shape \(2, 3, 0\)"),
        (torch.zeros(2, 3, 4), "features are float32, and they index buckets; give int64 or int32"),
        (torch.full((1, 1, 1), 1 << 14), r"the id 16384 is outside of the vocabulary; ids are -1 to 16383"),
    ],
)
def test_other_values_are_refused(values: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        built().embed(Signal(values))


def test_random_words_are_read() -> None:
    """They have as many features as a word of six letters, as measurements of cost assume."""
    spec = Model(width=WIDTH, frontend=HashedWords(features=FEATURES), head="tokens(3)", blocks=())  # type: ignore[arg-type]
    model = build(spec)
    given = model.frontend.random(2, 5, torch.Generator().manual_seed(0))
    assert given.values.shape == (2, 5, FEATURES.typical)
    assert FEATURES.typical == len(strings(["letter"], FEATURES)[0])
    assert model(given)[0].shape == (2, 5, 3)


@pytest.mark.parametrize("task", ["classification", "masked_tokens"])
def test_tasks_on_tokens_refuse_words(task: str) -> None:
    head = {"classification": "classification", "masked_tokens": "tokens"}[task]
    model = {"frontend": "words", "head": head, "blocks": [{"branches": ["feed_forward"]}]}
    with pytest.raises(SpecError, match=f"model.frontend: the task '{task}' reads tokens, not words; use 'text'"):
        Recipe.parse({"data": {"source": "x"}, "task": task, "model": model})
