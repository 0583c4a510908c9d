"""Prompts that are read in several passes: nothing but the time and the memory of a pass depends on their size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from tests.generation.models import STACKS, VOCABULARY, model
from tests.generation.reads import tell_reads
from tests.generation.test_beam import translator
from tests.generation.test_prefix import prefix_model

from qkv.generation.decode.beam import beam_search
from qkv.generation.decode.sample import Sampling, generate
from qkv.generation.decode.score import score_prompts
from qkv.generation.queue import prefill
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation

PROMPTS = [[(7 * i * i + row) % VOCABULARY for i in range(length)] for row, length in enumerate((21, 1, 6, 13))]
DRAWN = Generation(max_new_tokens=7, temperature=0.9, top_p=0.95, seed=7)


@contextmanager
def passes_of(size: int, m: Transformer | None = None) -> Iterator[list[tuple[int, ...]]]:
    """Passes of ``size`` positions; the list receives the shape of what ``m`` reads in each."""
    shapes: list[tuple[int, ...]] = []
    with pytest.MonkeyPatch.context() as changed, patch.dict(prefill.PASS, cpu=size):
        if m is not None:
            tell_reads(m, changed, shapes.append)
        yield shapes


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("size", [5, 12])
def test_tokens_do_not_depend_on_the_size_of_a_pass(name: str, size: int) -> None:
    m = model(name)
    whole = generate(m, PROMPTS, DRAWN)
    with passes_of(size, m) as shapes:
        assert generate(m, PROMPTS, DRAWN) == whole
    assert all(rows * count <= max(size, rows) for rows, count in shapes), "decoding reads a token per row"
    assert max(count for _, count in shapes) == size


def test_rows_that_decode_gain_a_token_with_every_chunk_of_a_long_prompt() -> None:
    m = model("rope")
    alone = [generate(m, [PROMPTS[row]], DRAWN)[0] for row in (1, 0)]
    with passes_of(5, m) as shapes:
        sampling = Sampling(m, PROMPTS[1:2], DRAWN)
        assert [drawn.row for drawn in sampling.step()] == [0]
        sampling.admit(PROMPTS[:1], DRAWN)
        rows = [[drawn.row for drawn in sampling.step()] for _ in range(6)]
        assert rows == [[0], [0], [0], [0], [0, 1], [0, 1]]
        while sampling.running:
            sampling.step()
    assert shapes[1:11] == [(1, 1), (1, 5)] * 4 + [(1, 1), (1, 1)], "21 tokens: four chunks and one token"
    assert [sampling.texts[0][1:], sampling.texts[1][21:]] == alone


def test_many_rows_that_begin_are_read_before_one_row_is_far_ahead() -> None:
    """Sixteen prompts of a pass each beside one row: it waits for four passes a step, until as many rows decode."""
    m = model("rope")
    prompts = [[(3 * i + row) % VOCABULARY for i in range(5)] for row in range(16)]
    alone = [generate(m, [prompt], DRAWN)[0] for prompt in prompts]
    with passes_of(5, m) as shapes:
        sampling = Sampling(m, PROMPTS[1:2], DRAWN.changed(max_new_tokens=40))
        sampling.step()
        for prompt in prompts:
            sampling.admit([prompt], DRAWN)
        drawn = [len(sampling.step()) for _ in range(4)]
        read = [shape for shape in shapes if shape == (1, 5)]
        assert drawn == [5, 9, 10, 11], "four passes, four, and one where no more rows wait than decode"
        assert len(read) == 10
        while sampling.running:
            sampling.step()
    assert [sampling.texts[row + 1][5:] for row in range(16)] == alone


def test_requests_that_fit_are_read_in_one_pass() -> None:
    m = model("gru")
    with passes_of(18, m) as shapes:
        queue = RequestQueue(m, None)
        for prompt in ([1, 2], [3, 4, 5, 6], [7], [8, 9, 1, 2, 3]):
            queue.submit(Request(prompt, Generation(max_new_tokens=2, temperature=0)))
        while not queue.idle:
            queue.step()
    assert shapes == [(3, 4), (3, 1), (1, 5), (1, 1)]


@pytest.mark.parametrize(("shared", "reads"), [(24, [(1, 35), (15, 11)]), (4, [(2, 35)] * 8)])
def test_what_many_requests_share_is_read_once(shared: int, reads: list[tuple[int, int]]) -> None:
    """Sixteen chats at once with the same beginning, of which nothing is kept yet."""
    m = model("rope")
    beginning, rest = [(7 * i) % VOCABULARY for i in range(shared)], 35 - shared
    prompts = [beginning + [(row + 3 * i * i + 5 * row * i) % VOCABULARY for i in range(rest)] for row in range(16)]
    drawn = Generation(max_new_tokens=4, temperature=0)
    alone = [generate(m, [prompt], drawn)[0] for prompt in prompts]
    with passes_of(165 if shared > 16 else 70, m) as shapes:
        queue, texts = RequestQueue(m, None, keep=2**22), {row: list[int]() for row in range(16)}
        for prompt in prompts:
            queue.submit(Request(prompt, drawn))
        while not queue.idle:
            for piece in queue.step():
                texts[piece.number] += piece.tokens
    assert [shape for shape in shapes if shape[1] > 1] == reads
    assert list(texts.values()) == alone


@pytest.mark.parametrize("kept", [0, 2**22])
def test_texts_of_one_prompt_read_it_once_if_its_state_is_kept(kept: int) -> None:
    m = model("window") if not kept else model("rope")
    with passes_of(512, m) as shapes:
        queue = RequestQueue(m, None, keep=kept)
        for _ in range(8):
            queue.submit(Request(PROMPTS[0], Generation(max_new_tokens=2)))
        while not queue.idle:
            queue.step()
    assert shapes[0] == ((1, 21) if kept else (8, 21))


def test_the_texts_of_an_admission_become_ready_together() -> None:
    m = model("window")
    with passes_of(6, m) as shapes:
        sampling = Sampling(m, [PROMPTS[1], PROMPTS[2], PROMPTS[3]], DRAWN)
        steps = [len(sampling.step()) for _ in range(5)]
    assert steps == [0, 0, 0, 0, 3]
    assert shapes == [(1, 1), (1, 6), (1, 6), (1, 6), (1, 1)]


@pytest.mark.parametrize("name", ["rope", "learned", "gru"])
def test_beams_do_not_depend_on_the_size_of_a_pass(name: str) -> None:
    m, settings = model(name), Generation(max_new_tokens=6, num_beams=3)
    whole = beam_search(m, PROMPTS, settings)
    with passes_of(7):
        found = beam_search(m, PROMPTS, settings)
    assert [[each.tokens for each in row] for row in found] == [[each.tokens for each in row] for row in whole]


@pytest.mark.parametrize("name", ["rope", "linear", "all"])
def test_scores_do_not_depend_on_the_size_of_a_pass(name: str) -> None:
    """Neither of the prompt, nor of forked rows with several tokens, whose logits are all read."""
    m, options = model(name), [[[5, 1, 2, 8], [6]], [[1, 2, 3, 4, 5, 6, 7, 8], [9, 2], [3, 3, 3]]]
    prompts = [PROMPTS[0] + [4, 4, 1], PROMPTS[0] + [2]]
    whole = score_prompts(m, prompts, options)
    with passes_of(4, m) as shapes:
        found = score_prompts(m, prompts, options)
    assert max(rows * count for rows, count in shapes) == 4
    for one, other in zip(found, whole, strict=True):
        assert [score.sum for score in one] == pytest.approx([score.sum for score in other], abs=1e-4)


def test_a_prefix_is_read_in_one_pass() -> None:
    m = prefix_model()
    prompts = [[3, 1, 4, 1, 5, 2], [2, 7, 1], [6]]
    whole = generate(m, prompts, Generation(max_new_tokens=5, temperature=0))
    with passes_of(4, m) as shapes:
        assert generate(m, prompts, Generation(max_new_tokens=5, temperature=0)) == whole
    assert shapes[:3] == [(1, 6), (1, 3), (1, 1)]


def test_sources_of_an_encoder_stay_with_their_rows() -> None:
    m, prompts = translator("last", "none"), [[1, 5, 2, 6, 3], [2], [4, 1, 1]]
    memory = m.encode(torch.tensor([[3, 8, 1, 6], [2, 2, 9, 1], [7, 1, 5, 5]]))
    settings = Generation(max_new_tokens=6)
    whole = beam_search(m, prompts, settings, memory=memory)
    with passes_of(2):
        found = beam_search(m, prompts, settings, memory=memory)
    assert [row[0].tokens for row in found] == [row[0].tokens for row in whole]


@pytest.mark.parametrize("name", ["rope", "gru"])
def test_rows_dropped_while_they_are_read_free_their_state(name: str) -> None:
    m = model(name)
    alone = generate(m, PROMPTS[2:3], DRAWN)[0]
    with passes_of(6):
        sampling = Sampling(m, [], DRAWN)
        sampling.admit([PROMPTS[1], PROMPTS[0]], DRAWN)
        sampling.admit([PROMPTS[2]], DRAWN)
        sampling.step()
        sampling.step()
        both = sampling.engine.nbytes
        sampling.drop({1})
        assert 0 < sampling.engine.nbytes < both, "the row beside it has been read"
        sampling.drop({0})
        assert sampling.engine.nbytes == 0
        while sampling.running:
            sampling.step()
    assert sampling.texts[2][6:] == alone
