"""Texts that begin alike: what they share is read once, whatever the mixer, and nothing else changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.generation.models import STACKS, VOCABULARY, model
from tests.generation.states import held, running
from tests.generation.test_beam import translator
from tests.generation.test_prefill import passes_of
from tests.generation.test_prefix import prefix_model
from tests.ops.present import needs_native

from qkv.generation.decode.sample import generate
from qkv.generation.queue import prefixes
from qkv.generation.queue.prefixes import Prefixes, common, shares
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.state import pages

GREEDY = Generation(max_new_tokens=6, temperature=0)
DRAWN = Generation(max_new_tokens=6, temperature=0.9, top_p=0.95, seed=3)
SYSTEM = [(5 * i * i + 2) % VOCABULARY for i in range(24)]


@pytest.fixture(autouse=True)
def _short_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "FEWEST", 4)


def queue_of(m: Transformer, keep: int = 1 << 20, budget: int | None = None) -> RequestQueue:
    return RequestQueue(m, None, budget, keep=keep)


def served(queue: RequestQueue, prompts: Sequence[Sequence[int]], settings: Generation = DRAWN) -> list[list[int]]:
    """Tokens of requests, one after the other."""
    found = []
    for prompt in prompts:
        queue.submit(Request(prompt, settings))
        tokens: list[int] = []
        while not queue.idle:
            tokens += [token for piece in queue.step() for token in piece.tokens]
        found.append(tokens)
    return found


def reading(m: Transformer, prompts: Sequence[Sequence[int]], keep: int) -> tuple[int, list[list[int]]]:
    """Positions that the model reads for the prompts, one after the other, and the tokens."""
    with passes_of(512, m) as shapes:
        found = served(queue_of(m, keep), prompts)
    return sum(rows * count for rows, count in shapes), found


@pytest.mark.parametrize("name", STACKS)
def test_what_texts_share_is_read_once(name: str) -> None:
    m = model(name)
    prompts = [[*SYSTEM, row, 3, 1] for row in range(4)]
    alone = [generate(m, [prompt], DRAWN)[0] for prompt in prompts]
    apart, found = reading(m, prompts, 0)
    assert found == alone
    shared, found = reading(m, prompts, 1 << 20)
    assert found == alone
    sharing = 3 if m.rewindable else 2  # the second text shows where the first one may be parted from
    assert apart - shared == sharing * len(SYSTEM)


@pytest.mark.parametrize("name", STACKS)
def test_a_chat_goes_on_from_its_own_state(name: str) -> None:
    m, queue = model(name), queue_of(model(name))
    chat = SYSTEM[:7]
    for turn in range(3):
        (answer,) = served(queue, [chat])
        assert answer == generate(m, [chat], DRAWN)[0]
        before = len(chat) + len(answer) - 1
        chat = [*chat, *answer, 4, turn]
    assert queue.prefixes.hits == 2
    assert queue.prefixes.tokens == (7 + 5) + before - 8, "all but the last token of each answer"


@pytest.mark.parametrize("name", ["rope", "window", "gru", "all", "memory"])
def test_scores_in_double_precision_are_those_of_a_text_alone(name: str) -> None:
    """Which a difference of rounding in a token's choice could hide."""
    m = build(model(name).spec, seed=3).double().eval()
    rng = random.Random(1)
    prompts = [SYSTEM[: 5 + 4 * i] + [rng.randrange(VOCABULARY) for _ in range(3)] for i in range(5)] * 2

    def scores(keep: int) -> list[float]:
        queue, found = queue_of(m, keep), list[float]()
        for prompt in prompts:
            queue.submit(Request(prompt, GREEDY, alternatives=2))
            while not queue.idle:
                found += [score.log_probability for piece in queue.step() for score in piece.scores]
        assert bool(queue.prefixes.hits) == bool(keep)
        return found

    assert scores(1 << 20) == pytest.approx(scores(0), abs=1e-9)


def test_rows_that_begin_with_kept_states_are_read_in_one_pass() -> None:
    m = model("rope")
    queue = queue_of(m)
    served(queue, [SYSTEM])
    with passes_of(64, m) as shapes:
        for row in range(3):
            queue.submit(Request([*SYSTEM[: 20 + row], row, 5], GREEDY))
        queue.submit(Request([1, 2, 3], GREEDY))
        while not queue.idle:
            queue.step()
    assert shapes[:3] == [(3, 2), (3, 1), (1, 3)], "and what has no known beginning in one of its own"
    assert queue.prefixes.hits == 3


def test_the_same_prompt_is_read_but_for_its_last_token() -> None:
    m = model("rope")
    queue = queue_of(m)
    first, second = served(queue, [SYSTEM, SYSTEM])
    assert first == second
    assert queue.prefixes.tokens == len(SYSTEM) - 1


def test_the_state_after_1_2_4_chunks_of_a_long_prompt_is_kept() -> None:
    m = model("gru")
    with passes_of(6, m) as shapes:
        queue = queue_of(m)
        served(queue, [[*SYSTEM, 1, 1, 1, 1, 1, 1], [*SYSTEM[:13], 2]])
        assert queue.prefixes.tokens == 12
    assert (1, 1) in shapes


