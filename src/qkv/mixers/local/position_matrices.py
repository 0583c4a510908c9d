"""Mixers whose weights are matrices over positions: MLP-Mixer's, gMLP's and random mixing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.observable import Points, standard
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.mixers.whole_rows import each_row
from qkv.ops.linear.choose import linear
from qkv.spec.mixers import position_matrices as spec
from qkv.spec.register import implements
from qkv.state.store import new_store
from qkv.system.errors import UserError

_NEAR_ZERO = 1e-3
"""Initial standard deviation of the row sums of gMLP's matrix, small so that its gate is near 1."""


class PositionMatrices(Branch):
    """Base class of mixers with weights for N positions, (B, n, D) -> (B, n, D), n <= N. Bidirectional, stateless."""

    causal = False
    rewindable = False

    def __init__(self, part: spec.PositionMatrices, width: int):
        """Create the branch. Raises ``UserError`` if the number of positions is unknown."""
        super().__init__(part, width)
        if part.length is None:
            raise UserError(f"the length of {part.kind!r} is unknown outside of a model; set length")
        self.length = part.length

    def mixed(self, x: Tensor, real: Tensor | None, context: Context) -> Tensor:
        """Mix whole rows x (R, n, E), which are 0 at padding; return (R, n, E')."""
        raise NotImplementedError

    def over_rows(self, x: Tensor, context: Context) -> Tensor:
        """Apply ``mixed`` to each row or packed document. Raises ``UserError`` for more than N positions."""

        def mix(rows: Tensor, real: Tensor | None) -> Tensor:
            self.check_length(rows.shape[1])
            return self.mixed(rows, real, context)

        return each_row(x, context, mix, self.spec.kind)

    def check_length(self, count: int) -> None:
        """Raise ``UserError`` if a row of ``count`` positions has more than N."""
        if count > self.length:
            raise UserError(
                f"{count} positions are more than the {self.length} for which {self.spec.kind!r} has "
                "weights; shorten the input, or train with a larger model.context_length"
            )


