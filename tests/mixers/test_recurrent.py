"""Recurrent branches of either direction against torch's modules, padded rows included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.mixers.modules import WIDTH, applied, built, some
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.mixers.registry import build_branch
from qkv.spec.branches import GRU, LSTM, RNN, Recurrent
from qkv.spec.errors import SpecError
from qkv.spec.model import Block, Model

MODULES: dict[type[Recurrent], type[nn.RNNBase]] = {RNN: nn.RNN, GRU: nn.GRU, LSTM: nn.LSTM}
NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def torch_unit(ours: Any, kind: type[Recurrent]) -> nn.RNNBase:
    unit = MODULES[kind](WIDTH, ours.cells[0].hidden, batch_first=True, bidirectional=len(ours.cells) == 2).double()
    weights = {
        name + end: p
        for cell, end in zip(ours.cells, ("", "_reverse"), strict=False)
        for name, p in zip(NAMES, cell.parameters(), strict=True)
    }
    unit.load_state_dict(weights)
    return unit


@pytest.mark.parametrize("direction", ["forward", "both"])
@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.kind)
def test_padded_rows_equal_torch_s_packed_ones_with_gradients(kind: type[Recurrent], direction: Any) -> None:
    ours, lengths = built(kind(direction=direction, hidden=8)), torch.tensor([7, 3, 1])
    theirs, real = torch_unit(ours, kind), torch.arange(7) < lengths[:, None]
    x, y = some(3).requires_grad_(), some(3).requires_grad_()
    packed, _ = theirs(pack_padded_sequence(y, lengths, batch_first=True))
    expected = ours.output(pad_packed_sequence(packed, batch_first=True)[0])
    seen = applied(ours, x, lengths)
    torch.testing.assert_close(seen[real], expected[real])
    seen[real].pow(2).sum().backward()
    expected[real].pow(2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    for cell, end in zip(ours.cells, ("", "_reverse"), strict=False):
        for name, p in zip(NAMES, cell.parameters(), strict=True):
            torch.testing.assert_close(p.grad, getattr(theirs, name + end).grad)


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.kind)
def test_backward_is_forward_on_the_reversed_row(kind: type[Recurrent]) -> None:
    forward, backward = (built(kind(direction=direction)) for direction in ("forward", "backward"))
    torch.testing.assert_close(applied(backward, some()), applied(forward, some().flip(1)).flip(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.kind)
def test_both_directions_serve_mixed_precision(kind: type[Recurrent], dtype: torch.dtype) -> None:
    branch, x, lengths = (
        built(kind(direction="both"), dtype=torch.float32),
        some(dtype=torch.float32),
        torch.tensor([7, 4]),
    )
    expected = applied(branch, x, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        seen = applied(branch, x.to(dtype), lengths)
    assert (seen.float() - expected).norm() < 0.03 * expected.norm()


def test_forget_gates_begin_open_and_all_other_biases_at_zero() -> None:
    cell: Any = build_branch(LSTM(hidden=5), WIDTH).cells[0]  # type: ignore[union-attr,index]
    total: Tensor = cell.input_bias + cell.hidden_bias
    assert total.tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10
    for gate in cell.hidden_weight.chunk(4):
        torch.testing.assert_close(gate @ gate.t(), torch.eye(5), atol=1e-5, rtol=0.0)


def test_hidden_features_that_cannot_be_halved_are_refused() -> None:
    with pytest.raises(SpecError, match="hidden: 7 hidden features cannot be split evenly into two directions"):
        GRU.parse({"direction": "both", "hidden": 7})
    with pytest.raises(SpecError, match="direction: 5 hidden features cannot be split evenly"):
        Model.parse({"width": 5, "blocks": [Block(branches=(RNN(direction="both"),))]})


@pytest.mark.parametrize("direction", ["backward", "both"])
def test_what_reads_backward_remembers_nothing(direction: Any) -> None:
    branch = built(LSTM(direction=direction))
    assert branch.init_state(2) == ()
    assert branch.state_bytes(100) == 0
    assert not branch.causal
