"""The gated scan: a loop over positions, documents, padding, pieces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.ops.matrix_state.gated import gated_scan


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def looped(x: Tensor, log_decay: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    outs = []
    for i in range(x.shape[1]):
        if starts is not None:
            state = state * ~starts[:, i, None]
        state = log_decay[:, i].exp() * state + x[:, i]
        outs.append(state)
    return torch.stack(outs, 1), state


@pytest.mark.parametrize("count", [1, 2, 5, 16, 17])
@pytest.mark.parametrize("packed", [False, True])
def test_it_equals_a_loop_over_positions(count: int, packed: bool) -> None:
    x, log_decay, state = drawn(2, count, 3), -drawn(2, count, 3, seed=1).exp(), drawn(2, 3, seed=2)
    starts = torch.arange(count) % 4 == torch.tensor([[0], [2]]) if packed else None
    out, last = gated_scan(x, log_decay, state, starts=starts)
    expected, end = looped(x, log_decay, state, starts)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(last, end)


def test_padding_changes_no_state() -> None:
    x, log_decay, state = drawn(2, 7, 3), -drawn(2, 7, 3, seed=1).exp(), drawn(2, 3, seed=2)
    _, last = gated_scan(x, log_decay, state, torch.arange(7) < torch.tensor([[7], [4]]))
    _, short = looped(x[1:, :4], log_decay[1:, :4], state[1:], None)
    assert last is not None
    torch.testing.assert_close(last[1:], short)


def test_without_decay_it_sums() -> None:
    x = drawn(2, 9, 3)
    out, last = gated_scan(x, torch.zeros_like(x), None)
    torch.testing.assert_close(out, x.cumsum(1))
    assert last is None
