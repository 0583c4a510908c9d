"""Recurrent units of a self-contained model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.interop.remote.pieces.common import PARTS, Part, Place

Memory = tuple[Tensor, ...]


def rnn_step(given: Tensor, held: Tensor, state: Memory) -> Memory:
    """One step of an RNN: h' = tanh(W x + U h) (Elman 1990); ``given`` = W x + b, ``held`` = U h + c."""
    return (torch.tanh(given + held),)


def gru_step(given: Tensor, held: Tensor, state: Memory) -> Memory:
    """One step of a GRU: h' = (1 - z) ⊙ n + z ⊙ h (Cho et al. 2014); ``given`` = W x + b and ``held`` = U h + c stack
    r, z, n.
    """
    (xr, xz, xn), (hr, hz, hn) = given.chunk(3, -1), held.chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    return ((1 - z) * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + z * state[0],)


def lstm_step(given: Tensor, held: Tensor, state: Memory) -> Memory:
    """One step of an LSTM: m' = f ⊙ m + i ⊙ g, h' = o ⊙ tanh(m') (Hochreiter & Schmidhuber 1997); ``given`` and
    ``held`` stack i, f, g, o.
    """
    i, f, g, o = (given + held).chunk(4, -1)
    memory = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory


STEPS = {"rnn": (rnn_step, 1, 1), "gru": (gru_step, 3, 1), "lstm": (lstm_step, 4, 2)}
"""(step function, number of matrices, number of state vectors) of each kind of recurrent unit."""


class Cell(nn.Module):
    """Weights and biases of a recurrent unit with ``gates`` gates."""

    def __init__(self, gates: int, width: int, hidden: int):
        super().__init__()
        self.input_weight = nn.Parameter(torch.zeros(gates * hidden, width))
        self.hidden_weight = nn.Parameter(torch.zeros(gates * hidden, hidden))
        self.input_bias = nn.Parameter(torch.zeros(gates * hidden))
        self.hidden_bias = nn.Parameter(torch.zeros(gates * hidden))


class Recurrent(nn.Module):
    """Recurrent layer h_i = step(x_i, h_{i-1}), then a linear map. Padding leaves h unchanged."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.step, gates, self.vectors = STEPS[part["kind"]]
        self.hidden = part["hidden"]
        self.cells = nn.ModuleList([Cell(gates, width, self.hidden)])
        self.output = nn.Linear(self.hidden, width)

    def forward(self, x: Tensor, place: Place) -> Tensor:
        cell: Any = self.cells[0]
        given, found = nn.functional.linear(x, cell.input_weight, cell.input_bias), []
        state: Memory = tuple(x.new_zeros(x.shape[0], self.hidden) for _ in range(self.vectors))
        for i in range(x.shape[1]):
            after = self.step(given[:, i], nn.functional.linear(state[0], cell.hidden_weight, cell.hidden_bias), state)
            if place.valid is not None:
                real = place.valid[:, i, None]
                after = tuple(torch.where(real, new, old) for new, old in zip(after, state, strict=True))
            state = after
            found.append(state[0])
        return self.output(torch.stack(found, 1))


PARTS.update(dict.fromkeys(("branch.rnn", "branch.gru", "branch.lstm"), Recurrent))
