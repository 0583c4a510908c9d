"""What a model refuses, and the sentence in which it says so."""

from __future__ import annotations

import pytest
import torch
from tests.models.stacks import ids, model

from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.branches import GRU, Attention, FeedForward
from qkv.spec.heads import LanguageModelHead
from qkv.spec.masks import Full
from qkv.spec.mixers.linear_attention import LinearAttention
from qkv.spec.model import Block, Text
from qkv.spec.parts import NoPositions
from qkv.system.errors import UserError


def test_input_longer_than_the_learned_table() -> None:
    built = build(model(context_length=8))
    sentence = (
        r"9 positions are more than the 8 that the learned position table holds \(model\.context_length\); "
        r"shorten the input, or use positions without a maximum \(sinusoidal, rope, alibi, none\)"
    )
    built(ids(2, 8))
    with pytest.raises(UserError, match=sentence):
        built(ids(2, 9))
    _, state = built(ids(2, 8), built.init_state(2))
    with pytest.raises(UserError, match=sentence):
        built(ids(2, 1), state)


@torch.no_grad()
def test_padding_may_stand_past_the_end_of_the_table() -> None:
    built = build(model(context_length=8)).eval()
    _, state = built(ids(2, 6), built.init_state(2))
    logits, state = built(Signal(ids(2, 4, seed=1), lengths=torch.tensor([2, 1])), state)
    assert bool(logits.isfinite().all())
    assert state is not None
    assert state.positions.tolist() == [8, 7]


def test_concatenated_positions_with_a_tied_head() -> None:
    text = Text(vocab_size=7, join="concatenate")
    with pytest.raises(UserError, match=r"^head\.tied: .* 16, but they have 8 features"):
        model().changed(frontend=text)
    assert build(model(frontend=text, head=LanguageModelHead(tied=False))).frontend.table.shape == (7, 8)


def test_decoding_with_a_branch_that_sees_later_positions() -> None:
    built = build(model(Block(), Block(branches=(FeedForward(), Attention(mask=Full())))))
    assert built(ids())[0].shape == (2, 9, 13)
    with pytest.raises(
        UserError, match=r"model\.blocks\.1\.branches\.1: this branch sees later positions, so the model cannot decode"
    ):
        built.init_state(2)


@pytest.mark.parametrize(("branch", "kind"), [(GRU(), "gru"), (LinearAttention(), "linear_attention")])
def test_going_back_in_a_state_that_cannot(branch: GRU | LinearAttention, kind: str) -> None:
    built = build(model(Block(branches=(Attention(), branch))))
    assert not built.rewindable
    _, state = built(ids(), built.init_state(2))
    assert state is not None
    with pytest.raises(UserError, match=rf"the state of '{kind}' cannot be truncated; keep a copy of it"):
        built.rewind(state, torch.tensor([1, 1]))


def test_more_positions_than_the_capacity() -> None:
    built = build(model(frontend=Text(vocab_size=13, positions=NoPositions())))
    _, state = built(ids(2, 5), built.init_state(2, capacity=6))
    assert state is not None
    with pytest.raises(
        UserError, match="the state holds 6 positions and 7 are needed; give init_state a larger capacity, or None"
    ):
        built(ids(2, 2), state)


@pytest.mark.parametrize("capacity", [0, -3])
def test_a_capacity_for_nothing(capacity: int) -> None:
    with pytest.raises(
        UserError,
        match=f"a state cannot have a capacity of {capacity} positions; allowed: at least 1, or None to let it grow",
    ):
        build(model()).init_state(1, capacity)


def test_documents_and_a_state_together() -> None:
    built = build(model())
    with pytest.raises(
        UserError,
        match=r"packed documents \(segments\) cannot be combined with a decoding state; give each document a row of",
    ):
        built(Signal(ids(), segments=torch.zeros(2, 9, dtype=torch.long)), built.init_state(2))


def test_a_vocabulary_that_nobody_knows() -> None:
    with pytest.raises(
        UserError,
        match=r"model\.frontend\.vocab_size is not set: set it, or build the model together with its tokenizer",
    ):
        build(model(frontend=Text()))