class TriangularMatrices(PositionMatrices):
    """Base class of mixers with a matrix W (N, N) over positions, lower triangular if causal.

    State, if causal: the inputs of W, E features per position, stored in two halves as keys and values of a KV cache.
    """

    def __init__(self, part: spec.TriangularMatrices, width: int, features: int):
        """Create the branch. features: number E of features of an input of W."""
        super().__init__(part, width)
        self.causal = self.rewindable = part.causal
        self.halves = features - features // 2, features // 2

    def table(self) -> tuple[Tensor, Tensor | None]:
        """Return W (N, N) and the bias of each position (N), or None."""
        raise NotImplementedError

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        return new_store(batch, 1, self.halves, self.like().detach(), capacity) if self.causal else ()

    def along_rows(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        """Apply W to x (B, N, E) of whole rows or, with a state, of positions that follow earlier positions.

        Raises ``UserError`` for more than N positions.
        """
        if state is None or not self.causal:
            return self.over_rows(x, context), state
        arrival = context.arrival
        assert arrival is not None
        self.check_length(arrival.end)
        first, second = (half[:, None] for half in x.split(self.halves, -1))
        seen = state.append(first, second, arrival)
        query, key = arrival.positions.clamp(max=self.length - 1)[:, :, None], seen.positions[:, None]
        weight, bias = self.table()
        weight = weight[query, key.clamp(min=0)].masked_fill((key > query) | (key < 0), 0.0).to(x.dtype)
        y = torch.cat([weight @ half[:, 0].to(x.dtype) for half in (seen.keys, seen.values)], -1)
        return y if bias is None else y + bias[query], state

    def mixed(self, x: Tensor, real: Tensor | None, context: Context) -> Tensor:
        n, (weight, bias) = x.shape[1], self.table()
        if n < self.length:
            weight, bias = weight[:n, :n], None if bias is None else bias[:n]
        return over_positions(x, weight.tril() if self.causal else weight, bias)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * length * sum(self.halves) * self.like().element_size() if self.causal else 0


def over_positions(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute y_i = Σ_j W_ij x_j + b_i: x (R, n, E), W (m, N), b (m) -> (R, m, E).

    The first n columns of W are used.
    """
    used = weight if weight.shape[1] == x.shape[1] else weight[:, : x.shape[1]]
    return linear(x.transpose(1, 2), used.to(x.dtype), bias).transpose(1, 2)


@implements(spec.TokenMLP)
class TokenMLP(PositionMatrices):
    """Token-mixing MLP: y = W2 φ(W1 x + b1) + b2 over positions (MLP-Mixer, Tolstikhin et al. 2021).

    x (B, N, D) ─ transpose ─ up: N -> F ─ φ ─ down: F -> N ─ transpose ─ (B, N, D)
    """

    def __init__(self, part: spec.TokenMLP, width: int):
        super().__init__(part, width)
        hidden = part.hidden_at(width)
        self.up, self.down = Linear(self.length, hidden), Linear(hidden, self.length)
        self.activation = ACTIVATIONS[part.activation]

    def points(self) -> Points:
        return {"activation": "features over positions after the activation function, of each row (R, D, F)"}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        return self.over_rows(x, context), state

    def mixed(self, x: Tensor, real: Tensor | None, context: Context) -> Tensor:
        n = x.shape[1]
        whole = x if n == self.length else F.pad(x, (0, 0, 0, self.length - n))
        hidden = self.activation(self.up(whole.transpose(1, 2)))
        hidden = self.offer(context.tap, "activation", hidden)
        return self.down(hidden).transpose(1, 2)[:, :n]

    def ending(self) -> nn.Module:
        return self.down


@implements(spec.GMLP)
class GMLP(TriangularMatrices):
    """gMLP block: y = V [u ⊙ (W norm(v) + b)], [u, v] = φ(U x) (Liu et al. 2021).

        x (B, N, D) ─ up ─ φ ─┬ u (B, N, F / 2) ──────────────────────────┐
                              └ v (B, N, F / 2) ─ norm ─ W over positions ─ ⊙ ─ down ─ (B, N, D)

    W (N, N) is initially near 0 and b (N) is 1. State, if causal: norm(v) of all positions, F / 2 features each.
    """

    def __init__(self, part: spec.GMLP, width: int):
        half = part.hidden_at(width) // 2
        super().__init__(part, width, half)
        self.up, self.down = Linear(width, 2 * half), Linear(half, width)
        self.norm, self.activation = build_norm(part.norm, half), ACTIVATIONS[part.activation]
        self.weight = nn.Parameter(torch.randn(self.length, self.length) * (_NEAR_ZERO * self.length**-0.5))
        self.bias = nn.Parameter(torch.ones(self.length))

    def layouts(self) -> Layouts:
        half = self.down.in_features
        return {"up": matrix(value=half, gate=half), "weight": WHOLE}

    def points(self) -> Points:
        return {"gate": "factor W norm(v) + b (B, N, F / 2)", **standard("activation")}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        u, v = self.activation(self.up(x)).chunk(2, -1)
        gate, state = self.along_rows(self.norm(v, context), context, state)
        mixed = u * self.offer(context.tap, "gate", gate)
        return self.down(self.offer(context.tap, "activation", mixed)), state

    def table(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, self.bias

    def ending(self) -> nn.Module:
        return self.down


@implements(spec.RandomMixing)
class RandomMixing(TriangularMatrices):
    """Random mixing: y_i = Σ_j R_ij x_j, R (N, N) random, its rows sum to 1, not trained (Yu et al. 2022).

    State, if causal: all inputs, D features each.
    """

    matrix: Tensor

    def __init__(self, part: spec.RandomMixing, width: int):
        super().__init__(part, width, width)
        drawn = torch.rand(self.length, self.length)
        if part.causal:
            later = torch.ones_like(drawn, dtype=torch.bool).triu(1)
            drawn = drawn.masked_fill(later, -torch.inf)
        self.register_buffer("matrix", drawn.softmax(-1))

    def layouts(self) -> Layouts:
        return {"matrix": WHOLE}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        return self.along_rows(x, context, state)

    def table(self) -> tuple[Tensor, Tensor | None]:
        return self.matrix, None

    def like(self) -> Tensor:
        return self.matrix
