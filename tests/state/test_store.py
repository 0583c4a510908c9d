"""Stores that mixers share, against a dictionary from position to what was written there."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.state.arrival import Arrival, Counts
from qkv.state.store import Dense, Ring, View, new_store
from qkv.state.tail import extended

LIKE = torch.zeros(1, dtype=torch.float64)


def vectors(positions: Tensor) -> Tensor:
    """(B, N) -> (B, 2 heads, N, 3): values that say which row, head and position they are of."""
    row = torch.arange(positions.shape[0])[:, None, None, None]
    head, feature = torch.arange(2)[:, None, None], torch.arange(3)
    return (1000 * row + 100 * head + positions[:, None, :, None] + 0.25 * feature).double()


def arrivals(calls: list[tuple[int, list[int] | None]], batch: int) -> list[tuple[Arrival, Tensor]]:
    """Calls in order, each with its columns' positions (B, N); a call is its width and, if ragged, its lengths."""
    past, found = torch.zeros(batch, dtype=torch.long), []
    for width, ragged in calls:
        lengths = None if ragged is None else torch.tensor([min(n, width) for n in ragged[:batch]])
        found.append((Arrival(Counts.of(past), width, lengths), past[:, None] + torch.arange(width)))
        past = past + (width if lengths is None else lengths)
    return found


calls = st.lists(
    st.tuples(st.integers(0, 9), st.none() | st.lists(st.integers(0, 9), min_size=3, max_size=3)),
    min_size=1,
    max_size=6,
)


def seen(came: Arrival, width: int) -> list[int]:
    """Number of positions of each row after a call."""
    return (torch.tensor(came.past) + (width if came.lengths is None else came.lengths)).tolist()


def assert_holds(view: View, row: int, positions: list[int]) -> None:
    """Each of these positions is in one slot of the row, with its own key and value."""
    held = view.positions.expand(view.keys.shape[0], -1)[row].tolist()
    for position in positions:
        slot = held.index(position)
        assert held.count(position) == 1
        expected = vectors(torch.full((view.keys.shape[0], 1), position))[row, :, 0]
        assert torch.equal(view.keys[row, :, slot], expected)
        assert torch.equal(view.values[row, :, slot], -expected)


@settings(max_examples=60)
@given(calls=calls, batch=st.integers(1, 3), capacity=st.none() | st.just(60))
def test_position_p_stands_in_slot_p(
    calls: list[tuple[int, list[int] | None]], batch: int, capacity: int | None
) -> None:
    store = new_store(batch, 2, (3, 3), LIKE, capacity)
    for came, positions in arrivals(calls, batch):
        view = store.append(vectors(positions), -vectors(positions), came)
        counts = seen(came, positions.shape[1])
        assert view.in_place
        assert view.keys.shape[2] == max(counts) == came.end
        assert came.after.tolist() == counts
        for row, count in enumerate(counts):
            assert_holds(view, row, list(range(count)))


@settings(max_examples=120)
@given(calls=calls, batch=st.integers(1, 3), window=st.integers(1, 6), sinks=st.integers(0, 3))
def test_a_ring_shows_each_new_position_its_window_and_the_sinks(
    calls: list[tuple[int, list[int] | None]], batch: int, window: int, sinks: int
) -> None:
    store = new_store(batch, 2, (3, 3), LIKE, ring=(window, sinks))
    for came, positions in arrivals(calls, batch):
        view = store.append(vectors(positions), -vectors(positions), came)
        assert all(t.shape[2] <= window + sinks for t in store.tensors())
        for row, count in enumerate(seen(came, positions.shape[1])):
            new = [p for p in positions[row].tolist() if p < count]
            assert_holds(
                view, row, [p for p in range(count) if any(p <= q and (p < sinks or p > q - window) for q in new)]
            )


def test_slots_double_from_a_small_beginning_and_stop_at_the_limit() -> None:
    store, sizes = new_store(1, 1, (2, 2), LIKE), []
    for end in (1, 64, 65, 300, 301):
        store.append(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2), Arrival(Counts([end - 1]), 1))
        sizes.append(store.keys.shape[2])  # type: ignore[attr-defined]
    assert sizes == [64, 64, 128, 512, 512]
    for capacity, slots in ((None, 10), (5, 5), (500, 10)):
        assert {t.shape[2] for t in new_store(1, 1, (2, 2), LIKE, capacity, (8, 2)).tensors()} == {slots}


def test_what_was_written_survives_growth_and_the_new_room_is_empty() -> None:
    store = Dense(torch.zeros(1, 1, 64, 2), torch.zeros(1, 1, 64, 3))
    first = store.keys
    store.append(torch.ones(1, 1, 64, 2), torch.ones(1, 1, 64, 3), Arrival(Counts([0]), 64))
    assert store.keys is first
    store.append(torch.full((1, 1, 1, 2), 7.0), torch.full((1, 1, 1, 3), 7.0), Arrival(Counts([64]), 1))
    assert store.keys[0, 0, :, 0].tolist() == [1.0] * 64 + [7.0] + [0.0] * 63
    assert store.values.shape == (1, 1, 128, 3)


def test_a_narrower_store_takes_wider_vectors() -> None:
    """As under autocast the other way round: the store's precision decides."""
    store = Dense(*(torch.zeros(2, 1, 8, 3, dtype=torch.bfloat16) for _ in range(2)))
    for came in (Arrival(Counts([0, 0]), 2), Arrival(Counts([2, 2]), 2, torch.tensor([2, 1]))):
        store.append(torch.ones(2, 1, 2, 3), torch.ones(2, 1, 2, 3), came)
    assert store.keys.dtype == torch.bfloat16
    assert store.keys.sum((1, 2, 3)).tolist() == [12.0, 9.0]


def test_joined_stores_have_the_room_of_the_larger() -> None:
    small, large = (
        Ring(torch.full((rows, 1, slots, 2), float(rows)), torch.zeros(rows, 1, slots, 2), 6)
        for rows, slots in ((1, 2), (2, 6))
    )
    both = small.join(large)
    assert both.keys[..., 0].tolist() == [[[1.0] * 2 + [0.0] * 4], *[[[2.0] * 6]] * 2]
    assert (both.window, both.nbytes) == (6, 2 * 3 * 6 * 2 * 4)
    both.keys.zero_()
    assert float(large.keys.min()) == 2.0, "a join is a copy"


def test_counts_are_rows_of_integers() -> None:
    counts = Counts.of(torch.tensor([5, 7, 9]))
    assert counts.rows([2, 0, 0]) == (9, 5, 5)
    assert counts.overwrite([0, 1], [2, 2]) == (9, 9, 9)
    assert counts.join(Counts([1])).tensor().tolist() == [5, 7, 9, 1]
    assert isinstance(counts.rows([0]), Counts)


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
