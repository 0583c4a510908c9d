"""Beam search against exhaustive search, another library's, and reading the whole text anew at each step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.generation.models import STACKS, VOCABULARY, model
from tests.generation.reads import shapes_read
from tests.models.test_published import VOCABULARY as PUBLISHED
from tests.models.test_published import pair
from transformers import GenerationConfig

from qkv.generation import engine
from qkv.generation.context import first_seen
from qkv.generation.decode.beam import BeamSearch, Hypothesis, beam_search
from qkv.generation.decode.sample import generate
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.errors import SpecError
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.system.errors import UserError

PROMPTS = [[5, 1, 7, 2, 9, 4, 11, 3, 8], [6], [2, 2, 14]]
BEAMS = Generation(max_new_tokens=12, num_beams=4, num_return=4)


@torch.no_grad()
def log_probability(m: Transformer, prompt: list[int], tokens: list[int], limit: int | None = None) -> float:
    """Every token from a pass of its own over the whole text, or what of it is seen, summed in float64."""
    total = 0.0
    for i, token in enumerate(tokens):
        text = prompt + tokens[:i]
        logits = m(torch.tensor([text[first_seen(len(text), limit) :]]))[0][0, -1]
        total += float(logits.double().log_softmax(-1)[token])
    return total


def assert_same(got: list[Hypothesis], expected: list[Hypothesis], tolerance: float = 1e-4) -> None:
    assert [h.tokens for h in got] == [h.tokens for h in expected]
    for one, other in zip(got, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=tolerance)
        assert one.log_probability == pytest.approx(other.log_probability, abs=tolerance)


@cache
def tiny(vocabulary: int) -> Transformer:
    spec = {
        "width": 8,
        "init_std": 0.4,
        "frontend": {"kind": "text", "vocab_size": vocabulary, "positions": "none"},
        "head": "language_model(tied=false)",
    }
    return build(
        Model.parse({**spec, "num_layers": 1, "blocks": [{"branches": ["gru", "feed_forward"]}]}), seed=2
    ).eval()


@torch.no_grad()
def exhaustive(m: Transformer, prompt: list[int], length: int, penalty: float, end: int | None) -> list[Hypothesis]:
    """Every text of at most ``length`` tokens that ends with ``end`` or is of full length, the best first."""
    known, found = m.frontend.table.shape[0], []
    for tokens in itertools.product(range(known), repeat=length):
        cut = tokens.index(end) + 1 if end in tokens else length
        if all(token == 0 for token in tokens[cut:]):  # one of all the ways to fill it up
            found.append(list(tokens[:cut]))
    logits = m(torch.tensor([prompt + text + [0] * (length - len(text)) for text in found]))[0].double().log_softmax(-1)
    hypotheses = []
    for text, row in zip(found, logits, strict=True):
        total = sum(float(row[len(prompt) - 1 + i, token]) for i, token in enumerate(text))
        hypotheses.append(Hypothesis(text, total / len(text) ** penalty, total))
    return sorted(hypotheses, key=lambda h: -h.score)


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.0, 2.0, -1.0])
@pytest.mark.parametrize(("vocabulary", "length", "end"), [(3, 5, 1), (4, 4, 0), (5, 3, 4), (4, 3, None), (3, 1, 2)])
def test_enough_beams_find_what_exhaustive_search_finds(
    vocabulary: int, length: int, end: int | None, penalty: float
) -> None:
    m, prompts = tiny(vocabulary), [[1, 2], [0], [2, 2, 1, 0]]
    expected = [exhaustive(m, prompt, length, penalty, end) for prompt in prompts]
    count = len(expected[0])
    generation = Generation(max_new_tokens=length, num_beams=count, num_return=count, length_penalty=penalty)
    for got, best in zip(beam_search(m, prompts, generation, end), expected, strict=True):
        assert len(got) == count
        assert_same(got, best)
    orders = {tuple(tuple(h.tokens) for h in row) for row in expected}
    assert len(orders) == len(prompts) or length == 1, "prompts that all want the same texts show little"


def test_length_penalties_of_these_tests_change_the_order() -> None:
    orders = {tuple(tuple(h.tokens) for h in exhaustive(tiny(3), [1, 2], 5, penalty, 1)) for penalty in (0.0, 1.0, 2.0)}
    assert len(orders) == 3


def test_only_what_exists_is_returned() -> None:
    got = beam_search(tiny(3), [[1]], Generation(max_new_tokens=1, num_beams=8, num_return=8))
    assert sorted(h.tokens for h in got[0]) == [[0], [1], [2]]


@cache
def published() -> tuple[Any, Transformer]:
    return pair("GPT-2")


def theirs(prompts: list[list[int]], generation: Generation, end: int | None) -> list[list[Hypothesis]]:
    """What transformers finds for the same prompts, padded on the left there; its padding after an end is cut."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    config = GenerationConfig(
        num_beams=generation.num_beams,
        num_return_sequences=generation.num_return,
        length_penalty=generation.length_penalty,
        early_stopping=generation.early_stopping,
        max_new_tokens=generation.max_new_tokens,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=PUBLISHED - 1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    out = published()[0].generate(ids, attention_mask=mask, generation_config=config)
    found = []
    for tokens, score in zip(out.sequences[:, longest:].tolist(), out.sequences_scores.tolist(), strict=True):
        tokens = tokens[: tokens.index(end) + 1] if end in tokens else tokens
        found.append(Hypothesis(tokens, score, score * len(tokens) ** generation.length_penalty))
    return [found[i : i + generation.num_return] for i in range(0, len(found), generation.num_return)]


