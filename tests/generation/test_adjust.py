"""Changes of logits by the tokens that a row has written, against loops over the equation, and ends by tokens."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.generation.models import model
from tests.serving.models import characters, text_run

from qkv.generation.decode.sample import generate, stream
from qkv.generation.decode.speculate import Speculator
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.generation.text import generate_text
from qkv.models.transformer import Transformer
from qkv.spec.errors import SpecError
from qkv.spec.generation import Generation, Speculation
from qkv.system.errors import UserError

PROMPT = [3, 1, 4, 1, 5]


def greedy(m: Transformer, generation: Generation) -> list[int]:
    """Greedy tokens after ``PROMPT`` by the equation, one forward pass over the whole text for each."""
    text, own = list(PROMPT), generation
    for place in range(own.max_new_tokens):
        with torch.no_grad():
            logits = m(torch.tensor([text]))[0][0, -1].double().tolist()
        counts = Counter(text[len(PROMPT) :])
        for token in range(len(logits)):
            logits[token] += dict(own.logit_bias).get(token, 0.0)
            logits[token] -= own.presence_penalty * (counts[token] > 0) + own.frequency_penalty * counts[token]
            if token in own.stop_token_ids and place < own.min_tokens:
                logits[token] = -math.inf
        best = max(range(len(logits)), key=logits.__getitem__)
        if best in own.stop_token_ids:
            break
        text.append(best)
    return text[len(PROMPT) :]


@cache
def plain(m: Transformer) -> list[int]:
    return greedy(m, Generation(max_new_tokens=24, temperature=0.0))


def settings(m: Transformer) -> list[dict[str, object]]:
    """Settings each of which changes the greedy text of a model."""
    tokens = plain(m)
    first = tokens[0]
    return [
        {"presence_penalty": 3.0},
        {"frequency_penalty": 1.5},
        {"frequency_penalty": -0.5, "presence_penalty": 2.0},
        {"logit_bias": {first: -30.0}},
        {"logit_bias": {str(first): -1.0, "2": 40.0}, "frequency_penalty": 7.0},
        {"stop_token_ids": [tokens[9]]},
        {"stop_token_ids": [tokens[2], first], "min_tokens": 6},
    ]


@pytest.mark.parametrize("name", ["rope", "gru", "window"])
@pytest.mark.parametrize("which", range(7))
def test_tokens_are_those_of_the_equation(name: str, which: int) -> None:
    m = model(name).eval()
    generation = Generation.parse({"max_new_tokens": 24, "temperature": 0.0, **settings(m)[which]})
    expected = greedy(m, generation)
    assert expected != plain(m)
    assert generate(m, [PROMPT], generation) == [expected]
    lookup = Speculator(Speculation(num_tokens=4, adaptive=False))
    assert generate(m, [PROMPT], generation, speculation=lookup) == [expected]
    queue = RequestQueue(m, None, max_batch=3)
    numbers = [queue.submit(Request(PROMPT, each)) for each in (generation, generation.changed(seed=3))]
    pieces = [piece for _ in range(60) for piece in queue.step()]
    for number in numbers:
        assert [token for piece in pieces if piece.number == number for token in piece.tokens] == expected
    ends = {piece.finished for piece in pieces if piece.finished}
    assert ends == {"stop" if len(expected) < 24 else "length"}


def test_rows_of_one_batch_keep_their_own_settings() -> None:
    m = model("rope").eval()
    several = [Generation.parse({"max_new_tokens": 24, "temperature": 0.0, **each}) for each in settings(m)]
    queue = RequestQueue(m, None)
    numbers = [queue.submit(Request(PROMPT, each)) for each in several]
    pieces = [piece for _ in range(60) for piece in queue.step()]
    found = [[token for piece in pieces if piece.number == n for token in piece.tokens] for n in numbers]
    assert found == [greedy(m, each) for each in several]


def test_drawn_tokens_avoid_what_is_biased_away() -> None:
    m = model("rope").eval()
    banned = {index: -1e4 for index in range(0, 23, 2)}
    found = generate(m, [PROMPT] * 4, Generation.parse({"max_new_tokens": 30, "seed": 1, "logit_bias": banned}))
    assert all(token not in banned for row in found for token in row)
    assert any(
        token in banned for row in generate(m, [PROMPT] * 4, Generation(max_new_tokens=30, seed=1)) for token in row
    )


def test_several_rows_end_where_their_own_token_ends_them() -> None:
    m = model("rope").eval()
    first, second = generate(m, [PROMPT, [7, 2]], Generation(max_new_tokens=24, temperature=0.0))
    generation = Generation(max_new_tokens=24, temperature=0.0, stop_token_ids=(first[5],))
    cut = [row[: row.index(first[5])] if first[5] in row else row for row in (first, second)]
    assert generate(m, [PROMPT, [7, 2]], generation) == cut
    with pytest.raises(UserError, match="stop_token_ids: texts of several prompts would end"):
        next(stream(m, [PROMPT, [7, 2]], generation))


def test_a_stop_string_does_not_end_a_text_that_is_too_short(tmp_path: Path) -> None:
    run = text_run(tmp_path, tokenizer=characters())

    def written(**options: object) -> str:
        generation = Generation.parse({"max_new_tokens": 30, "temperature": 0.0, **options})
        return generate_text(run.model, run.tokenizer, "the", generation)

    whole = written()
    stop = whole[2:4]
    assert written(stop=[stop]) == whole[: whole.index(stop)]
    later = written(stop=[stop], min_tokens=12)
    assert whole.startswith(later)
    assert len(later) >= 12
    pushed = {"stop": ["<eos>"], "logit_bias": {run.tokenizer.special("eos"): 100.0}}
    assert written(**pushed) == ""
    short = written(**pushed, min_tokens=5)
    assert (len(short), "<eos>" in short) == (5, False)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"logit_bias": {"a": 1.0}}, "logit_bias: .* allowed: numbers by token id"),
        ({"logit_bias": [1, 2]}, "logit_bias: .* allowed: numbers by token id"),
        ({"logit_bias": {1: "x"}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: math.inf}}, "logit_bias"),
        ({"min_tokens": 9, "max_new_tokens": 8}, "min_tokens: 9 given, but a text has at most max_new_tokens = 8"),
        ({"num_beams": 2, "presence_penalty": 1.0}, "presence_penalty: 1.0 given, but beam search"),
    ],
)
def test_one_sentence_for_wrong_settings(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Generation.parse(options)


@pytest.mark.parametrize("options", [{"logit_bias": {40_000: 1.0}}, {"stop_token_ids": [40_000]}])
def test_a_token_outside_the_vocabulary_is_named(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="the token 40000 is outside the vocabulary"):
        generate(model("rope"), [PROMPT], Generation.parse(options))


def test_biases_are_stored_and_read_again() -> None:
    generation = Generation.parse({"logit_bias": {"7": 1.5, 3: -2}})
    assert generation.logit_bias == ((3, -2.0), (7, 1.5))
    assert Generation.parse(generation.to_dict()) == Generation.parse(generation.essential()) == generation