def test_the_least_recently_used_state_is_removed() -> None:
    m = model("gru")
    one = m.room_bytes(64) + prefixes.COUNTS
    known = Prefixes(m, 2 * one + one // 2)
    texts = [[i] * 8 for i in range(3)]
    for i, text in enumerate(texts[:2]):
        state = m.init_state(1)
        known.keep(text, state, 0)
        assert known.find([*text, 9]) is not None, i
    found = known.find([*texts[0], 9])
    assert found is not None
    known.take(found)  # the second is now the older one
    known.keep(texts[2], m.init_state(1), 0)
    assert [known.find([*text, 9]) is not None for text in texts] == [True, False, True]
    assert 0 < known.nbytes <= known.most
    known.shrink(0)
    assert known.nbytes == 0


def test_kept_states_leave_the_budget_to_requests() -> None:
    m, longer = model("rope"), [*SYSTEM, *SYSTEM, *SYSTEM]
    queue = queue_of(m)
    queue.submit(Request(longer, DRAWN))
    budget = queue._needed(queue._waiting)
    queue = queue_of(m, budget=budget)
    served(queue, [SYSTEM])
    assert 0 < queue.prefixes.nbytes <= budget
    queue.submit(Request(longer[::-1], DRAWN))
    queue.step()
    assert queue.prefixes.nbytes == 0, "the request needs all of it"
    assert 0 < running(queue) <= budget


@needs_native
def test_the_budget_counts_pages_that_running_texts_share_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget for four texts apart takes more that share a beginning, which is kept until they have it."""
    monkeypatch.setattr(pages, "PAGE", 4)
    m, long = model("rope"), [*SYSTEM, *SYSTEM, *SYSTEM]
    settings = GREEDY.changed(max_new_tokens=40)
    requests = [Request([*long, row, 3, row], settings) for row in range(6)]
    queue = queue_of(m)
    for request in requests:
        queue.submit(request)
    budget = queue._needed(list(queue._waiting)[:4])
    queue, found, most = queue_of(m, budget=budget), dict[int, list[int]](), list[int]()
    queue.submit(Request(long, GREEDY))
    while not queue.idle:
        queue.step()
    for request in requests:
        queue.submit(request)
    while not queue.idle:
        for piece in queue.step():
            found.setdefault(piece.number - 1, []).extend(piece.tokens)
        most.append(queue.running)
        assert held(queue) <= budget
    assert max(most) == 6
    assert found == {i: generate(m, [request.prompt], settings)[0] for i, request in enumerate(requests)}


@needs_native
@given(st.integers(1, 5), st.integers(5, 40), st.integers(10, 25))
def test_pages_of_a_kept_state_that_running_texts_have_take_nothing_more(rows: int, shared: int, new: int) -> None:
    """A budget for texts that share a beginning, and for what the kept state has beside their pages, takes them all."""
    m, settings = model("rope"), GREEDY.changed(max_new_tokens=new)
    beginning = [(7 * i * i + 3) % VOCABULARY for i in range(shared)]
    requests = [Request([*beginning, row, 3], settings) for row in range(rows)]
    with patch.object(pages, "PAGE", 4), patch.object(prefixes, "FEWEST", 4):
        queue = queue_of(m)
        for request in requests:
            queue.submit(request)
        apart = queue._needed(list(queue._waiting))
        # Full pages that all have; those of the last one are known when it has begun.
        once = max(0, rows - 2) * m.page_bytes((shared - 1) // 4 * 4)
        beside = m.room_bytes(shared, 1, True) + prefixes.COUNTS + m.page_bytes(1)
        budget = max(apart - once, m.page_bytes(shared) + queue._needed([queue._waiting[0]])) + beside
        queue, most = queue_of(m, budget=budget), 0
        served(queue, [beginning], GREEDY.changed(max_new_tokens=1))
        for request in requests:
            queue.submit(request)
        while not queue.idle:
            queue.step()
            most = max(most, queue.running)
            assert held(queue) <= budget
        assert (queue.prefixes.hits, most) == (rows, rows)


def test_a_text_whose_context_slides_is_read_from_its_start() -> None:
    m = model("learned", context_length=16)
    prompts = [SYSTEM, [*SYSTEM, 1], SYSTEM[:10], SYSTEM[:12]]
    queue = queue_of(m)
    assert served(queue, prompts) == [generate(m, [prompt], DRAWN)[0] for prompt in prompts]
    assert queue.prefixes.tokens == 10


def test_a_failed_batch_leaves_nothing_behind() -> None:
    m = build(model("gru").spec, seed=1).eval()
    queue = queue_of(m)
    served(queue, [SYSTEM])
    assert queue.prefixes.nbytes
    queue._fail(RuntimeError("broken"))
    assert queue.prefixes.nbytes == 0


def test_states_of_more_than_the_tokens_are_not_shared() -> None:
    assert shares(model("gru"))
    assert not shares(prefix_model())
    assert not shares(translator("last", "none"))
    queue = RequestQueue(prefix_model(), None, keep=1 << 20)
    prompts = [[3, 1, 4, 1, 5, 2, 6, 6], [3, 1, 4, 1, 5, 2, 6, 7]]
    served(queue, prompts)
    assert queue.nbytes == 0


@pytest.mark.parametrize(
    ("first", "second"), [([], [1]), ([1, 2], [1, 2]), ([1, 2, 3], [1, 2, 4]), ([2], [1]), (SYSTEM, SYSTEM[:9])]
)
def test_the_common_beginning_is_that_of_a_loop(first: list[int], second: list[int]) -> None:
    wanted = 0
    while wanted < min(len(first), len(second)) and first[wanted] == second[wanted]:
        wanted += 1
    assert common(first, second) == wanted
