"""Recurrent cells: equations against torch's modules, the chosen path against the equations, rows read backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.clock import forget_choices
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from torch import Tensor

from qkv.ops.recurrence import choose, reference
from qkv.ops.recurrence.reversal import gather_positions, reversal

WIDTH, HIDDEN = 5, 4
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
MODULES = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
Recur = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]


def tensors(cell: str, length: int, dtype: torch.dtype = torch.float64, batch: int = 3) -> list[Tensor]:
    """x (B, N, D), the state's vectors (B, E), then the four weights."""
    generator, rows = torch.Generator().manual_seed(length), GATES[cell] * HIDDEN
    state = [(batch, HIDDEN)] * (2 if cell == "lstm" else 1)
    shapes = [(batch, length, WIDTH), *state, (rows, WIDTH), (rows, HIDDEN), (rows,), (rows,)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def joined(hs: Tensor, state: tuple[Tensor, ...]) -> Tensor:
    """All h and the last state side by side, (B, N + 1 or 2, E)."""
    return torch.cat((hs, *(t[:, None] for t in state)), 1)


def ours(
    recur: Recur, cell: str, x: Tensor, *rest: Tensor, lengths: Tensor | None = None, starts: Tensor | None = None
) -> Tensor:
    return joined(*recur(cell, x, rest[:-4], rest[-4:], starts, lengths))


def module(cell: str, x: Tensor, *rest: Tensor) -> Tensor:
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    unit = MODULES[cell](WIDTH, HIDDEN, batch_first=True, dtype=x.dtype)
    state = tuple(t[None] for t in rest[:-4])
    hs, last = torch.func.functional_call(
        unit, dict(zip(names, rest[-4:], strict=True)), (x, state if cell == "lstm" else state[0])
    )
    return joined(hs, tuple(t[0] for t in (last if cell == "lstm" else (last,))))


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("recur", [reference.recur, choose.recur], ids=["equations", "chosen"])
@pytest.mark.parametrize("cell", GATES)
def test_every_path_equals_torch_with_all_gradients(cell: str, recur: Recur, length: int) -> None:
    given_ = tensors(cell, length)
    assert_all_same(
        outputs_and_gradients(partial(ours, recur, cell), given_), outputs_and_gradients(partial(module, cell), given_)
    )


@given(
    cell=st.sampled_from(list(GATES)),
    length=st.integers(0, 12),
    batch=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_chosen_path_equals_the_equations(cell: str, length: int, batch: int, dtype: torch.dtype) -> None:
    given_ = tensors(cell, length, dtype, batch)
    assert_same(ours(choose.recur, cell, *given_), ours(reference.recur, cell, *(t.double() for t in given_)))


@given(cell=st.sampled_from(list(GATES)), lengths=st.lists(st.integers(0, 6), min_size=3, max_size=3))
def test_the_last_state_is_that_of_each_row_alone(cell: str, lengths: list[int]) -> None:
    """Rows of no position keep the state that they came with."""
    x, *rest = tensors(cell, 6)
    seen = ours(choose.recur, cell, x, *rest, lengths=torch.tensor(lengths))
    assert_same(seen[:, 6:], ours(reference.recur, cell, x, *rest, lengths=torch.tensor(lengths))[:, 6:])
    for row, length in enumerate(lengths):
        own = [t[row : row + 1] for t in (x[:, :length], *rest[:-4])]
        alone = ours(reference.recur, cell, *own, *rest[-4:])
        assert_same(seen[row : row + 1, :length], alone[:, :length])
        assert_same(seen[row : row + 1, 6:], alone[:, length:])


@given(cell=st.sampled_from(list(GATES)), lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_document_starts_from_nothing(cell: str, lengths: list[int]) -> None:
    """Packed, each document has the outputs that it has alone; the given state belongs to none of them."""
    x, *rest = tensors(cell, sum(lengths))
    firsts = [sum(lengths[:n]) for n in range(len(lengths))]
    starts = torch.zeros(3, sum(lengths), dtype=torch.bool)
    starts[:, firsts] = True
    packed = ours(choose.recur, cell, x, *rest, starts=starts)[:, : sum(lengths)]
    nothing = [torch.zeros_like(t) for t in rest[:-4]]
    alone = [module(cell, part, *nothing, *rest[-4:])[:, : part.shape[1]] for part in x.split(lengths, 1)]
    assert_same(packed, torch.cat(alone, 1).detach())


@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=4))
def test_rows_are_reversed_up_to_their_lengths_and_back(lengths: list[int]) -> None:
    rows = [list(range(7)) for _ in lengths]
    index = reversal(7, torch.tensor(lengths), torch.device("cpu"))
    expected = [row[:n][::-1] + row[n:] for row, n in zip(rows, lengths, strict=True)]
    assert gather_positions(torch.tensor(rows), index).tolist() == expected
    assert gather_positions(gather_positions(torch.tensor(rows), index), index).tolist() == rows


def test_rows_without_lengths_are_reversed_whole() -> None:
    x = torch.arange(12).view(2, 3, 2)
    assert torch.equal(gather_positions(x, reversal(3, None, x.device)), x.flip(1))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_forget_gate_far_open_keeps_what_it_holds(cell: str) -> None:
    """With nothing let in, an LSTM keeps its cells, and a GRU its h, for as long as one likes."""
    x, *rest = tensors(cell, 50)
    *state, w, u, b, c = rest
    w, u, c = w * 0, u * 0, c * 0
    sides = {"gru": [0.0, 50.0, 0.0], "lstm": [-50.0, 50.0, 0.0, 0.0]}[cell]
    b = torch.tensor(sides, dtype=b.dtype).repeat_interleave(HIDDEN)
    _, after = choose.recur(cell, x, tuple(state), (w, u, b, c))
    assert_same(after[-1], state[-1])


@pytest.mark.parametrize("form", ["autocast", "weights in bf16"])
@pytest.mark.parametrize("cell", GATES)
def test_a_cell_without_a_kernel_for_bf16_runs_in_fp32(monkeypatch: pytest.MonkeyPatch, cell: str, form: str) -> None:
    """oneDNN has no LSTM in bf16 for a processor without instructions for it."""

    def missing(*args: object) -> tuple[Tensor, tuple[Tensor, ...]]:
        raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive")

    forget_choices(monkeypatch)
    monkeypatch.setitem(choose.TWINS, "torch", missing)
    given_ = tensors(cell, 5, torch.float32)
    if form == "weights in bf16":
        given_ = [t.bfloat16() for t in given_]
    lengths = torch.tensor([5, 2, 0])
    expected = ours(reference.recur, cell, *(t.double() for t in given_), lengths=lengths)
    with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
        seen = outputs_and_gradients(partial(ours, choose.recur, cell, lengths=lengths), given_)
    assert seen[0].dtype == given_[0].dtype
    real = torch.cat((torch.arange(5) < lengths[:, None], torch.ones(3, 1 + (cell == "lstm"), dtype=torch.bool)), 1)
    tolerance = 1e-5 if form == "autocast" else 2e-2  # in fp32 throughout; outputs and state rounded to bf16
    torch.testing.assert_close(seen[0].double()[real], expected[real], atol=tolerance, rtol=tolerance)
