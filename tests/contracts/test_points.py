"""Points of every registered branch: each is read, and what stands in its place decides the output."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.contracts.samples import BIDIRECTIONAL, SAMPLES, describe
from tests.contracts.subjects import OneBranch
from torch import Tensor

from qkv.layers.observable import list_points
from qkv.layers.tap import Recorder, Tap, TapSequence
from qkv.lens.capture.edits import replace

PARTS = {describe(part): part for part in (*(part for parts in SAMPLES.values() for part in parts), *BIDIRECTIONAL)}
COUNT = 7
PASSES: dict[str, Callable[[OneBranch], Tensor]] = {
    "whole rows": lambda subject: subject.whole(subject.inputs(2, COUNT)),
    "padded rows": lambda subject: subject.whole(subject.inputs(2, COUNT), torch.tensor([COUNT, 4]))[:, :4],
    "packed rows": lambda subject: subject.whole(
        subject.inputs(2, COUNT), segments=torch.tensor([[0, 0, 1, 1, 1, 2, 2]] * 2)
    ),
    "with a state": lambda subject: decoded(subject),
    "rows of other lengths, with a state": lambda subject: decoded(subject, torch.tensor([3, 1])),
}


@cache
def subject_of(name: str) -> OneBranch:
    subject = OneBranch(PARTS[name])
    subject.module.assign_name("it")
    return subject


def decoded(subject: OneBranch, first: Tensor | None = None) -> Tensor:
    """Outputs of rows in pieces of 3, 1 and 3 positions; of the first, ``first`` of each row are real."""
    state, outs = subject.start(2), []
    for number, x in enumerate(subject.inputs(2, COUNT).split((3, 1, 3), 1)):
        y, state = subject.call(x, state, None if number else first)
        outs.append(y if number or first is None else y[:, :1])
    return torch.cat(outs, 1)


def with_tap(name: str, how: str, tap: Tap | None) -> Tensor:
    subject = subject_of(name)
    subject.tap = tap
    return PASSES[how](subject)


CASES = [
    (name, how)
    for name, part in PARTS.items()
    for how in ("packed rows", "rows of other lengths, with a state" if part.causal else "padded rows")
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_each_point_is_read_and_its_value_put_back_changes_nothing(name: str, how: str) -> None:
    expected, points = with_tap(name, how, None), list_points(subject_of(name).module)
    recorder = Recorder(*points)
    torch.testing.assert_close(with_tap(name, how, recorder), expected)
    assert {path for path, _ in recorder} == points.keys()
    back = TapSequence(*(replace(place, value.clone()) for place, value in recorder.records.items()))
    torch.testing.assert_close(with_tap(name, how, back), expected, rtol=1e-6, atol=1e-8)


IDLE: dict[str, tuple[str, ...]] = {
    "window(1)": ("q", "k", "scores"),  # a query that sees one key reads it, whatever the score
    "window=1, num_retrieved=1": ("scores",),
    "relative=alibi, top_k=1": ("scores",),
    "window=70, num_global=20": ("q", "k", "v"),  # all positions are global, with other projections
    "segment=1, num_basis=1": ("k", "scores"),  # a window of one key
    "num_heads=16, qk_norm=layer_norm, top_k=3": ("q",),  # the norm of one feature makes all keys equal
    "num_heads=2, head_dim=1, qk_norm=layer_norm": ("q",),
}
"""Points without effect on the output, in samples whose description has this text."""


@pytest.mark.parametrize("name", PARTS)
def test_another_value_at_a_point_changes_the_output(name: str) -> None:
    how = "with a state" if PARTS[name].causal else "whole rows"
    expected, idle = with_tap(name, how, None), set[str]()
    for path in list_points(subject_of(name).module):
        sizes = list[int]()
        other = replace(path, lambda value, sizes=sizes: drawn(value, sizes))
        if torch.allclose(with_tap(name, how, other), expected) and sum(sizes):
            idle.add(path.removeprefix("it."))
    assert idle == {point for text, points in IDLE.items() if text in name for point in points}


def drawn(value: Tensor, sizes: list[int]) -> Tensor:
    sizes.append(value.numel())
    return torch.randn(value.shape, generator=torch.Generator().manual_seed(5), dtype=value.dtype)


HELD: dict[str, Callable[[Any], Tensor]] = {
    "linear_attention": lambda state: state[0],
    "retention": lambda state: state,
    "mamba2": lambda state: state[1],
    "gated_delta": lambda state: state[1],
    "rnn": lambda state: state[0],
    "gru": lambda state: state[0],
    "lstm": lambda state: state[0],
}
"""The part of a decoding state that the point ``state`` shows."""
AXES = {kind: 1 if kind in ("rnn", "gru", "lstm") else 2 for kind in HELD}
"""The axis of the positions at that point."""


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if part.kind in HELD and part.causal])
def test_the_state_of_a_point_is_that_of_decoding(name: str) -> None:
    subject, held = subject_of(name), HELD[PARTS[name].kind]
    axis = AXES[PARTS[name].kind]
    subject.tap = recorder = Recorder("state")
    state, x = subject.start(2), subject.inputs(2, COUNT)
    for piece, lengths in ((x[:, :3], torch.tensor([3, 2])), (x[:, 3:], None)):
        _, state = subject.call(piece, state, lengths)
        values = list(recorder.records.values())[-1]
        torch.testing.assert_close(values.select(axis, -1), held(state.inner))
    first = next(iter(recorder.records.values()))
    torch.testing.assert_close(first.select(axis, 1)[1], first.select(axis, 2)[1], msg="padding changes no state")


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if part.kind in HELD and part.causal])
def test_what_follows_reads_a_state_put_in_its_place(name: str) -> None:
    """The state of another row, put in after its last position, makes the rest of the row that of the other."""
    subject, held = subject_of(name), HELD[PARTS[name].kind]
    x, y = subject.inputs(2, COUNT), subject.inputs(2, COUNT, seed=1)
    subject.tap = recorder = Recorder("state")
    _, state = subject.call(y[:, :3], subject.start(2))
    subject.tap = None
    expected = subject.call(x[:, 3:], state)[0]
    ((place, value),) = recorder.records.items()
    subject.tap = replace(place, value)
    _, state = subject.call(x[:, :3], subject.start(2))
    subject.tap = None
    torch.testing.assert_close(held(state.inner), value.select(AXES[PARTS[name].kind], -1))
    if PARTS[name].kind in ("retention", "rnn", "gru"):  # they remember nothing else
        torch.testing.assert_close(subject.call(x[:, 3:], state)[0], expected)
