"""Whatever a model is called with: the right answer, or one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.stacks import SEVEN, VOCABULARY, ids, model
from torch import Tensor

from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Latents, Model, Queries, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import Axial
from qkv.system.errors import UserError

TEXT = Text(vocab_size=VOCABULARY)
MODELS: dict[str, Model] = {
    "decoder": model(Block(branches=SEVEN)),
    "encoder": model(Block(branches=(Attention(mask=Full()), FeedForward()))),
    "encoder-decoder": model(
        Block(branches=(Attention(), CrossAttention(), FeedForward())), encoder=Encoder(frontend=TEXT)
    ),
    "latents": model(Block(branches=(CrossAttention(),)), latents=Latents(count=3), queries=Queries()),
}
LONG = torch.long


def built(name: str) -> Transformer:
    return build(MODELS[name]).eval()


def call(m: Transformer, x: Signal | Tensor, memory: Memory | None = None) -> Tensor:
    """One call without a state; a memory of as many rows, where the model reads one."""
    if m.encoder is not None and memory is None:
        values = Signal.of(x).values
        memory = m.encode(ids(values.shape[0] if values.dim() else 1, 4))
    return m(x, memory=memory)[0]


@pytest.mark.parametrize("name", MODELS)
def test_no_rows_have_no_answers(name: str) -> None:
    m, none = built(name), torch.zeros(0, 4, dtype=LONG)
    for lengths in (None, torch.zeros(0, dtype=LONG)):
        assert call(m, Signal(none, lengths=lengths)).shape == (0, 4, VOCABULARY)


@pytest.mark.parametrize("capacity", [None, 4])
def test_no_rows_have_a_state(capacity: int | None) -> None:
    m = built("decoder")
    y, state = m(Signal(torch.zeros(0, 4, dtype=LONG), torch.zeros(0, dtype=LONG)), m.init_state(0, capacity))
    assert y.shape == (0, 4, VOCABULARY)
    assert state is not None
    assert state.positions == ()


WRONG_LENGTHS: dict[str, tuple[Any, str]] = {
    "too long": ([5, 6], "lengths hold 6; allowed: 0 to 5"),
    "negative": ([5, -1], "lengths hold -1; allowed: 0 to 5"),
    "one for two rows": ([5], r"lengths have the shape \(1,\); give one for each of the 2 rows, \(2,\)"),
    "a table": ([[5, 5]], r"lengths have the shape \(1, 2\)"),
    "fractions": ([5.0, 1.0], "lengths are float32, and they count positions"),
}


@pytest.mark.parametrize(("lengths", "sentence"), WRONG_LENGTHS.values(), ids=WRONG_LENGTHS)
@pytest.mark.parametrize("name", MODELS)
def test_lengths_are_a_count_for_each_row(name: str, lengths: Any, sentence: str) -> None:
    m, x = built(name), ids(2, 5)
    with pytest.raises(UserError, match=sentence):
        call(m, Signal(x, lengths=torch.tensor(lengths)))
    if m.encoder is not None:
        with pytest.raises(UserError, match=sentence):
            m.encode(Signal(x, lengths=torch.tensor(lengths)))
    if m.spec.decodes:
        state = m.init_state(2, memory=m.encode(x) if m.encoder else None)
        with pytest.raises(UserError, match=sentence):
            m(Signal(x, torch.tensor(lengths)), state)


@pytest.mark.parametrize("name", MODELS)
def test_lengths_of_32_bits_are_read(name: str) -> None:
    m, x, lengths = built(name), ids(2, 5), torch.tensor([5, 2])
    assert torch.equal(call(m, Signal(x.int(), lengths=lengths.int())), call(m, Signal(x, lengths=lengths)))


WRONG_IDS: dict[str, tuple[Any, str]] = {
    "beyond the vocabulary": ([[0, VOCABULARY]], "the id 13 is outside of the vocabulary; ids are 0 to 12"),
    "negative": ([[0, -1]], "the id -1 is outside of the vocabulary"),
    "many, one beyond": ([[0] * 20] * 19 + [[VOCABULARY] * 20], "the id 13 is outside"),
    "fractions": ([[0.0, 1.0]], "ids are float32, and they index tokens"),
    "truths": ([[True]], "ids are bool"),
    "one row": ([0, 1], r"ids have the shape \(2,\); .* such as ids\[None\] for a single row"),
    "three axes": ([[[0, 1]]], r"ids have the shape \(1, 1, 2\)"),
    "no axis": (1, r"ids have the shape \(\)"),
}


@pytest.mark.parametrize(("x", "sentence"), WRONG_IDS.values(), ids=WRONG_IDS)
@pytest.mark.parametrize("name", MODELS)
def test_ids_are_rows_of_tokens(name: str, x: Any, sentence: str) -> None:
    m, given = built(name), torch.tensor(x)
    with pytest.raises(UserError, match=sentence):
        call(m, given)
    if m.encoder is not None:
        with pytest.raises(UserError, match=sentence):
            m.encode(given)
    if m.spec.decodes and m.encoder is None:
        with pytest.raises(UserError, match=sentence):
            m(given, m.init_state(len(x) if isinstance(x, list) else 1))


def test_a_query_is_an_id_below_the_vocabulary() -> None:
    m = build(model(Block(), frontend=TEXT.changed(query=True))).eval()
    assert call(m, torch.tensor([[-1, 3]])).shape == (1, 2, VOCABULARY)
    with pytest.raises(UserError, match="the id -2 is outside of the vocabulary; ids are -1 to 12"):
        call(m, torch.tensor([[-2, 3]]))


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder"])
def test_a_state_is_of_the_rows_of_the_ids(name: str) -> None:
    m, x = built(name), ids(2, 5)
    for rows in (1, 3):
        state = m.init_state(rows, memory=m.encode(ids(rows, 4)) if m.encoder else None)
        with pytest.raises(UserError, match=f"the state and the input have different numbers of rows: {rows} and 2"):
            m(x, state)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_memory_is_of_the_rows_of_the_ids(rows: int) -> None:
    m = built("encoder-decoder")
    memory = m.encode(ids(rows, 4))
    with pytest.raises(UserError, match=f"the memory and the input have different numbers of rows: {rows} and 2"):
        call(m, ids(2, 5), memory=memory)
    with pytest.raises(UserError, match=f"the memory and the state have different numbers of rows: {rows} and 2"):
        m.init_state(2, memory=memory)


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [([1, 1, 1], r"\(3,\)"), ([1], r"\(1,\)"), ([1.0, 1.0], "float32"), ([-1, 2], "lengths hold -1")],
)
def test_a_state_goes_back_in_its_own_rows(lengths: list[float], sentence: str) -> None:
    m = build(model(Block())).eval()
    _, state = m(ids(2, 5), m.init_state(2))
    assert state is not None
    with pytest.raises(UserError, match=sentence):
        m.rewind(state, torch.tensor(lengths))


@pytest.mark.parametrize("frontend", [TEXT, TEXT.changed(positions=Axial(shape=(4, 8)))])
@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_a_packed_row_may_be_longer_than_a_table_whose_positions_restart(name: str, frontend: Text) -> None:
    m, x = build(MODELS[name].changed(frontend=frontend)).eval(), ids(1, 70)
    segments = (torch.arange(70) // 30)[None]
    y = call(m, Signal(x, segments=segments))
    for first in (0, 30, 60):
        torch.testing.assert_close(y[:, first : first + 30], call(m, x[:, first : first + 30]))
    with pytest.raises(UserError, match="40 positions are more than the 32"):
        call(m, Signal(x, segments=(torch.arange(70) // 40)[None]))
    padded = call(m, Signal(x, segments=(torch.arange(70) // 20).clamp(max=1)[None], lengths=torch.tensor([45])))
    torch.testing.assert_close(padded[:, :20], call(m, x[:, :20]))


@pytest.mark.parametrize("name", ["decoder", "encoder"])
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"segments": torch.zeros(1, 5, dtype=LONG)}, r"segments have the shape \(1, 5\); give \(2, 5\)"),
        ({"positions": torch.zeros(5, dtype=LONG)}, r"positions have the shape \(5,\); give \(2, 5\) or \(1, 5\)"),
        ({"positions": torch.tensor([[0, 1, 2, 3, -4]])}, "the position -4 is before the first, 0"),
        ({"visible": torch.ones(2, 5, 4, dtype=torch.bool)}, r"visible have the shape \(2, 5, 4\); give \(2, 5, 5\)"),
        ({"prefix": torch.tensor([1])}, r"prefix lengths have the shape \(1,\)"),
        ({"prefix": torch.tensor([1, 6])}, "prefix lengths hold 6; allowed: 0 to 5"),
    ],
)
def test_what_is_said_of_positions_is_of_these_positions(name: str, given: dict[str, Tensor], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call(built(name), Signal(ids(2, 5), **given))


def test_everything_lies_where_the_weights_lie() -> None:
    m, x = built("decoder"), ids(2, 5)
    with pytest.raises(UserError, match="ids are on meta and the model on cpu"):
        call(m, x.to("meta"))
    with pytest.raises(UserError, match="lengths are on meta and the model on cpu"):
        call(m, Signal(x, lengths=torch.tensor([1, 2], device="meta")))
    with pytest.raises(UserError, match="segments are on meta and the model on cpu"):
        call(m, Signal(x, segments=x.to("meta")))


def test_values_on_another_device_are_not_waited_for() -> None:
    """Ids of a device whose values are not at hand are looked up as they are: reading would wait for the device."""
    m = built("encoder").to("meta")
    assert m(Signal(torch.full((2, 5), 99, device="meta"), lengths=torch.tensor([7, -1], device="meta")))[0].shape == (
        2,
        5,
        VOCABULARY,
    )
