"""Gates and states of recurrent cells at all positions, position by position; see ``reference`` for the equations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from qkv.ops.recurrence.reference import Memory, Weights

Values = dict[str, Tensor]
"""Values by name: ``gates`` (B, N, n, E), ``cell`` (B, N, E) and ``state`` h (B, N, E)."""
Step = Callable[[Tensor, Tensor, Memory, Values], Values]


def _rnn(inputs: Tensor, recurrent: Tensor, state: Memory, fixed: Values) -> Values:
    return {"state": fixed.get("state", (inputs + recurrent).tanh())}


def _gru(inputs: Tensor, recurrent: Tensor, state: Memory, fixed: Values) -> Values:
    (xr, xz, xn), (hr, hz, hn) = inputs.chunk(3, -1), recurrent.chunk(3, -1)
    gates = fixed.get("gates", torch.stack((xr + hr, xz + hz), 1).sigmoid())
    r, z = gates.unbind(1)
    n = (xn + r * hn).tanh()
    return {"gates": gates, "state": fixed.get("state", (1 - z) * n + z * state[0])}


def _lstm(inputs: Tensor, recurrent: Tensor, state: Memory, fixed: Values) -> Values:
    i, f, g, o = (inputs + recurrent).chunk(4, -1)
    gates = fixed.get("gates", torch.stack((i, f, o), 1).sigmoid())
    i, f, o = gates.unbind(1)
    cell = fixed.get("cell", f * state[1] + i * g.tanh())
    return {"gates": gates, "cell": cell, "state": fixed.get("state", o * cell.tanh())}


STEPS: dict[str, Step] = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}
GATES = {"gru": ("reset", "update"), "lstm": ("input", "forget", "output")}
"""Sigmoid gates of each kind of cell, in the order of ``gates``."""


def trace(
    kind: str,
    x: Tensor,
    state: Memory,
    weights: Weights,
    starts: Tensor | None,
    lengths: Tensor | None,
    fixed: Mapping[str, Tensor],
) -> tuple[Values, Memory]:
    """Return (values at all positions by name, state after each row's last unpadded position).

    fixed: values by name that are used at all positions instead of those computed there. x, state, weights, starts,
    lengths: see ``reference.recur``.
    """
    w, u, b, c = weights
    inputs, history = x @ w.t() + b, list[Values]()
    for i in range(x.shape[1]):
        if starts is not None:
            state = tuple(t.masked_fill(starts[:, i, None], 0.0) for t in state)
        now = {name: value[:, i] for name, value in fixed.items()}
        values = STEPS[kind](inputs[:, i], state[0] @ u.t() + c, state, now)
        after = tuple(values[name] for name in ("state", "cell") if name in values)
        if lengths is not None:
            real = (i < lengths)[:, None]
            after = tuple(torch.where(real, new, old) for new, old in zip(after, state, strict=True))
            values |= dict(zip(("state", "cell"), after, strict=False))
        history.append(values)
        state = after
    return {
        name: torch.stack([values[name] for values in history], 1) for name in (history[0] if history else ())
    }, state