def published_prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(PUBLISHED - 1, (length,), generator=generator).tolist() for length in (9, 1, 4, 17)]


@cache
def common_end() -> int:
    """A token that the published model writes now and then, so that texts of many lengths end."""
    drawn = generate(published()[1], published_prompts() * 8, Generation(max_new_tokens=20, seed=0))
    return int(torch.tensor(drawn).flatten().bincount(minlength=PUBLISHED)[: PUBLISHED - 1].argmax())


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.5, -0.5])
@pytest.mark.parametrize(("num_beams", "num_return", "ends"), [(2, 1, True), (4, 3, True), (7, 7, True), (3, 2, False)])
def test_texts_and_scores_are_those_of_transformers(
    num_beams: int, num_return: int, ends: bool, penalty: float, early_stopping: bool
) -> None:
    end = common_end() if ends else None
    generation = Generation(
        max_new_tokens=20,
        num_beams=num_beams,
        num_return=num_return,
        length_penalty=penalty,
        early_stopping=early_stopping,
    )
    expected = theirs(published_prompts(), generation, end)
    for got, wanted in zip(beam_search(published()[1], published_prompts(), generation, end), expected, strict=True):
        assert_same(got, wanted, tolerance=2e-3 * max(1.0, 20.0**-penalty))


def test_texts_compared_with_transformers_end_at_many_lengths() -> None:
    found = beam_search(
        published()[1], published_prompts(), Generation(max_new_tokens=20, num_beams=7, num_return=7), common_end()
    )
    assert len({len(h.tokens) for row in found for h in row}) > 4


@torch.no_grad()
def without_state(
    m: Callable[[torch.Tensor], Any],
    prompt: list[int],
    generation: Generation,
    ends: Callable[[list[int]], bool],
    limit: int | None = None,
    forced: int = 0,
) -> list[Hypothesis]:
    """The search again, in its simplest form: every beam's whole text, or what of it is seen, is read at each step.

    ``forced``: tokens of the prompt that count in lengths.
    """
    width, penalty = generation.num_beams, generation.length_penalty
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Hypothesis] = []
    for n in range(1, generation.max_new_tokens + 1):
        grown = []
        for total, new in beams:
            text = prompt + new
            logits = m(torch.tensor([text[first_seen(len(text), limit) :]]))[0][0, -1].double().log_softmax(-1)
            grown += [(total + float(value), [*new, token]) for token, value in enumerate(logits)]
        grown.sort(key=lambda pair: -pair[0])
        ended = [(total, new) for total, new in grown[:width] if ends(new) or n == generation.max_new_tokens]
        finished += [Hypothesis(new, total / (n + forced) ** penalty, total) for total, new in ended]
        finished = sorted(finished, key=lambda h: -h.score)[:width]
        beams = [(total, new) for total, new in grown[: 2 * width] if not ends(new)][:width]
        if not beams or (
            len(finished) == width
            and (generation.early_stopping or beams[0][0] / (n + forced) ** penalty <= finished[-1].score)
        ):
            break
    return finished[: generation.num_return]


