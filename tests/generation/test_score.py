"""Scores of given texts against one full pass over prompt and option."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.generation.models import STACKS, VOCABULARY, model
from tests.generation.reads import shapes_read
from tests.generation.test_text import SCHEMES, system

from qkv.generation.decode import score
from qkv.generation.decode.score import joined_ids, score_options, score_texts, score_tokens
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.model import Model
from qkv.spec.tokenizers import BPE
from qkv.system.errors import UserError
from qkv.tokenizers.train import train

PROMPT = [5, 1, 7, 2, 9]
OPTIONS = [[4, 11, 3], [6], [2, 2, 14, 8, 8, 1], [6, 6], [22]]


@torch.no_grad()
def full_pass(m: Transformer, prompt: list[int], option: list[int]) -> float:
    """log p of the option, from the logits of the whole text, in float64."""
    chances = m(torch.tensor([prompt + option[:-1]]))[0][0].double().log_softmax(-1)
    return sum(float(chances[len(prompt) - 1 + i, token]) for i, token in enumerate(option))


@pytest.mark.parametrize("name", STACKS)
def test_scores_are_those_of_a_full_pass(name: str) -> None:
    m = model(name)
    for found, option in zip(score_options(m, PROMPT, OPTIONS), OPTIONS, strict=True):
        assert found.sum == pytest.approx(full_pass(m, PROMPT, option), abs=1e-4)
        assert found.mean == pytest.approx(found.sum / len(option))


@pytest.mark.parametrize("chunk", [1, 3, 256])
@pytest.mark.parametrize("name", STACKS)
def test_scores_of_all_tokens_are_those_of_a_full_pass(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    m, tokens = model(name), [5, 1, 7, 2, 9, 4, 4]
    monkeypatch.setattr(score, "_CHUNK", chunk)
    found = score_tokens(m, tokens, 2)
    with torch.no_grad():
        chances = m(torch.tensor([tokens]))[0][0].double().log_softmax(-1)
    assert [each.log_probability for each in found] == pytest.approx(
        [float(chances[i, token]) for i, token in enumerate(tokens[1:])], abs=1e-4
    )
    for each, line in zip(found, chances, strict=False):
        assert [index for index, _ in each.alternatives] == line.topk(2).indices.tolist()
    assert score_tokens(m, [3]) == []


def test_a_text_beyond_the_positions_has_no_scores() -> None:
    m = model("learned", context_length=8)
    assert len(score_tokens(m, [1] * 9)) == 8
    with pytest.raises(UserError, match="the text has 10 tokens, and the model has 8 positions"):
        score_tokens(m, [1] * 10)


def test_all_options_of_two_tokens_hold_all_probability() -> None:
    options = [[first, second] for first in range(VOCABULARY) for second in range(VOCABULARY)]
    assert math.fsum(math.exp(score.sum) for score in score_options(model("rope"), PROMPT, options)) == pytest.approx(
        1.0, abs=1e-5
    )


@pytest.mark.parametrize("options", [[[6], [22], [0]], [[6]]])
def test_options_of_one_token_need_the_prompt_alone(options: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    m = model("gru")
    read = shapes_read(m, monkeypatch)
    got = score_options(m, PROMPT, options)
    assert read == [(1, 5)]
    assert [s.sum for s in got] == pytest.approx([full_pass(m, PROMPT, option) for option in options], abs=1e-4)


def test_the_prompt_is_read_once_and_the_options_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model("all")
    read = shapes_read(m, monkeypatch)
    score_options(m, PROMPT, OPTIONS)
    assert read == [(1, 5), (3, 5)]


def test_a_prompt_that_does_not_fit_is_cut_alike_for_all_options_with_a_warning() -> None:
    m = model("learned", context_length=8)
    assert [s.sum for s in score_options(m, PROMPT[:3], OPTIONS)] == pytest.approx(
        [full_pass(m, PROMPT[:3], o) for o in OPTIONS], abs=1e-4
    )
    sentence = (
        "the prompt has 5 tokens, the longest option 6, and the model has 8 positions; "
        "the first 2 prompt tokens are dropped"
    )
    with pytest.warns(UserWarning, match=sentence):
        got = score_options(m, PROMPT, OPTIONS)
    assert [s.sum for s in got] == pytest.approx([full_pass(m, PROMPT[2:], o) for o in OPTIONS], abs=1e-4)
    with pytest.raises(
        UserError, match="the longest option has 9 tokens, which do not fit the model's 8 positions after a prompt"
    ):
        score_options(m, PROMPT, [[1], [2] * 9])


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ([], [[1]], "the prompt has no tokens"),
        ([1], [], "there is no option to choose from"),
        ([1], [[1], []], "option 2 of 2 has no tokens"),
        ([1], [[1], [2, VOCABULARY]], r"option 2 of 2 has the token 23, which is outside the vocabulary \(0 to 22\)"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_a_sentence(
    prompt: list[int], options: list[list[int]], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        score_options(model("gru"), prompt, options)


def test_dropout_sleeps_and_the_model_is_left_as_it_was() -> None:
    spec = model("rope").spec.to_dict()
    spec["blocks"][0]["dropout"] = 0.5
    m = build(Model.parse(spec), seed=3).train()
    assert score_options(m, PROMPT, OPTIONS) == score_options(model("rope"), PROMPT, OPTIONS)
    assert m.training


def test_logits_that_are_not_finite_are_an_error() -> None:
    m = build(model("gru").spec)
    with torch.no_grad():
        m.frontend.table[3, 0] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        score_options(m, [3], [[1]])


TEXTS = [" sat", " left the mat", "s"]


@pytest.mark.parametrize("by", ["sum", "token", "character"])
@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "words"])
def test_texts_are_rated_by_a_softmax_of_their_scores(scheme: str, by: Any) -> None:
    m, tokenizer = system(scheme)
    choices = score_texts(m, tokenizer, "the cat", TEXTS, by)
    before, after = joined_ids(tokenizer, "the cat", TEXTS)
    totals = [full_pass(m, before, ids) for ids in after]
    size = {"sum": [1, 1, 1], "token": list(map(len, after)), "character": list(map(len, TEXTS))}[by]
    scores = torch.tensor([total / n for total, n in zip(totals, size, strict=True)], dtype=torch.float64)
    assert [c.text for c in choices] == TEXTS
    assert [c.log_probability for c in choices] == pytest.approx(totals, abs=1e-4)
    assert [c.score for c in choices] == pytest.approx(scores.tolist(), abs=1e-4)
    assert [c.probability for c in choices] == pytest.approx(scores.softmax(-1).tolist(), abs=1e-4)
    assert [c.tokens for c in choices] == list(map(len, after))


def test_the_measure_decides_which_option_wins() -> None:
    winners = set()
    for by in ("sum", "character"):
        choices = score_texts(*system("characters"), "the cat", TEXTS, by)  # type: ignore[arg-type]
        winners.add(max(choices, key=lambda c: c.probability).text)
    assert len(winners) == 2


def test_prompt_and_option_are_made_into_tokens_together() -> None:
    tokenizer = train(BPE(vocab_size=280), ["is it? yes no " * 40])
    joined = tokenizer.encode("it? yes")
    before, after = joined_ids(tokenizer, "it? ", ["yes", "no"])
    assert tokenizer.encode("it? ") != joined[: len(tokenizer.encode("it? "))], (
        "the space belongs to the prompt here and to the word there"
    )
    assert [before + ids for ids in after] == [joined, tokenizer.encode("it? no")]
    assert all(after)
    assert joined_ids(tokenizer, "", ["yes"]) == (tokenizer.encode("\n"), [tokenizer.encode("yes")])
    assert joined_ids(tokenizer, "y", ["es", "y"]) == (
        tokenizer.encode("y"),
        [tokenizer.encode("es"), tokenizer.encode("y")],
    )


@pytest.mark.parametrize(
    ("options", "by", "sentence"),
    [
        (["a", "b", "a"], "sum", "the option 'a' is given twice"),
        (["a", ""], "sum", "option 2 of 2 has no tokens"),
        (["a", "aX"], "sum", "the option 'aX' has 'X', which is not in the tokenizer's vocabulary"),
        (["a"], "tokens", "options cannot be scored by 'tokens'; did you mean 'token'?"),
    ],
)
def test_texts_that_are_no_options_are_refused(options: list[str], by: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        score_texts(*system("characters"), "the cat", options, by)
