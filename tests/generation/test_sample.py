"""Texts drawn with the state, in batches and one by one, against the whole text through the model at each step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.generation.models import STACKS, VOCABULARY, model
from tests.generation.reads import shapes_read
from tests.generation.test_filters import chi_square_p
from tests.ops.clock import forget_choices

from qkv.generation import naive
from qkv.generation.context import first_seen, learned_reach
from qkv.generation.decode.sample import Sampling, generate, stream
from qkv.models.build import build
from qkv.ops.selection import choices
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.system.errors import UserError

PROMPTS = [[5, 1, 7, 2, 9, 4, 11, 3, 8], [6], [2, 2, 14]]
GREEDY = Generation(max_new_tokens=24, temperature=0)
DRAWN = Generation(max_new_tokens=24, temperature=0.9, top_p=0.95, seed=7)


@pytest.mark.parametrize("name", STACKS)
def test_tokens_with_state_are_those_of_whole_passes(name: str) -> None:
    m = model(name)
    assert generate(m, PROMPTS, GREEDY) == [naive.generate(m, p, GREEDY) for p in PROMPTS]
    seeds = [DRAWN.changed(seed=7 + row) for row in range(len(PROMPTS))]
    assert generate(m, PROMPTS, DRAWN) == [naive.generate(m, p, s) for p, s in zip(PROMPTS, seeds, strict=True)]


@pytest.mark.parametrize("name", STACKS)
def test_the_models_of_these_tests_do_not_repeat_one_token(name: str) -> None:
    tokens = generate(model(name), PROMPTS, DRAWN)
    assert len({token for row in tokens for token in row}) > VOCABULARY // 2


@pytest.mark.parametrize("name", STACKS)
def test_a_batch_is_its_rows_one_by_one(name: str) -> None:
    m = model(name)
    alone = [generate(m, [prompt], DRAWN.changed(seed=7 + row))[0] for row, prompt in enumerate(PROMPTS)]
    assert generate(m, PROMPTS, DRAWN) == alone


def test_rows_that_are_dropped_do_not_change_the_others() -> None:
    m = model("all")
    expected = generate(m, PROMPTS, DRAWN)
    sampling = Sampling(m, PROMPTS, DRAWN)
    for step in range(24):
        sampling.step()
        sampling.drop({0} if step == 3 else {2} if step == 10 else set())
    got = [text[len(prompt) :] for text, prompt in zip(sampling.texts.values(), PROMPTS, strict=True)]
    assert got == [expected[0][:4], expected[1], expected[2][:11]]
    assert sampling.running == []


def test_nothing_is_left_to_do_when_every_row_is_dropped() -> None:
    sampling = Sampling(model("gru"), PROMPTS, DRAWN)
    sampling.drop({1})
    sampling.step()
    sampling.drop({0, 1, 2})
    assert sampling.running == []
    assert sampling.step() == []


@pytest.mark.parametrize("name", ["rope", "window", "linear", "shift", "convolution", "gru"])
def test_unbounded_positions_go_past_the_context_length(name: str) -> None:
    m = model(name)
    assert m.spec.context_length < len(PROMPTS[0]) + 24
    for overflow in ("slide", "refuse"):
        assert generate(m, PROMPTS[:1], GREEDY.changed(overflow=overflow)) == [naive.generate(m, PROMPTS[0], GREEDY)]


@given(st.integers(1, 40), st.integers(1, 40))
def test_what_is_seen_of_a_text_is_its_end_and_at_least_half_a_context(length: int, limit: int) -> None:
    first = first_seen(length, limit)
    assert first == 0 if length <= limit else limit // 2 < length - first <= limit
    assert first_seen(length, None) == 0


@pytest.mark.parametrize("limit", [1, 2, 7, 8])
def test_a_full_context_slides(limit: int) -> None:
    m = model("learned", context_length=limit)
    assert generate(m, PROMPTS, GREEDY) == [naive.generate(m, p, GREEDY) for p in PROMPTS]


def test_sliding_does_not_ask_who_wrote_the_text() -> None:
    m = model("learned", context_length=8)
    whole = generate(m, PROMPTS[:1], GREEDY)[0]
    again = generate(m, [PROMPTS[0] + whole[:11]], GREEDY.changed(max_new_tokens=13))[0]
    assert again == whole[11:]


def test_sliding_rows_are_those_of_one_by_one() -> None:
    m = model("learned", context_length=8)
    alone = [generate(m, [prompt], DRAWN.changed(seed=7 + row))[0] for row, prompt in enumerate(PROMPTS)]
    assert generate(m, PROMPTS, DRAWN) == alone


def test_refusing_names_the_numbers_and_allows_the_last_position() -> None:
    m = model("learned", context_length=8)
    fits = Generation(max_new_tokens=6, temperature=0, overflow="refuse")
    assert generate(m, [[1, 2, 3]], fits) == [naive.generate(m, [1, 2, 3], fits)]
    with pytest.raises(
        UserError, match=r"prompt 2 of 2 has 4 tokens and needs 9 positions with 6 new ones, but the model has 8"
    ):
        generate(m, [[1], [1, 2, 3, 4]], fits)
    assert generate(m, [[1] * 20], fits.changed(max_new_tokens=0)) == [[]]


def test_one_forward_pass_reads_one_new_token_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model("all")
    read = shapes_read(m, monkeypatch)
    generate(m, PROMPTS, GREEDY.changed(max_new_tokens=5))
    assert read == [(3, 9)] + [(3, 1)] * 4


def test_seeds_reproduce_and_differ() -> None:
    m = model("rope")
    first, again, other = (generate(m, [[1]], DRAWN.changed(seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    unseeded = DRAWN.changed(seed=None)
    assert generate(m, [[1]], unseeded) != generate(m, [[1]], unseeded)


def test_drawn_tokens_follow_the_models_distribution() -> None:
    m, rows = model("gru"), 8000
    with torch.no_grad():
        chances = (m(torch.tensor([[4, 9]]))[0][0, -1] / 2.5).double().softmax(-1)
    drawn = generate(m, [[4, 9]] * rows, Generation(max_new_tokens=1, temperature=2.5, seed=0))
    counts = torch.tensor(drawn)[:, 0].bincount(minlength=VOCABULARY).double()
    usual = chances * rows >= 5
    folded = [torch.cat((x[usual], x[~usual].sum()[None])) for x in (counts, chances)]
    assert chi_square_p(folded[0][folded[1] * rows >= 5], folded[1][folded[1] * rows >= 5]) > 0.01


def test_the_repetition_penalty_sees_prompt_and_new_tokens_of_its_own_row() -> None:
    m = model("rope")
    settings = GREEDY.changed(max_new_tokens=12, repetition_penalty=1.8)
    expected = [naive.generate(m, prompt, settings) for prompt in PROMPTS]
    assert generate(m, PROMPTS, settings) == expected
    assert expected != generate(m, PROMPTS, GREEDY.changed(max_new_tokens=12))


def test_a_fixed_capacity_changes_nothing_until_it_is_full() -> None:
    m = model("all")
    assert generate(m, PROMPTS, GREEDY, capacity=9 + 23) == generate(m, PROMPTS, GREEDY)
    with pytest.raises(UserError, match="31 positions"):
        generate(m, PROMPTS, GREEDY, capacity=31)


def test_dropout_sleeps_and_the_model_is_left_as_it_was() -> None:
    spec = model("rope").spec.to_dict()
    spec["blocks"][0]["dropout"] = 0.5
    m = build(Model.parse(spec), seed=3).train()
    expected = generate(model("rope"), PROMPTS, GREEDY)
    assert generate(m, PROMPTS, GREEDY) == expected
    assert m.training
    m.blocks[1].eval()
    steps = stream(m, PROMPTS, GREEDY)
    next(steps)
    assert not m.training
    steps.close()  # type: ignore[attr-defined]
    assert (m.training, m.blocks[0].training, m.blocks[1].training) == (True, True, False)


def test_a_stream_gives_a_token_a_row_and_step_and_leaves_gradients_on() -> None:
    m = model("rope")
    steps = []
    for tokens in stream(m, PROMPTS, DRAWN):
        steps.append(tokens)
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    assert [list(row) for row in zip(*steps, strict=True)] == generate(m, PROMPTS, DRAWN)


def test_the_first_product_of_a_process_may_be_a_generated_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest linear map is found by timing, perhaps of a backward pass, which inference mode would forbid."""
    forget_choices(monkeypatch)
    blocks = [{"branches": ["attention(relative=alibi)", "feed_forward"]}]  # not among the steps of one native call
    spec = Model.parse({"width": 128, "frontend": {"kind": "text", "vocab_size": VOCABULARY}, "blocks": blocks})
    assert len(generate(build(spec), [[1]], GREEDY)[0]) == 24
    assert "linear" in {choice.op for choice in choices.all_choices()}


