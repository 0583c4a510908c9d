"""The one loop of decoding: rows that come and go while others decode, and what a step reads from the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.generation.models import STACKS, model
from tests.generation.reads import shapes_read
from tests.generation.test_beam import translator
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.generation.decode.beam import beam_search
from qkv.generation.decode.sample import Sampling, generate
from qkv.generation.engine import DecodedRow, Engine, Next, Reading
from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation

PROMPTS = [[5, 1, 7, 2, 9, 4, 11, 3, 8], [6], [2, 2, 14]]
DRAWN = Generation(max_new_tokens=12, temperature=0.9, top_p=0.95, seed=7)


class Reads(TorchDispatchMode):
    """Counts values that the host reads from tensors."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", STACKS)
def test_a_row_admitted_while_others_decode_gets_the_tokens_that_it_gets_alone(name: str) -> None:
    m, generation = model(name), DRAWN.changed(repetition_penalty=1.2)
    alone = [generate(m, [prompt], generation.changed(seed=7 + row))[0] for row, prompt in enumerate(PROMPTS)]
    sampling = Sampling(m, PROMPTS[:1], generation)
    for number in range(5):
        sampling.step()
        if number == 2:
            assert sampling.admit(PROMPTS[1:2]) == [1]
    sampling.admit(PROMPTS[2:])
    while sampling.running:
        sampling.step()
    assert [text[len(prompt) :] for text, prompt in zip(sampling.texts.values(), PROMPTS, strict=True)] == alone


def test_rows_come_and_go_without_a_second_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model("rope")
    read = shapes_read(m, monkeypatch)
    sampling = Sampling(m, PROMPTS[:2], DRAWN.changed(max_new_tokens=4))
    sampling.step()
    sampling.admit(PROMPTS[2:])
    sampling.step()
    sampling.drop({0})
    while sampling.running:
        sampling.step()
    assert read == [(2, 9), (2, 1), (1, 3), (2, 1), (2, 1), (1, 1)]


def test_a_row_that_is_dropped_before_it_is_read_leaves_the_others() -> None:
    m = model("rope")
    sampling = Sampling(m, PROMPTS[:1], DRAWN)
    sampling.step()
    sampling.admit(PROMPTS[1:])
    sampling.drop({1})
    while sampling.running:
        sampling.step()
    assert sampling.texts[1] == PROMPTS[1]
    assert [sampling.texts[row][len(PROMPTS[row]) :] for row in (0, 2)] == [
        generate(m, [PROMPTS[row]], DRAWN.changed(seed=7 + row))[0] for row in (0, 2)
    ]


def test_only_rows_whose_context_slides_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model("learned", context_length=8)
    read = shapes_read(m, monkeypatch)
    generate(m, [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3], [5, 4, 3, 2, 1, 2, 3]], Generation(max_new_tokens=4, temperature=0))
    assert read == [(3, 7), (3, 1), (1, 1), (2, 5), (3, 1)]


def test_translations_of_sources_of_other_lengths_join() -> None:
    """Memories of different lengths in one batch; the longer row slides, so that they are joined twice."""
    m, sources = translator("last", "learned"), [[3, 8, 1, 6], [2]]
    memories = [m.encode(torch.tensor([source])) for source in sources]
    expected = [beam_search(m, [[1]], Generation(max_new_tokens=12), memory=memory)[0][0].tokens for memory in memories]
    engine, texts = Engine(m, Greedy({0: 12, 1: 12})), dict[int, list[int]]()
    engine.admit([[1]], [0], memories[0])
    for number in range(24):
        engine.step()
        if number == 3:
            engine.admit([[1]], [1], memories[1])
        texts |= {row.key: row.tokens[1:] for row in engine.rows}
    assert [texts[key] for key in (0, 1)] == [tokens[:-1] for tokens in expected]


class Greedy:
    """Policy: the best token of each row, until it has as many as its key says."""

    def __init__(self, most: dict[int, int]):
        self.most = most

    def __call__(self, rows: Sequence[DecodedRow], reading: Reading) -> list[Next]:
        best = reading.logits().argmax(-1).tolist()
        going = [place for place, row in enumerate(rows) if len(row.tokens) - row.prompt + 1 < self.most[row.key]]
        return [Next(place, [best[place]]) for place in going]


@pytest.mark.parametrize("name", STACKS)
def test_a_step_of_a_batch_reads_nothing_from_the_device_but_its_tokens(name: str) -> None:
    """``tolist`` of the sampled tokens is one read; it is not among those counted."""
    sampling = Sampling(model(name), PROMPTS, Generation(max_new_tokens=9, temperature=0))
    sampling.step()
    with Reads() as reads:
        while sampling.running:
            sampling.step()
    assert reads.count == 0


def test_reads_are_counted() -> None:
    with Reads() as reads:
        assert bool(torch.ones(2).all())
        assert int(torch.arange(3)[2]) == 2
    assert reads.count == 2


def on_meta(m: Transformer, memory: Memory | None, rows: int) -> None:
    """Prefill and five steps on a device whose values nobody can read."""
    state = m.init_state(rows, memory=memory)
    for count in (3, 1, 1, 1, 1, 1):
        y, state = m(Signal(torch.zeros(rows, count, dtype=torch.long, device="meta")), state)
        assert y.shape[:2] == (rows, count)


@pytest.mark.parametrize("name", STACKS)
def test_decoding_reads_no_value_of_the_device(name: str) -> None:
    on_meta(build(model(name).spec).eval().to("meta"), None, 2)


def test_decoding_after_a_memory_reads_no_value_of_the_device() -> None:
    m = build(translator("layers", "none").spec).eval().to("meta")
    on_meta(m, m.encode(torch.zeros(2, 4, dtype=torch.long, device="meta")), 2)
