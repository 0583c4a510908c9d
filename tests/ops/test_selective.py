"""The selective scan: a loop over positions, the state of Mamba-2 as a limit, documents, padding, pieces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.ops.matrix_state import reference
from qkv.ops.matrix_state.selective import selective_scan


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(count: int, features: int = 3, size: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, steps, b and c of two rows."""
    x, step = drawn(2, count, features), drawn(2, count, features, seed=1).exp()
    return x, step, drawn(2, count, size, seed=2), drawn(2, count, size, seed=3)


def looped(
    scanned: tuple[Tensor, Tensor, Tensor, Tensor], rate: Tensor, state: Tensor, starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    x, step, b, c = scanned
    outs = []
    for i in range(x.shape[1]):
        if starts is not None:
            state = state * ~starts[:, i, None, None]
        state = (-step[:, i, :, None] * rate).exp() * state + (step * x)[:, i, :, None] * b[:, i, None]
        outs.append((state * c[:, i, None]).sum(-1))
    return torch.stack(outs, 1), state


@pytest.mark.parametrize("count", [1, 2, 5, 16, 17])
@pytest.mark.parametrize("packed", [False, True])
def test_it_equals_a_loop_over_positions(count: int, packed: bool) -> None:
    scanned, rate, state = inputs(count), drawn(3, 2, seed=4).exp(), drawn(2, 3, 2, seed=5)
    starts = torch.arange(count) % 4 == torch.tensor([[0], [2]]) if packed else None
    out, last = selective_scan(scanned, rate, state, starts=starts)
    expected, end = looped(scanned, rate, state, starts)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(last, end)


def test_padding_changes_no_state() -> None:
    scanned, rate, state = inputs(7), drawn(3, 2, seed=4).exp(), drawn(2, 3, 2, seed=5)
    valid = torch.arange(7) < torch.tensor([[7], [4]])
    _, last = selective_scan(scanned, rate, state, valid)
    _, short = looped(tuple(each[1:, :4] for each in scanned), rate, state[1:], None)  # type: ignore[arg-type]
    assert last is not None
    torch.testing.assert_close(last[1:], short)


def test_equal_rates_and_steps_give_the_state_of_mamba_2() -> None:
    x, step, b, c = inputs(9)
    step, rate = step[..., :1].expand_as(step), torch.full((3, 2), 0.7, dtype=torch.float64)
    out, _ = selective_scan((x, step, b, c), rate, None)
    values, log_decay = (step * x)[:, None], -0.7 * step[..., 0][:, None]
    expected, _ = reference.decayed(c[:, None], b[:, None], values, log_decay, torch.zeros(2, 1, 2, 3).double())
    torch.testing.assert_close(out, expected[:, 0])
