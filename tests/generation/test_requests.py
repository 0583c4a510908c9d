"""Requests that join and leave a batch: the tokens of each alone, under a budget, whatever happens to the others."""

from __future__ import annotations

import gc
import math
import random
import re
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.generation.models import STACKS, VOCABULARY, model
from tests.generation.states import held, running, taken
from tests.generation.test_beam import translator
from tests.generation.test_text import system

from qkv.generation import engine
from qkv.generation.decode.beam import beam_search
from qkv.generation.decode.sample import Sampling, generate
from qkv.generation.decode.speculate import Speculator
from qkv.generation.logits.constrain import Constraint
from qkv.generation.queue import prefill, prefixes, requests
from qkv.generation.queue.requests import QueueFull, Request, RequestQueue, TextDelta
from qkv.generation.text import generate_text, prompt_ids
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation, Speculation
from qkv.spec.tokenizers import Characters
from qkv.state import pages
from qkv.state.pages import MemoryPage
from qkv.state.tree import nbytes
from qkv.system import compiler
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

SETTINGS = [
    Generation(max_new_tokens=7, temperature=0),
    Generation(max_new_tokens=12, temperature=0.9, top_p=0.9, seed=4),
    Generation(max_new_tokens=5, temperature=1.3, top_k=6, seed=9),
    Generation(max_new_tokens=9, temperature=0.8, repetition_penalty=1.3, seed=2),
    Generation(max_new_tokens=9, temperature=0, repetition_penalty=1.3),
]


REGEXES = [None, "[a-f]{2,9}", "(abc|bca|d){1,4}", "a{3}[uv]*", None, "(ab){4}c"]
"""Constraints of requests; a text of some has a length of its own."""


@cache
def constraint(regex: str) -> Constraint:
    return Constraint(letters(), regex)


def look_up(adaptive: bool = False) -> Speculator:
    return Speculator(Speculation(num_tokens=3, ngram=2, adaptive=adaptive))


@cache
def letters() -> Tokenizer:
    """One character per id of the models' vocabulary, and one for unknown characters."""
    tokenizer = train(Characters(), ["abcdefghijklmnopqrstuv"])
    assert tokenizer.vocab_size == VOCABULARY
    return tokenizer


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def queue_of(m: Transformer, **options: Any) -> RequestQueue:
    return RequestQueue(m, letters(), **options)


def until_idle(queue: RequestQueue, each: Callable[[], None] = lambda: None) -> Iterator[TextDelta]:
    while not queue.idle:
        yield from queue.step()
        each()


def tokens_by_number(pieces: list[TextDelta]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for piece in pieces:
        found.setdefault(piece.number, []).extend(piece.tokens)
    return found


_ALONE: dict[tuple[object, ...], list[int]] = {}


def alone(m: Transformer, request: Request) -> list[int]:
    """Tokens of a request by itself, one in each step; models of ``model`` live as long as the tests."""
    key = id(m), tuple(request.prompt), request.generation, request.constraint
    if key not in _ALONE:
        sampling = Sampling(m, [request.prompt], request.generation, constraint=request.constraint)
        with patch.dict(prefill.PASS, cpu=512):
            while sampling.running:
                sampling.step()
        _ALONE[key] = sampling.texts[0][len(request.prompt) :]
    return _ALONE[key]


@pytest.mark.parametrize("name", STACKS)
def test_requests_of_other_settings_get_the_tokens_that_each_gets_alone(name: str) -> None:
    m, rng = model(name), random.Random(3)
    asked = [Request([rng.randrange(VOCABULARY) for _ in range(1 + 3 * i % 8)], s) for i, s in enumerate(SETTINGS)]
    queue, pieces = queue_of(m, max_batch=3), []
    for request in asked:
        assert queue.submit(request) == asked.index(request)
        pieces += queue.step()
    pieces += until_idle(queue)
    assert tokens_by_number(pieces) == {i: alone(m, request) for i, request in enumerate(asked)}
    assert [piece.finished for piece in pieces if piece.finished] == ["length"] * 5
    assert queue.nbytes == 0


SIZES = st.sampled_from([2, 7, 512])
"""Positions of a pass."""
PAGES = st.sampled_from([None, 2, 32])
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["submit", "step", "step", "cancel", "wait"]), st.integers(0, 30)), max_size=24
)


