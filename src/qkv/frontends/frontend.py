"""Base class of front ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.frontends.border import check_rows, check_signal
from qkv.layers.context import Context, Memories, PositionGrid
from qkv.layers.graph import Graph
from qkv.layers.layout import Declared
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.spec.frontends import Frontend as FrontendSpec
from qkv.spec.model import Stack as StackSpec
from qkv.spec.register import implementation
from qkv.state.arrival import Arrival, Counts
from qkv.system.errors import UserError


class Past(NamedTuple):
    """Positions already held in a decoding state, from earlier calls.

    positions (B): number of positions.   limit (B): maximum number of positions of the state, 0 if it grows.   prefix
    (B): prefix length; None if no mask reads it.   behind (B): see ``Context.behind``; None: 0.
    """

    positions: Counts
    limit: Counts
    prefix: Counts | None
    behind: Counts | None = None


class Frontend(Declared):
    """Base class of front ends, the input layer of a model: signal -> vectors (B, N, D) and their context.

    Subclasses define ``forward(signal, context) -> x``, and ``count`` and ``lengths`` if positions differ from values
    (image patches). Only the front end interprets values; all later parts use x and the context.
    """

    axes: int = 1
    """Number of position axes. Only the front end reads several coordinates; blocks read the index in the row."""
    typed: bool = False
    """True if the front end, or a branch of its stack, reads token types."""
    limit: int | None
    """Maximum number of positions; None if unlimited."""
    limiting: str | None
    """Kind of the branch that sets ``limit``; None if a position table sets it, or if there is no limit."""
    table: nn.Parameter | None
    """Token embeddings (V, D), which a head or another stack may share; None without tokens."""

    def __init__(self, part: FrontendSpec, stack: StackSpec):
        super().__init__()
        self.part, self.limit = part, stack.position_limit
        branch, frontend_limit = stack.limiting_branch, part.limit(stack.context_length)
        self.limiting = None if branch is None or frontend_limit == self.limit else branch.kind
        self.guards: list[Callable[[], None]] = []
        """Functions called before each forward pass; each raises ``UserError`` if the model can no longer be used."""
        self.register_parameter("table", None)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    @property
    def vocab_size(self) -> int | None:
        """Vocabulary size V; None if the input is not tokens."""
        return None if self.table is None else self.table.shape[0]

    @abstractmethod
    def forward(self, signal: Signal, context: Context) -> Tensor:
        """Embed the values of a signal; return vectors (B, N, D)."""

    def initialise(self, std: float) -> None:
        """Initialise the learned tables from N(0, std²)."""

    def check(self, signal: Signal) -> None:
        """Raise ``UserError`` for values of an unsupported shape, precision or device."""

    def count(self, signal: Signal) -> int:
        """Return the number N of positions per row, such as tokens or image patches."""
        return signal.values.shape[1]

    def computed(self, signal: Signal) -> int:
        """Return the number of positions of all rows together, padding included."""
        return signal.num_rows * self.count(signal)

    def grid(self, signal: Signal) -> PositionGrid | None:
        """Return the grid on which positions lie, as for image patches; None for a sequence."""
        return None

    def cells(self, signal: Signal) -> tuple[int, ...] | None:
        """Return the sizes of the grid that each value of a signal takes in a row of several inputs; None: none."""
        grid = self.grid(signal)
        return None if grid is None or grid.leading else grid.sizes

    def graph(self, signal: Signal) -> Graph | None:
        """Return the edges between the positions, if they are nodes of graphs; None for other signals."""
        return None

    def spans(self, signal: Signal) -> list[tuple[int, int]] | None:
        """Return the first and last step of a time series, or value of a sound, at each position; None for others."""
        return None

    def lengths(self, signal: Signal) -> Tensor | None:
        """Return the number of unpadded positions of each row, (B); None if no row is padded."""
        return signal.lengths

    @abstractmethod
    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        """Create a signal of ``rows`` rows of ``length`` random values on the CPU, to measure speed and memory."""

    def embed(
        self, signal: Signal, past: Past | None = None, tap: Tap | None = None, memories: Memories | None = None
    ) -> tuple[Tensor, Context]:
        """Check and embed a signal; return (vectors (B, N, D), context). Raises ``UserError`` for unsupported input.

        ``past``: positions already in the decoding state; None for a call without a state, on whole rows.
        """
        self.call_guards()
        self.check(signal)
        check_signal(signal, self.count(signal), self.axes)
        context = self._whole(signal, tap, memories or {}) if past is None else self._following(signal, past, tap)
        return self(signal, context), context

    def call_guards(self) -> None:
        """Call all ``guards``, except while the model is compiled or exported."""
        if not torch.compiler.is_compiling():
            for guard in self.guards:
                guard()

    def _whole(self, signal: Signal, tap: Tap | None, memories: Memories) -> Context:
        """Build the context of a call without a decoding state, on whole rows."""
        for memory in memories.values():
            check_rows("the memory", memory.lengths.shape[0], "the input", signal.num_rows)
        count, lengths, positions = self.count(signal), self.lengths(signal), self._places(signal)
        explicit = positions is not None
        if positions is None:
            steps = torch.arange(count, device=signal.values.device)[None]
            positions = steps if signal.segments is None else _restarted(signal.segments)
        if explicit or (signal.segments is not None and self.limit is not None and count > self.limit):
            positions = self._placed(positions, lengths)
        else:
            self.fits(count)
        return Context(
            positions,
            lengths,
            signal.segments,
            tap=tap,
            prefix=signal.prefix,
            visible=signal.visible,
            memories=memories,
            types=signal.types,
            grid=self.grid(signal),
            graph=self.graph(signal),
        )

    def _places(self, signal: Signal) -> Tensor | None:
        return signal.positions if self.axes == 1 else None

    def _following(self, signal: Signal, past: Past, tap: Tap | None) -> Context:
        """Build the context of a call with a decoding state; the new positions follow ``past``."""
        wrong = next((name for name in _WITH_STATE if getattr(signal, name) is not None), None)
        if wrong:
            clause, instead = _WITH_STATE[wrong]
            raise UserError(f"{clause} cannot be combined with a decoding state; {instead}")
        check_rows("the state", len(past.positions), "the input", signal.num_rows)
        if self.graph(signal) is not None:
            raise UserError(
                "the edges of a graph cannot be combined with a decoding state; read the whole graph at once"
            )
        device, lengths = signal.values.device, self.lengths(signal)
        arrival = Arrival(past.positions, self.count(signal), lengths, device)
        self.admit(arrival, past.limit)
        positions = arrival.positions
        if lengths is not None and self.limit is not None:  # positions of padding may exceed the table
            positions = positions.clamp(max=self.limit - 1)
        prefix = past.prefix.tensor(device) if signal.prefix is None and past.prefix is not None else signal.prefix
        return Context(positions, lengths, tap=tap, prefix=prefix, types=signal.types, arrival=arrival)

    def _placed(self, positions: Tensor, lengths: Tensor | None) -> Tensor:
        """Check unpadded positions against the position limit and clamp padded ones to it; raises ``UserError``."""
        if self.limit is None or not positions.numel():
            return positions
        real = positions
        if lengths is not None:
            real = positions.masked_fill(
                torch.arange(positions.shape[1], device=positions.device) >= lengths[:, None], 0
            )
        if int(real.min()) < 0:
            raise UserError(f"the position {int(real.min())} is before the first, 0")
        self.fits(int(real.max()) + 1)
        return positions.clamp(0, self.limit - 1)

    def admit(self, arrival: Arrival, limits: Counts) -> None:
        """Raise ``UserError`` if new positions exceed the state's capacity or ``limit``. limits: see ``Past.limit``."""
        _check_room(limits, arrival.after)
        self.fits(arrival.end)

    def fits(self, end: int) -> None:
        """Raise ``UserError`` if the position table, or a branch, has weights for fewer than ``end`` positions."""
        if self.limit is not None and end > self.limit:
            if self.limiting is not None:
                raise UserError(
                    f"{end} positions are more than the {self.limit} for which {self.limiting!r} has weights; shorten "
                    "the input, or train with a larger model.context_length"
                )
            raise UserError(
                f"{end} positions are more than the {self.limit} that the learned position table holds "
                f"({self.part.limited_by}); shorten the input, or use positions without a maximum (sinusoidal, rope, "
                "alibi, none)"
            )


_WITH_STATE = {
    "segments": ("packed documents (segments)", "give each document a row of its own"),
    "positions": ("explicit positions", "the model counts positions itself"),
    "visible": ("a table of visible keys", "read the whole sequence at once"),
}
"""Fields of a signal that cannot be combined with a decoding state: (description, advice) for the message."""


def _check_room(limits: Counts, needed: Counts) -> None:
    """Raise ``UserError`` if a row needs more positions than its state has capacity for; 0: the state grows."""
    if any(limits):
        over = next(((limit, end) for limit, end in zip(limits, needed, strict=True) if 0 < limit < end), None)
        if over is not None:
            limit, end = over
            raise UserError(
                f"the state holds {limit} positions and {end} are needed; give init_state a larger capacity, or None"
            )


def _restarted(segments: Tensor) -> Tensor:
    """Compute positions (B, N) that restart at 0 in each document of a packed row."""
    steps = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return steps - torch.where(starts, steps, 0).cummax(1).values


def build_frontend(stack: StackSpec, width: int, table: Any | None = None) -> Frontend:
    """Build the front end of a stack of ``width`` features. ``table``: token embeddings shared with another
    front end.
    """
    return implementation(stack.frontend, "qkv.frontends")(stack.frontend, stack, width, table)