@pytest.mark.parametrize(
    ("prompts", "generation", "sentence"),
    [
        ([[]], {}, "the prompt has no tokens"),
        ([[1], []], {}, "prompt 2 of 2 has no tokens"),
        ([[VOCABULARY]], {}, r"has the token 23, which is outside the vocabulary \(0 to 22\)"),
        ([[-1]], {}, "has the token -1"),
        ([[1]], {"stop": ("a",)}, "stop strings"),
    ],
)
def test_what_cannot_be_continued_is_refused_in_a_sentence(
    prompts: list[list[int]], generation: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        generate(model("gru"), prompts, Generation(max_new_tokens=1, **generation))


def test_a_model_that_sees_later_positions_is_refused_by_the_path_of_the_branch() -> None:
    blocks = [{"branches": ["feed_forward", {"kind": "attention", "mask": "full"}]}]
    spec = Model.parse({"width": 16, "frontend": {"kind": "text", "vocab_size": 5}, "blocks": blocks})
    with pytest.raises(UserError, match=r"model\.blocks\.0\.branches\.1: this branch sees later positions"):
        generate(build(spec), [[1]])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error_and_not_a_token(temperature: float, value: float) -> None:
    m = build(model("gru").spec)
    with torch.no_grad():
        m.frontend.table[3, 0] = value
    with pytest.raises(UserError, match="not finite"):
        generate(m, [[3]], Generation(max_new_tokens=2, temperature=temperature))


def test_no_prompt_and_no_token_are_no_work() -> None:
    m = model("gru")
    assert generate(m, [], GREEDY) == []
    assert generate(m, PROMPTS, Generation(max_new_tokens=0)) == [[], [], []]


@pytest.mark.parametrize("name", STACKS)
def test_half_precision_generates_from_the_same_distribution(name: str) -> None:
    spec = model(name).spec
    half = build(spec, seed=3).eval().to(torch.bfloat16)
    assert all(0 <= token < VOCABULARY for row in generate(half, PROMPTS, DRAWN) for token in row)
    with torch.no_grad():
        exact, rounded = (m(torch.tensor(PROMPTS[:1]))[0][0, -1].float() for m in (model(name), half))
    assert (exact.softmax(-1) - rounded.softmax(-1)).abs().max() < 0.1


@pytest.mark.parametrize(
    ("branches", "reach"),
    [
        (["attention(2, relative=rope)"], 16),
        (["attention(2)"], None),
        (["attention(2, relative=alibi)"], None),
        (["attention(2, relative=rope, mask='causal & window(9)')"], None),
        (["attention(2, relative=rope, mask='causal & window(9, sinks=1)')"], 16),
        (["attention(2, relative=rope, mask='causal & window(17)')"], 16),
    ],
    ids=["rope", "none", "alibi", "a window within", "a window with sinks", "a window beyond"],
)
def test_distances_that_training_never_showed(branches: list[str], reach: int | None) -> None:
    model = Model.parse({"width": 16, "context_length": 16, "blocks": [{"branches": [*branches, "feed_forward(8)"]}]})
    assert learned_reach(model) == reach