def schedule_is_kept(
    name: str, actions: list[tuple[str, int]], budget_rows: int, size: int, proposes: bool, page: int | None
) -> None:
    """Carry out actions and finish, in passes of ``size``, with beginnings of texts kept and without; check tokens,
    reasons and bytes of every request. page: positions of a page; None: keys and values are in slots.
    """
    with (
        patch.dict(prefill.PASS, cpu=size),
        patch.object(prefixes, "FEWEST", 2),
        patch.object(pages, "PAGE", page or 32),
    ):
        for keep in (0, 1 << 20):
            options = {"speculator": look_up() if proposes else None, "pages": page is not None}
            _carry_out(name, actions, budget_rows, keep, options)


def _carry_out(name: str, actions: list[tuple[str, int]], budget_rows: int, keep: int, options: dict[str, Any]) -> None:
    m, clock = model(name), Clock()
    budget = queue_of(m, **options)._needed([_longest(m)] * budget_rows)
    queue = queue_of(m, budget=budget, max_batch=4, clock=clock, keep=keep, **options)
    asked, pieces, cancelled = dict[int, Request](), list[TextDelta](), set[int]()

    def steps() -> None:
        pieces.extend(queue.step())
        assert held(queue) <= budget
        assert queue.prefixes.nbytes == nbytes(queue.prefixes.states) <= keep
        assert queue.running <= 4

    for action, value in actions:
        if action == "submit":
            prompt = [*((value % 3 * k + k) % VOCABULARY for k in range(1, 1 + value % 9)), value % VOCABULARY]
            deadline, regex = float(value) if value % 4 == 0 else None, REGEXES[value % 6]
            guide = constraint(regex) if regex else None
            request = Request(prompt, SETTINGS[value % 5], deadline=deadline, constraint=guide)
            asked[queue.submit(request)] = request
        elif action == "cancel" and asked:
            number = value % len(asked)
            cancelled.add(number)
            queue.cancel(number)
        elif action == "wait":
            clock.now += value
        else:
            steps()
    while not queue.idle:
        steps()
    _check_all(m, asked, pieces, cancelled)
    assert (queue.running, queue.waiting, queue.nbytes) == (0, 0, queue.prefixes.nbytes)
    queue.prefixes.shrink(0)
    assert queue.nbytes == 0


def _longest(m: Transformer) -> Any:
    request = Request([1] * 9, SETTINGS[1])
    queue = queue_of(m)
    queue.submit(request)
    return queue._waiting[0]


def _check_all(m: Transformer, asked: dict[int, Request], pieces: list[TextDelta], cancelled: set[int]) -> None:
    tokens = tokens_by_number(pieces)
    ends = {piece.number: piece.finished for piece in pieces if piece.finished}
    assert ends.keys() == asked.keys()
    assert sum(piece.finished is not None for piece in pieces) == len(asked)
    for number, request in asked.items():
        expected, got = alone(m, request), tokens.get(number, [])
        assert got == expected[: len(got)]
        if ends[number] in ("length", "stop"):
            assert got == expected
            assert (len(got) == request.generation.max_new_tokens) or ends[number] == "stop"
            assert ends[number] == "length" or request.constraint is not None
        elif ends[number] == "cancelled":
            assert number in cancelled
        else:
            assert (ends[number], request.deadline is not None) == ("deadline", True)
        text = "".join(piece.text for piece in pieces if piece.number == number)
        assert text == letters().decode(got)