@pytest.mark.parametrize("name", STACKS)
def test_beams_with_state_are_those_that_read_the_whole_text_each_step(name: str) -> None:
    m, end = model(name), ending(name)
    for generation in (BEAMS, BEAMS.changed(early_stopping=True, length_penalty=0.5, num_beams=3, num_return=2)):
        for got, prompt in zip(beam_search(m, PROMPTS, generation, end), PROMPTS, strict=True):
            assert_same(got, without_state(m, prompt, generation, lambda new: new[-1] == end))


@cache
def ending(name: str) -> int:
    """The last token of the middle of a free text, so that some beams end early and others do not."""
    return beam_search(model(name), PROMPTS[:1], BEAMS)[0][0].tokens[5]


@pytest.mark.parametrize("name", STACKS)
def test_scores_are_those_of_a_full_pass(name: str) -> None:
    m = model(name)
    for got, prompt in zip(
        beam_search(m, PROMPTS, BEAMS.changed(length_penalty=0.7), ending(name)), PROMPTS, strict=True
    ):
        assert got == sorted(got, key=lambda h: -h.score)
        for h in got:
            assert h.log_probability == pytest.approx(log_probability(m, prompt, h.tokens), abs=1e-4)
            assert h.score == pytest.approx(h.log_probability / len(h.tokens) ** 0.7)


@pytest.mark.parametrize("name", STACKS)
def test_a_batch_is_its_rows_one_by_one_though_they_end_at_different_times(name: str) -> None:
    m, generation = model(name), BEAMS.changed(early_stopping=True, num_beams=2, num_return=2, max_new_tokens=20)
    alone = [beam_search(m, [prompt], generation, ending(name))[0] for prompt in PROMPTS]
    for got, expected in zip(beam_search(m, PROMPTS, generation, ending(name)), alone, strict=True):
        assert_same(got, expected)


def test_rows_that_are_done_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model("gru")
    read = shapes_read(m, monkeypatch)
    generation = BEAMS.changed(early_stopping=True, num_beams=2, num_return=1, max_new_tokens=40)
    ends = [4, 9, 6]
    found = beam_search(m, PROMPTS, generation, ends=lambda row, new: len(new) >= ends[row])
    assert [len(row[0].tokens) for row in found] == ends
    assert read == [(3, 9)] + [(6, 1)] * 3 + [(4, 1)] * 2 + [(2, 1)] * 3


@pytest.mark.parametrize("name", STACKS)
def test_one_beam_is_greedy(name: str) -> None:
    m = model(name)
    for temperature in (0.0, 1.0):
        found = beam_search(m, PROMPTS, Generation(max_new_tokens=24, temperature=temperature))
        assert [row[0].tokens for row in found] == generate(m, PROMPTS, Generation(max_new_tokens=24, temperature=0))


def test_one_beam_ends_where_greedy_decoding_meets_the_end() -> None:
    m = model("rope")
    free = generate(m, PROMPTS, Generation(max_new_tokens=24, temperature=0))
    end = free[0][6]
    cut = [row[: row.index(end) + 1] if end in row else row for row in free]
    assert [row[0].tokens for row in beam_search(m, PROMPTS, Generation(max_new_tokens=24), end)] == cut


@pytest.mark.parametrize("limit", [2, 7, 8])
def test_a_full_context_slides(limit: int) -> None:
    m = model("learned", context_length=limit)
    for got, prompt in zip(beam_search(m, PROMPTS, BEAMS), PROMPTS, strict=True):
        assert_same(got, without_state(m, prompt, BEAMS, lambda _: False, limit))
        assert got[0].log_probability == pytest.approx(log_probability(m, prompt, got[0].tokens, limit), abs=1e-4)


