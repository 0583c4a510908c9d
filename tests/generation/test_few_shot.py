"""Few-shot prompts: scores against whole texts through the model, templates, examples that do not fit."""

from __future__ import annotations

import math

import pytest
import torch
from tests.generation.models import model
from tests.generation.reads import shapes_read
from tests.generation.test_requests import letters
from tests.generation.test_text import system

from qkv.generation.decode.score import score_options, score_prompts
from qkv.generation.few_shot import FewShot, Template
from qkv.generation.text import generate_text
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

EXAMPLES = [
    {"text": "the cat sat", "label": "cat"},
    {"text": "the dog sat", "label": "dog"},
    {"text": "the mat", "label": "mat"},
]
INPUTS = [{"text": "the dog left"}, {"text": "the cat, too"}, {"text": "s"}] * 7
OPTIONS = ["cat", "dog", "mat."]
FORM = Template("{text}; {label}\n")


@torch.no_grad()
def log_probability(m: Transformer, tokenizer: Tokenizer, before: str, after: str) -> float:
    """log p of the tokens of ``after``, from one pass over the whole text in float64."""
    ids, start = tokenizer.encode(before + after), len(tokenizer.encode(before))
    logits = m(torch.tensor([ids]))[0][0].double()
    return sum(float(logits[i - 1, ids[i]] - logits[i - 1].exp().sum().log()) for i in range(start, len(ids)))


@pytest.mark.parametrize("by", ["sum", "token", "character"])
@pytest.mark.parametrize("scheme", ["characters", "bytes"])
def test_the_best_option_is_that_of_whole_texts(scheme: str, by: str) -> None:
    m, tokenizer = system(scheme)
    found = FewShot(m, tokenizer, EXAMPLES, FORM).choose(INPUTS, [OPTIONS] * len(INPUTS), by)  # type: ignore[arg-type]
    shots = "the cat sat; cat\nthe dog sat; dog\nthe mat; mat\n"
    for row, answer in zip(INPUTS, found, strict=True):
        sums = [log_probability(m, tokenizer, f"{shots}{row['text']};", f" {option}") for option in OPTIONS]
        sizes = {"sum": [1, 1, 1], "token": [4, 4, 5], "character": [3, 3, 4]}[by]
        weights = [math.exp(s / size) for s, size in zip(sums, sizes, strict=True)]
        expected = [weight / sum(weights) for weight in weights]
        assert answer.probabilities is not None
        assert list(answer.probabilities.values()) == pytest.approx(expected, rel=1e-4)
        assert answer.text == OPTIONS[expected.index(max(expected))]


def test_calibration_subtracts_the_scores_after_an_empty_input() -> None:
    m, tokenizer = system("bytes")
    prompt = FewShot(m, tokenizer, EXAMPLES, FORM)
    plain, shifted = (prompt.choose(INPUTS[:2], [OPTIONS] * 2, calibrate=flag) for flag in (False, True))
    (neutral,) = prompt.choose([{"text": "N/A"}], [OPTIONS])
    for before, after in zip(plain, shifted, strict=True):
        assert before.probabilities is not None
        assert neutral.probabilities is not None
        weights = {o: before.probabilities[o] / neutral.probabilities[o] for o in OPTIONS}
        assert after.probabilities == pytest.approx(
            {o: w / sum(weights.values()) for o, w in weights.items()}, rel=1e-5
        )


def test_options_may_differ_by_input() -> None:
    m, tokenizer = system("bytes")
    prompt = FewShot(m, tokenizer, EXAMPLES, FORM)
    several = [["cat", "dog"], ["mat", "the mat", "sat"]]
    both = prompt.choose(INPUTS[:2], several, calibrate=True)
    alone = [prompt.choose([row], [own], calibrate=True)[0] for row, own in zip(INPUTS, several, strict=False)]
    for found, expected in zip(both, alone, strict=True):
        assert found.text == expected.text
        assert found.probabilities == pytest.approx(expected.probabilities, rel=1e-5)


@pytest.mark.parametrize("name", ["rope", "learned", "window", "gru", "patches"])
def test_prompts_together_score_as_each_alone(name: str) -> None:
    """With a shared beginning, without one, and longer than the model's positions."""
    m = model(name)
    options = [[[1, 2], [3]], [[4, 5, 6]], [[7], [8, 9], [2, 2, 2]]]
    for beginning in ([5, 1, 7, 2], []):
        prompts = [[*beginning, 3], [*beginning, 9, 4], [*beginning, 11, 3, 8]]
        together = score_prompts(m, prompts, options)
        for prompt, own, scores in zip(prompts, options, together, strict=True):
            expected = [list(score) for score in score_options(m, prompt, own)]
            assert [list(score) for score in scores] == [pytest.approx(one, abs=1e-4) for one in expected]


def test_the_shared_beginning_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model("rope")
    read = shapes_read(m, monkeypatch)
    score_prompts(m, [[5, 1, 7, 2, 3], [5, 1, 7, 2, 9, 4]], [[[1], [2, 3]]] * 2)
    assert read == [(1, 4), (2, 2), (2, 1)]


def test_a_label_is_generated_up_to_what_follows_it() -> None:
    m, tokenizer = system("bytes")
    drawn = Generation(max_new_tokens=80, temperature=1.0, seed=5)
    whole = generate_text(m, tokenizer, "the cat sat; cat#\nthe dog;", drawn)
    assert "#" in whole
    prompt = FewShot(m, tokenizer, EXAMPLES[:1], Template("{text}; {label}#\n"))
    ending = FewShot(m, tokenizer, EXAMPLES[:1], Template("{text}; {label}#"))
    (longer,), (found,) = prompt.write([{"text": "the dog"}], drawn), ending.write([{"text": "\nthe dog"}], drawn)
    assert found.text == whole[: whole.index("#")].strip()
    assert longer.text == (whole[: whole.index("#\n")] if "#\n" in whole else whole).strip()
    assert found.probabilities is None


def test_examples_that_do_not_fit_are_dropped_from_the_first_on() -> None:
    m = model("learned")  # 64 positions
    examples = [{"text": "a" * 10, "label": "b"}, {"text": "c" * 20, "label": "d"}, {"text": "e" * 20, "label": "ff"}]
    form = Template("{text}a{label}b")  # 13, 23 and 24 tokens
    prompt = FewShot(m, letters(), examples, form)
    assert prompt.fitted([{"text": "g"}]).examples == examples[1:]  # 47 and 5 of 64
    assert prompt.fitted([{"text": "g"}], 20).examples == examples[2:]
    assert prompt.fitted([{"text": "g" * 60}]).examples == []
    assert FewShot(model("rope"), letters(), examples, form).fitted([{"text": "g" * 60}]).examples == examples


@pytest.mark.parametrize("text", ["{text}", "{label}", "{label} {text}", "{text} {label} {label}", "plain"])
def test_templates_without_a_field_and_then_one_label_are_refused(text: str) -> None:
    with pytest.raises(
        UserError, match=r"template: .* should have a field such as \{text\}, and after it \{label\} once"
    ):
        Template(text)


def test_a_missing_field_and_a_repeated_option_are_refused() -> None:
    m, tokenizer = system("bytes")
    prompt = FewShot(m, tokenizer, [], FORM)
    with pytest.raises(UserError, match="the template has the field 'text', but an input has only the fields question"):
        prompt.choose([{"question": "a"}], [["b"]])
    with pytest.raises(UserError, match="the option 'b' is given twice"):
        prompt.choose([{"text": "a"}], [["b", "b"]])