@pytest.mark.parametrize("name", ["rope", "gru", "window", "learned"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS, rows=st.integers(1, 3), size=SIZES, proposes=st.booleans(), page=PAGES)
def test_any_schedule_keeps_tokens_and_budget(
    name: str, actions: list[tuple[str, int]], rows: int, size: int, proposes: bool, page: int | None
) -> None:
    schedule_is_kept(name, actions, rows, size, proposes, page)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    name=st.sampled_from(sorted(STACKS)),
    actions=ACTIONS,
    rows=st.integers(1, 3),
    size=SIZES,
    proposes=st.booleans(),
    page=PAGES,
)
def test_five_hundred_schedules_keep_tokens_and_budget(
    name: str, actions: list[tuple[str, int]], rows: int, size: int, proposes: bool, page: int | None
) -> None:
    schedule_is_kept(name, actions, rows, size, proposes, page)


@pytest.mark.parametrize("proposes", [False, True])
@pytest.mark.parametrize("name", STACKS)
def test_rows_with_constraints_and_proposals_get_the_tokens_that_each_gets_alone(name: str, proposes: bool) -> None:
    """Beside plain rows, with all settings; a text that its constraint ends matches it, others are as long as asked."""
    m, speculator = model(name), look_up()
    queue, pieces, asked = queue_of(m, speculator=speculator if proposes else None), list[TextDelta](), []
    for place, regex in enumerate(REGEXES * 2):
        guide = constraint(regex) if regex else None
        asked.append(Request([1, 2, 3 + place, 1, 2], SETTINGS[place % 5].changed(max_new_tokens=12), constraint=guide))
        queue.submit(asked[-1])
        pieces += queue.step()
    pieces += until_idle(queue)
    tokens = tokens_by_number(pieces)
    assert {number: tokens.get(number, []) for number in range(12)} == {i: alone(m, r) for i, r in enumerate(asked)}
    ends = {piece.number: piece.finished for piece in pieces if piece.finished}
    for number, regex in enumerate(REGEXES * 2):
        if ends[number] == "stop":
            assert regex
            assert re.fullmatch(regex, letters().decode(tokens[number]))
        else:
            assert (ends[number], len(tokens[number])) == ("length", 12)
    assert set(ends.values()) == {"stop", "length"}
    if proposes:
        assert 0 < speculator.counts.accepted < speculator.counts.proposed


def test_a_constraint_that_cannot_be_met_ends_its_own_request() -> None:
    m, queue = model("rope"), queue_of(model("rope"))
    asked = [Request([1, 2], SETTINGS[0], constraint=guide) for guide in (None, Constraint(letters(), "abé"), None)]
    for request in asked:
        queue.submit(request)
    pieces = list(until_idle(queue))
    ends = {piece.number: (piece.finished, piece.error) for piece in pieces if piece.finished}
    assert ends[1][0] == "refused"
    assert "no token of the tokenizer can continue the text as the regular expression demands" in ends[1][1]
    assert ends[0] == ends[2] == ("length", "")
    assert tokens_by_number(pieces) == {0: alone(m, asked[0]), 1: [0, 1], 2: alone(m, asked[2])}


def test_a_draft_proposes_for_requests_of_other_settings() -> None:
    """Of the same model at temperature 0 everything is accepted, and its state is part of the budget."""
    m = model("gru")
    speculator = Speculator(Speculation(kind="draft", num_tokens=3, adaptive=False), m)
    queue, pieces = queue_of(m, speculator=speculator), list[TextDelta]()
    for place in (0, 4):
        queue.submit(Request([3, place], SETTINGS[place]))
    for place in (1, 2):
        queue.submit(Request([3, place], SETTINGS[place]))
    assert queue._needed(list(queue._waiting)) == 5 * queue_of(m)._needed(list(queue._waiting))
    pieces += until_idle(queue)
    tokens = tokens_by_number(pieces)
    assert [tokens[i] for i in (0, 1)] == [alone(m, Request([3, place], SETTINGS[place])) for place in (0, 4)]
    assert [len(tokens[i]) for i in (2, 3)] == [12, 5]
    assert speculator.counts.accepted == speculator.counts.proposed