def test_a_fixed_capacity_changes_nothing_until_it_is_full() -> None:
    m = model("all")
    assert beam_search(m, PROMPTS, BEAMS, capacity=9 + 11) == beam_search(m, PROMPTS, BEAMS)
    with pytest.raises(UserError, match="19 positions"):
        beam_search(m, PROMPTS, BEAMS, capacity=19)


def test_only_rows_of_beams_that_die_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy where each beam has one child, in whatever order; else one row for each beam without a child."""
    search = BeamSearch(model("all"), PROMPTS[:2], BEAMS)
    forks: list[tuple[list[int], list[int]]] = []
    overwrite = engine.overwrite
    monkeypatch.setattr(
        engine, "overwrite", lambda state, to, source: forks.append((to, source)) or overwrite(state, to, source)
    )
    search.step()
    assert forks == [], "the first step forks the state of the prompts whole"
    for _ in range(10):
        before = [[tuple(text) for text in search.beams[row].texts] for row in (0, 1)]
        forks.clear()
        search.step()
        if not search.running:
            break
        for row in (0, 1):
            after = [tuple(text[:-1]) for text in search.beams[row].texts]
            dead = [slot for slot in range(4) if before[row][slot] not in after]
            assert [to - 4 * row for tos, _ in forks for to in tos if to // 4 == row] == dead
            assert all(after[slot] == before[row][slot] for slot in range(4) if slot not in dead)


@pytest.mark.parametrize("left", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["gru", "all"])
def test_a_search_goes_on_with_fewer_beams_when_the_others_have_all_ended(name: str, left: int) -> None:
    """Of the six candidates of the first step all or all but one end, and later every second token ends a text."""
    m, generation = model(name), Generation(max_new_tokens=6, num_beams=3, num_return=3, length_penalty=2.0)
    six = beam_search(m, PROMPTS[:1], Generation(max_new_tokens=1, num_beams=6, num_return=6))[0]
    going = {h.tokens[0] for h in six[:left][-1:]}

    def ends(new: list[int]) -> bool:
        return new[0] not in going or (len(new) > 2 and new[-1] % 2 == 0)

    found = beam_search(m, PROMPTS[:1], generation, ends=lambda _, new: ends(new))[0]
    assert_same(found, without_state(m, PROMPTS[0], generation, ends))
    assert any(len(h.tokens) > 1 for h in found) == bool(left)


def test_no_prompt_and_no_token_are_no_work() -> None:
    assert beam_search(model("gru"), [], BEAMS) == []
    assert (
        beam_search(model("gru"), PROMPTS, Generation(max_new_tokens=0, num_beams=2))
        == [[Hypothesis([], 0.0, 0.0)]] * 3
    )


def test_dropout_sleeps_and_the_model_is_left_as_it_was() -> None:
    spec = model("rope").spec.to_dict()
    spec["blocks"][0]["dropout"] = 0.5
    m = build(Model.parse(spec), seed=3).train()
    assert beam_search(m, PROMPTS, BEAMS) == beam_search(model("rope"), PROMPTS, BEAMS)
    assert m.training


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error(value: float) -> None:
    m = build(model("gru").spec)
    with torch.no_grad():
        m.frontend.table[3, 0] = value
    with pytest.raises(UserError, match="not finite"):
        beam_search(m, [[3]], BEAMS)


@pytest.mark.parametrize(
    ("prompts", "generation", "end", "sentence"),
    [
        ([[1], []], {}, None, "prompt 2 of 2 has no tokens"),
        ([[1]], {}, VOCABULARY, r"the end token 23 is outside the vocabulary \(0 to 22\)"),
        ([[1]], {"stop": ("a",)}, None, "stop strings"),
        (
            [[1]],
            {"num_beams": 1, "temperature": 0.5},
            None,
            "temperature is 0.5, but beam search does not sample; leave it out",
        ),
        ([[1]], {"num_beams": 1, "top_k": 3}, None, "top_k is 3, but beam search does not sample"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_a_sentence(
    prompts: list[list[int]], generation: dict[str, Any], end: int | None, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        beam_search(model("gru"), prompts, Generation(**{"num_beams": 2, "max_new_tokens": 2, **generation}), end)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_beams": 0}, "num_beams: 0 given, but it should be greater than or equal to 1"),
        ({"num_return": 2}, "num_return: 2 given, but beam search returns at most num_beams = 1 texts"),
        ({"num_beams": 4, "num_return": 5}, "num_return: 5 given, but beam search returns at most num_beams = 4"),
        (
            {"num_beams": 4, "temperature": 0.8},
            r"temperature: 0.8 given, but beam search \(num_beams 4\) does not sample; leave it at 1.0",
        ),
        ({"num_beams": 4, "top_k": 8}, "top_k: 8 given, but beam search .* leave it out"),
        ({"num_beams": 4, "top_p": 0.5}, "top_p: 0.5 given"),
        ({"num_beams": 4, "min_p": 0.5}, "min_p: 0.5 given"),
        ({"num_beams": 4, "repetition_penalty": 1.5}, "repetition_penalty: 1.5 given"),
    ],
)
def test_options_that_contradict_beams(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Generation.parse(fields)


def test_asking_for_beams_ends_what_a_recipe_says_of_drawing() -> None:
    recipe = Generation(temperature=0.8, top_k=5, stop=("x",), max_new_tokens=9)
    assert recipe.requested(num_beams=4) == Generation(num_beams=4, stop=("x",), max_new_tokens=9)
    assert recipe.requested(top_p=0.5) == recipe.changed(top_p=0.5)
    with pytest.raises(SpecError, match="top_k: 3 given"):
        recipe.requested(num_beams=4, top_k=3)


def test_a_sampler_refuses_beams() -> None:
    with pytest.raises(UserError, match="num_beams is 4, but sampling has no beams"):
        generate(model("gru"), PROMPTS, BEAMS)


SOURCES = [[3, 8, 1, 6], [2], [9, 9, 4, 5, 1]]


@cache
def translator(layers: str, positions: str) -> Transformer:
    """An encoder–decoder; its positions are bounded if they are learned."""
    stack = {
        "num_layers": 2,
        "context_length": 8,
        "frontend": {"kind": "text", "vocab_size": VOCABULARY, "positions": positions},
    }
    decoder = [{"branches": ["attention(relative=rope)", "cross_attention", "feed_forward"]}]
    fields = {
        "width": 16,
        "init_std": 0.5,
        "head": "language_model(tied=false)",
        "encoder": {**stack, "memory": layers},
    }
    return build(Model.parse({**fields, **stack, "blocks": decoder}), seed=4).eval()


@pytest.mark.parametrize(("layers", "positions"), [("last", "none"), ("layers", "none"), ("last", "learned")])
@torch.no_grad()
def test_an_encoder_decoder_is_searched_with_the_memory_of_its_source(layers: str, positions: str) -> None:
    """Source and target read anew for every hypothesis; with bounded positions the target slides, its source stays."""
    m, end, generation = translator(layers, positions), 7, BEAMS.changed(length_penalty=0.5)
    prompts = [[1], [1], [1, 2]]
    ids = torch.tensor([source + [0] * (5 - len(source)) for source in SOURCES])
    lengths = torch.tensor([len(source) for source in SOURCES])
    found = beam_search(m, prompts, generation, end, memory=m.encode(Signal(ids, lengths=lengths)))
    limit = 8 if positions == "learned" else None
    for got, source, prompt in zip(found, SOURCES, prompts, strict=True):
        memory = m.encode(torch.tensor([source]))

        def alone(text: torch.Tensor, memory: Any = memory) -> Any:
            return m(text, memory=memory)

        forced = len(prompt) - 1  # what the decoder begins with, but for its start token
        assert_same(got, without_state(alone, prompt, generation, lambda new: new[-1] == end, limit, forced))
    assert len({tuple(row[0].tokens) for row in found}) == 3
