"""Recurrent mixers: Elman RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Declared, Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Observable, Points
from qkv.layers.tap import Tap
from qkv.ops.recurrence.choose import recur
from qkv.ops.recurrence.reference import Memory
from qkv.ops.recurrence.reversal import gather_positions, reversal
from qkv.ops.recurrence.trace import GATES, Values, trace
from qkv.spec import branches as spec
from qkv.spec.register import implements


class Cell(Observable, Declared):
    """Weights of a recurrent cell of one direction.

    gates: number of input matrices (E, D) and of recurrent matrices (E, E).
    """

    def __init__(self, part: spec.Recurrent, width: int, hidden: int):
        super().__init__()
        self.kind, self.gate_names, self.leaves, self.hidden = part.kind, part.gate_names, part.leaves, hidden
        self.gates = len(self.gate_names)
        self.input_weight = nn.Parameter(torch.empty(self.gates * hidden, width))
        self.hidden_weight = nn.Parameter(torch.empty(self.gates * hidden, hidden))
        self.input_bias = nn.Parameter(torch.zeros(self.gates * hidden))
        self.hidden_bias = nn.Parameter(torch.zeros(self.gates * hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise input weights from N(0, 1/D) and recurrent matrices orthogonally, so that h keeps its norm.

        The forget gate bias of an LSTM is 1 (Gers et al. 2000; Jozefowicz et al. 2015).
        """
        nn.init.normal_(self.input_weight, std=self.input_weight.shape[1] ** -0.5)
        for gate in self.hidden_weight.data.chunk(self.gates):
            nn.init.orthogonal_(gate)
        if "forget" in self.gate_names:
            self.input_bias.data.split(self.hidden)[self.gate_names.index("forget")].fill_(1.0)

    def layouts(self) -> Layouts:
        gates = matrix(**dict.fromkeys(self.gate_names, self.hidden))
        return {"input_weight": gates, "hidden_weight": gates}

    def empty(self, batch: int) -> Memory:
        """Create the initial state of ``batch`` rows: zeros."""
        return tuple(self.hidden_weight.detach().new_zeros(batch, self.hidden) for _ in range(self.leaves))

    def points(self) -> Points:
        names = ", ".join(GATES.get(self.kind, ()))
        gates = {"gates": f"gates after the sigmoid (B, N, n, E): {names}"} if names else {}
        cell = {"cell": "cell state (B, N, E)"} if self.leaves > 1 else {}
        return {**gates, **cell, "state": "hidden state (B, N, E), in the order in which the cell reads the positions"}

    def forward(
        self, x: Tensor, state: Memory, starts: Tensor | None, lengths: Tensor | None, tap: Tap | None = None
    ) -> tuple[Tensor, Memory]:
        weights = (self.input_weight, self.hidden_weight, self.input_bias, self.hidden_bias)
        if tap is not None and x.shape[1]:
            run = partial(trace, self.kind, x, state, weights, starts, lengths)
            if fixed := self._fixed(tap, run):
                values, last = run(fixed)
                return values["state"], last
        return recur(self.kind, x, state, weights, starts, lengths)

    def _fixed(self, tap: Tap, run: Callable[[Values], tuple[Values, Memory]]) -> Values:
        """Offer the gates and states that ``run`` computes to the tap; return the replacements by point.

        Each value is computed with the replacements of the values before it.
        """
        fixed: Values = {}
        for point in self.points():
            value = self.offer_computed(tap, point, lambda point=point: run(fixed)[0][point])
            if value is not None:
                fixed[point] = value
        return fixed


@implements(spec.RNN)
@implements(spec.GRU)
@implements(spec.LSTM)
class Recurrent(Branch):
    """Recurrent unit y_i = V h_i + b with h_i = cell(x_i, h_{i-1}).

        x (B, N, D) ─┬─ cell, forward ──── h (B, N, E / 2) ─┐
                     └─ cell, backward ─── h (B, N, E / 2) ─┴─ output ─ (B, N, D)       direction "both"

    The backward cell runs from the last unpadded position to the first. A single direction has all E features. State
    (direction "forward" only): h (B, E), and c (B, E) for an LSTM. The other directions are stateless.
    """

    rewindable = False

    def __init__(self, part: spec.Recurrent, width: int):
        super().__init__(part, width)
        self.causal = part.causal
        self.hidden = part.hidden or width
        self.directions = ("forward", "backward") if part.direction == "both" else (part.direction,)
        self.cells = nn.ModuleList(Cell(part, width, self.hidden // len(self.directions)) for _ in self.directions)
        self.output = Linear(self.hidden, width)

    def assign_name(self, name: str) -> None:
        super().assign_name(name)
        for i, cell in enumerate(self.cells):
            cell.assign_name(f"{name}.cells.{i}")  # type: ignore[operator]

    def init_state(self, batch: int, capacity: int | None = None) -> Memory:
        return self.cells[0].empty(batch) if self.causal else ()  # type: ignore[operator]

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        if self.causal and state is not None:
            hs, last = self.cells[0](x, state, context.document_starts, context.lengths, context.tap)
            # A copy: a view of the last h would keep all of them in memory.
            return self.output(hs), tuple(t.clone() for t in last)
        sides = [self._directed(cell, name, x, context) for cell, name in zip(self.cells, self.directions, strict=True)]
        return self.output(sides[0] if len(sides) == 1 else torch.cat(sides, -1)), state

    def _directed(self, cell: nn.Module, direction: str, x: Tensor, context: Context) -> Tensor:
        """Compute the hidden states of one direction, (B, N, E), from an initial state of 0."""
        start = tuple(t.to(x.dtype) for t in cell.empty(x.shape[0]))  # type: ignore[operator]
        if direction == "forward":
            return cell(x, start, context.document_starts, None, context.tap)[0]
        index = context.once("reversed", lambda: reversal(x.shape[1], context.lengths, x.device))
        starts = (
            None
            if context.segments is None
            else replace(context, segments=gather_positions(context.segments, index)).document_starts
        )
        return gather_positions(cell(gather_positions(x, index), start, starts, None, context.tap)[0], index)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        if not self.causal:
            return 0
        return batch * self.cells[0].leaves * self.hidden * self.output.weight.element_size()  # type: ignore[operator]

    def ending(self) -> nn.Module:
        return self.output
