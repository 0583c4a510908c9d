"""Reference implementations of recurrent cells.

rnn    h' = tanh(W x + b + U h + c)                                                              (Elman 1990)
gru    r = σ(W_r x + b_r + U_r h + c_r)     z = σ(W_z x + b_z + U_z h + c_z)                     (Cho et al. 2014)
       n = tanh(W_n x + b_n + r ⊙ (U_n h + c_n))     h' = (1 - z) ⊙ n + z ⊙ h
lstm   i, f, o = σ(W_* x + b_* + U_* h + c_*)     g = tanh(W_g x + b_g + U_g h + c_g)
       m' = f ⊙ m + i ⊙ g     h' = o ⊙ tanh(m')   (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000)

x (B, N, D)   h, m (B, E)   weights W (K E, D), U (K E, E), b (K E), c (K E)
K = 1; 3 in the order r, z, n; 4 in the order i, f, g, o.
The state is the tuple (h,), for an LSTM (h, m). The GRU's reset gate is applied after the product.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Weights = tuple[Tensor, Tensor, Tensor, Tensor]
Memory = tuple[Tensor, ...]


def rnn(from_input: Tensor, from_state: Tensor, state: Memory) -> Memory:
    """Compute one step of an Elman cell; return the new state (h,).

    ``from_input``: W x + b; ``from_state``: U h + c; each (B, K E).
    """
    return ((from_input + from_state).tanh(),)


def gru(from_input: Tensor, from_state: Tensor, state: Memory) -> Memory:
    """Compute one step of a GRU; return the new state (h,). See ``rnn`` for the arguments."""
    (h,) = state
    (xr, xz, xn), (hr, hz, hn) = from_input.chunk(3, -1), from_state.chunk(3, -1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return ((1 - z) * n + z * h,)


def lstm(from_input: Tensor, from_state: Tensor, state: Memory) -> Memory:
    """Compute one step of an LSTM; return the new state (h, m). See ``rnn`` for the arguments."""
    i, f, g, o = (from_input + from_state).chunk(4, -1)
    m = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * m.tanh(), m


STEPS: dict[str, Callable[[Tensor, Tensor, Memory], Memory]] = {"rnn": rnn, "gru": gru, "lstm": lstm}


def recur(
    cell: str, x: Tensor, state: Memory, weights: Weights, starts: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Memory]:
    """Run "rnn", "gru" or "lstm" over x; return (h at all positions, (B, N, E), state after the last unpadded ones).

    starts (B, N): True where a new document begins and the state is reset to 0.   lengths (B): unpadded positions; None
    for all.
    """
    w, u, b, c = weights
    from_input, hs, step = x @ w.t() + b, [], STEPS[cell]
    for i in range(x.shape[1]):
        if starts is not None:
            state = tuple(t.masked_fill(starts[:, i, None], 0.0) for t in state)
        after = step(from_input[:, i], state[0] @ u.t() + c, state)
        if lengths is not None:
            real = (i < lengths)[:, None]
            after = tuple(torch.where(real, new, old) for new, old in zip(after, state, strict=True))
        hs.append(after[0])
        state = after
    return (torch.stack(hs, 1), state) if hs else (x.new_zeros(x.shape[0], 0, u.shape[1]), state)
