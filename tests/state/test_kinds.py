"""The memories that mixers share, against a dictionary from position to what was written there."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.state.kinds import Arrival, KeyValue, append, append_ring, extended, key_value, ring_positions

LIKE = torch.zeros(1, dtype=torch.float64)


def vectors(positions: Tensor) -> Tensor:
    """(B, N) -> (B, 2 heads, N, 3): values that say which row, head and position they are of."""
    row = torch.arange(positions.shape[0])[:, None, None, None]
    head, feature = torch.arange(2)[:, None, None], torch.arange(3)
    return (1000 * row + 100 * head + positions[:, None, :, None] + 0.25 * feature).double()


def arrivals(calls: list[tuple[int, list[int] | None]], batch: int) -> list[tuple[Arrival, Tensor]]:
    """The calls in order, each with the positions of its columns (B, N); a call is its width and, if ragged, its lengths."""
    past, found = torch.zeros(batch, dtype=torch.long), []
    for width, ragged in calls:
        lengths = None if ragged is None else torch.tensor([min(n, width) for n in ragged[:batch]])
        came = torch.full_like(past, width) if lengths is None else lengths
        level = lengths is None and bool((past == past[0]).all())
        positions = past[:, None] + torch.arange(width)
        found.append((Arrival(past, lengths, int(past[0]) if level else None, int((past + came).max())), positions))
        past = past + came
    return found


calls = st.lists(st.tuples(st.integers(0, 9), st.none() | st.lists(st.integers(0, 9), min_size=3, max_size=3)), min_size=1, max_size=6)


def seen(came: Arrival, width: int) -> list[int]:
    """How many positions each row has had after a call."""
    return (came.past + (width if came.lengths is None else came.lengths)).tolist()


@settings(max_examples=60)
@given(calls=calls, batch=st.integers(1, 3), capacity=st.none() | st.just(60))
def test_position_p_stands_in_slot_p(calls: list[tuple[int, list[int] | None]], batch: int, capacity: int | None) -> None:
    state = key_value(batch, 2, (3, 3), LIKE, (capacity, None))
    for came, positions in arrivals(calls, batch):
        state = append(state, vectors(positions), -vectors(positions), came)
        for row, count in enumerate(seen(came, positions.shape[1])):
            expected = vectors(torch.arange(count).expand(batch, -1))[row]
            assert torch.equal(state.keys[row, :, :count], expected)
            assert torch.equal(state.values[row, :, :count], -expected)


@settings(max_examples=120)
@given(calls=calls, batch=st.integers(1, 3), window=st.integers(1, 6), sinks=st.integers(0, 3))
def test_a_ring_holds_the_last_of_the_window_and_the_sinks(
    calls: list[tuple[int, list[int] | None]], batch: int, window: int, sinks: int
) -> None:
    state = key_value(batch, 2, (3, 3), LIKE, (None, window + sinks))
    for came, positions in arrivals(calls, batch):
        state = append_ring(state, vectors(positions), -vectors(positions), came, (window, sinks))
        counts = seen(came, positions.shape[1])
        held = ring_positions(torch.tensor(counts), window + sinks, (window, sinks))[:, : state.keys.shape[2]]
        assert state.keys.shape[2] <= window + sinks
        for row, count in enumerate(counts):
            kept = [p for p in held[row].tolist() if p >= 0]
            needed = [p for p in range(count) if p < sinks or p >= count - window]
            assert set(needed) <= set(kept) <= set(range(count))
            assert len(kept) == len(set(kept))
            for slot, position in enumerate(held[row].tolist()):
                if position >= 0:
                    expected = vectors(torch.tensor([[position]] * batch))[row, :, 0]
                    assert torch.equal(state.keys[row, :, slot], expected)
                    assert torch.equal(state.values[row, :, slot], -expected)


def test_slots_double_from_a_small_beginning_and_stop_at_the_limit() -> None:
    state, sizes = key_value(1, 1, (2, 2), LIKE, (None, None)), []
    for end in (1, 64, 65, 300, 301):
        position = torch.tensor([[end - 1]])
        state = append(state, torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2), Arrival(position[0], None, end - 1, end))
        sizes.append(state.keys.shape[2])
    assert sizes == [64, 64, 128, 512, 512]
    assert key_value(1, 1, (2, 2), LIKE, (None, 10)).keys.shape[2] == 10
    assert key_value(1, 1, (2, 2), LIKE, (5, 10)).keys.shape[2] == 5
    assert key_value(1, 1, (2, 2), LIKE, (500, 100)).keys.shape[2] == 100


def test_what_was_written_survives_growth_and_the_new_room_is_empty() -> None:
    state = key_value(1, 1, (2, 3), LIKE, (None, None))
    first = state.keys
    state = append(state, torch.ones(1, 1, 64, 2), torch.ones(1, 1, 64, 3), Arrival(torch.tensor([0]), None, 0, 64))
    assert state.keys is first
    state = append(state, torch.full((1, 1, 1, 2), 7.0), torch.full((1, 1, 1, 3), 7.0), Arrival(torch.tensor([64]), None, 64, 65))
    assert state.keys[0, 0, :, 0].tolist() == [1.0] * 64 + [7.0] + [0.0] * 63
    assert state.values.shape == (1, 1, 128, 3)


def test_a_narrower_memory_takes_wider_vectors() -> None:
    """As under autocast the other way round: the memory's precision decides."""
    state = KeyValue(*(torch.zeros(2, 1, 8, 3, dtype=torch.bfloat16) for _ in range(2)))
    for came in (Arrival(torch.tensor([0, 0]), None, 0, 2), Arrival(torch.tensor([2, 2]), torch.tensor([2, 1]), None, 4)):
        state = append(state, torch.ones(2, 1, 2, 3), torch.ones(2, 1, 2, 3), came)
    assert state.keys.dtype == torch.bfloat16
    assert state.keys.sum((1, 2, 3)).tolist() == [12.0, 9.0]


@given(
    tail=st.integers(0, 4),
    length=st.integers(0, 6),
    ragged=st.none() | st.lists(st.integers(0, 6), min_size=2, max_size=2),
)
def test_a_tail_is_the_last_real_inputs(tail: int, length: int, ragged: list[int] | None) -> None:
    before = -torch.arange(1, 2 * tail + 1).double().view(2, tail, 1).flip(1)
    x = torch.arange(1, 2 * length + 1).double().view(2, length, 1)
    lengths = None if ragged is None else torch.tensor([min(n, length) for n in ragged])
    window, after = extended(before, x, lengths)
    assert torch.equal(window, torch.cat((before, x), 1))
    for row in range(2):
        real = [*before[row, :, 0].tolist(), *x[row, : length if lengths is None else int(lengths[row]), 0].tolist()]
        assert after[row, :, 0].tolist() == real[len(real) - tail :]
    if after.numel():
        assert after.untyped_storage().nbytes() == after.numel() * 8, "a view would keep the whole sequence"