@pytest.mark.parametrize("name", ["gru", "window", "all", "rope", "memory"])
def test_the_budget_counts_the_copies_that_rejected_proposals_need(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All states that exist while rows return to a copy are within what is reserved, and nearly fill it."""
    m, most = model(name), [0]
    queue = queue_of(m, speculator=look_up())
    for length in (5, 9, 12):
        queue.submit(Request([3, 4, 3, 4] * length, Generation(max_new_tokens=40, seed=length)))
    reserved = queue._needed(list(queue._waiting))
    own, select = queue._sampling.engine, engine.rows

    def selected(state: Any, index: list[int]) -> Any:
        found = select(state, index)
        mark = [own._mark.state] if own._mark else []
        most[0] = max(most[0], taken([own._state, state, found, *mark], 1) if state is not own._state else 0)
        return found

    monkeypatch.setattr(engine, "rows", selected)
    list(until_idle(queue))
    assert most[0] <= reserved
    assert m.rewindable or most[0] > reserved / 3


@pytest.mark.parametrize("name", STACKS)
def test_the_budget_counts_at_least_the_bytes_of_every_state(name: str) -> None:
    """Whatever the mixer stores, also while the state grows and is copied."""
    m = model(name)
    queue = queue_of(m)
    for length in (1, 9, 30):
        queue.submit(Request([3] * length, Generation(max_new_tokens=90, temperature=0)))
    reserved = queue._needed(list(queue._waiting))
    held = []
    list(until_idle(queue, lambda: held.append(running(queue))))
    assert 0 < max(held) <= reserved
    assert reserved <= 3 * max(held), "the bound is far too large"


def test_requests_wait_for_the_budget_and_go_in_order() -> None:
    m = model("rope")
    one = queue_of(m)._needed([_longest(m)])
    queue, order = queue_of(m, budget=one), list[int]()
    for _ in range(3):
        queue.submit(Request([1, 2, 3], SETTINGS[0]))
    for piece in until_idle(queue, lambda: order.append(queue.running)):
        assert piece.finished in (None, "length")
    assert max(order) == 1, "the budget holds one"


def test_what_exceeds_the_budget_alone_is_refused() -> None:
    m = model("rope")
    queue = queue_of(m, budget=queue_of(m)._needed([_longest(m)]))
    with pytest.raises(
        UserError, match=r"needs [\d,]+ bytes of memory for 100 positions, but the budget is [\d,]+; ask"
    ):
        queue.submit(Request([1] * 51, Generation(max_new_tokens=50)))
    assert queue.idle


def test_a_full_queue_refuses() -> None:
    queue = queue_of(model("gru"), max_queue=2)
    for _ in range(2):
        queue.submit(Request([1]))
    with pytest.raises(QueueFull, match="2 requests wait, and the queue has room for 2; try again later"):
        queue.submit(Request([1]))


def test_cancelled_and_expired_requests_free_their_state_at_once() -> None:
    m, clock = model("rope"), Clock()
    queue = queue_of(m, clock=clock)
    long = Generation(max_new_tokens=50, temperature=0)
    first, second = queue.submit(Request([1, 2], long)), queue.submit(Request([3] * 40, long, deadline=2.0))
    queue.step()
    both = queue.nbytes
    clock.now = 2.0
    (expired, *_) = queue.step()
    assert (expired.number, expired.finished) == (second, "deadline")
    assert queue.nbytes <= both // 2
    queue.cancel(first)
    assert (queue.running, queue.nbytes) == (0, 0)
    assert [(piece.number, piece.finished) for piece in queue.step()] == [(first, "cancelled")]
    assert queue.idle
    queue.cancel(first)  # it has ended
    assert queue.idle


def test_no_page_outlives_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished, cancelled, expired or failed, beside states that are kept; without a garbage collection."""
    alive, original = weakref.WeakSet[MemoryPage](), MemoryPage.__init__

    def noted(page: MemoryPage, data: torch.Tensor) -> None:
        original(page, data)
        alive.add(page)

    monkeypatch.setattr(MemoryPage, "__init__", noted)
    monkeypatch.setattr(pages, "PAGE", 4)
    clock, failed = Clock(), False
    queue = queue_of(model("rope"), clock=clock, keep=1 << 20, speculator=look_up())
    gc.disable()
    try:
        for ends in ("finished", "cancelled", "deadline", "failed"):
            deadline = clock.now + 1 if ends == "deadline" else None
            numbers = [queue.submit(Request([*range(1, 20), i], SETTINGS[0], deadline=deadline)) for i in range(3)]
            for _ in range(3):
                queue.step()
            assert bool(alive) == (compiler.compiler() is not None)
            if ends == "cancelled":
                list(map(queue.cancel, numbers))
            clock.now += 2
            if ends == "failed":
                queue._fail(RuntimeError("broken"))
                failed = not alive
            list(until_idle(queue))
            assert sum(page.data.nbytes for page in alive) <= queue.prefixes.nbytes
            queue.prefixes.shrink(0)
            assert not alive, ends
    finally:
        gc.enable()
    assert failed


@pytest.mark.parametrize("scheme", ["characters", "bytes", "words", "bpe"])
def test_pieces_join_to_the_generated_text(scheme: str) -> None:
    m, tokenizer = system(scheme)
    drawn = Generation(max_new_tokens=60, temperature=1.0, seed=5)
    whole = generate_text(m, tokenizer, "the cat", drawn)
    stop = whole[len(whole) // 2 :][:2]
    queue = RequestQueue(m, tokenizer)
    for options in ((), (stop,)):
        queue.submit(Request(prompt_ids(tokenizer, "the cat"), drawn.changed(stop=options)))
    pieces = list(until_idle(queue))
    texts = ["".join(piece.text for piece in pieces if piece.number == n) for n in (0, 1)]
    assert texts == [whole, whole[: whole.index(stop)]]
    assert {piece.number: piece.finished for piece in pieces if piece.finished} == {0: "length", 1: "stop"}


def test_an_end_token_ends_the_text_and_is_not_part_of_it() -> None:
    m = model("rope")
    tokens = alone(m, Request([5, 1], SETTINGS[0]))
    end = tokens[3]
    queue = queue_of(m)
    queue.submit(Request([5, 1], SETTINGS[0].changed(stop_token_ids=[end])))
    pieces = list(until_idle(queue))
    assert tokens_by_number(pieces)[0] == tokens[: tokens.index(end)]
    assert pieces[-1].finished == "stop"


def test_sources_of_an_encoder_are_read() -> None:
    m, sources = translator("last", "none"), [[3, 8, 1, 6], [2]]
    expected = [
        beam_search(m, [[1]], Generation(max_new_tokens=8), memory=m.encode(torch.tensor([source])))[0][0].tokens
        for source in sources
    ]
    queue = queue_of(m, budget=10**6)
    for source in sources:
        queue.submit(Request([1], Generation(max_new_tokens=8, temperature=0), source=source))
    held = []
    pieces = list(until_idle(queue, lambda: held.append(running(queue))))
    assert [tokens_by_number(pieces)[i] for i in (0, 1)] == expected
    reserved = _reserved(m, Request([1], Generation(max_new_tokens=8), source=sources[0]), 2)
    assert max(held) <= reserved


def _reserved(m: Transformer, request: Request, rows: int) -> int:
    queue = queue_of(m)
    for _ in range(rows):
        queue.submit(request)
    return queue._needed(list(queue._waiting))


@torch.no_grad()
def test_scores_are_log_probabilities_of_the_whole_text() -> None:
    m = model("rope")
    queue = queue_of(m)
    queue.submit(Request([5, 1, 7], SETTINGS[1], alternatives=3))
    queue.submit(Request([4], SETTINGS[2]))
    pieces = list(until_idle(queue))
    tokens = tokens_by_number(pieces)[0]
    scores = [score for piece in pieces if piece.number == 0 for score in piece.scores]
    assert len(scores) == len(tokens)
    assert not any(piece.scores for piece in pieces if piece.number == 1)
    logits = m(torch.tensor([[5, 1, 7, *tokens]]))[0][0, 2:-1].double()
    for token, score, row in zip(tokens, scores, logits, strict=True):
        chances = (row.exp() / row.exp().sum()).log()
        assert score.log_probability == pytest.approx(float(chances[token]), abs=1e-5)
        best = sorted(range(VOCABULARY), key=lambda i: -float(chances[i]))[:3]
        assert [index for index, _ in score.alternatives] == best
        assert [value for _, value in score.alternatives] == pytest.approx([float(chances[i]) for i in best], abs=1e-5)


def test_a_failing_model_ends_its_requests_and_the_queue_goes_on() -> None:
    m = build(model("gru").spec, seed=1).eval()
    queue = queue_of(m, max_batch=1)
    queue.submit(Request([1, 2], SETTINGS[0]))
    queue.submit(Request([1, 2], SETTINGS[0]))
    queue.step()
    weight = next(m.parameters())
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(math.nan)
    failed = queue.step()
    assert [(piece.number, piece.finished) for piece in failed] == [(0, "failed")]
    assert "logits are not finite" in failed[0].error
    with torch.no_grad():
        weight.copy_(kept)
    pieces = list(until_idle(queue))
    assert tokens_by_number(pieces) == {1: generate(m, [[1, 2]], SETTINGS[0])[0]}


def test_an_error_of_torch_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(self: object) -> None:
        raise RuntimeError("can't allocate memory")

    queue = queue_of(model("gru"))
    queue.submit(Request([1]))
    monkeypatch.setattr(requests.Sampling, "step", out_of_memory)
    (piece,) = [piece for piece in queue.step() if piece.finished] or queue.step()
    assert (piece.finished, piece.error) == ("failed", "the model failed: can't allocate memory")


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (Request([]), "the prompt has no tokens; give at least one"),
        (Request([VOCABULARY]), "has the token 23, which is outside the vocabulary"),
        (Request([1], Generation(num_beams=2)), "num_beams is 2, but requests are sampled"),
        (Request([1], source=[2]), "source: the model has no encoder to read a source"),
    ],
)
def test_what_a_decoder_cannot_answer_is_refused(request_: Request, sentence: str) -> None:
    queue = queue_of(model("rope"))
    with pytest.raises(UserError, match=sentence):
        queue.submit(request_)
    assert queue.idle


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (None, "source: the model needs a source for its encoder"),
        ([], "source: it has 0 tokens; allowed: 1 to 8"),
        ([1] * 9, "source: it has 9 tokens; allowed: 1 to 8"),
        ([99], "source: it has the token 99, which is outside the vocabulary"),
    ],
)
def test_sources_that_cannot_be_read_are_refused(source: list[int] | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        queue_of(translator("last", "learned")).submit(Request([1], source=source))


def test_without_a_tokenizer_requests_get_ids() -> None:
    m = model("rope")
    queue = RequestQueue(m, None)
    queue.submit(Request([5, 1], SETTINGS[1]))
    deltas = list(until_idle(queue))
    assert tokens_by_number(deltas) == {0: alone(m, Request([5, 1], SETTINGS[1]))}
    assert {delta.text for delta in deltas} == {""}
    with pytest.raises(UserError, match="stop: stop strings need a tokenizer"):
        queue.submit(Request([5, 1], Generation(stop=("a",))))


def test_no_new_tokens_end_at_once() -> None:
    queue = queue_of(model("rope"))
    queue.submit(Request([1], Generation(max_new_tokens=0)))
    assert [(piece.text, piece.finished) for piece in until_idle(queue)] == [("", "length")]
