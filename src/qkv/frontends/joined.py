"""Front end that merges token ids and other named inputs into one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from qkv.frontends.frontend import Frontend, Past, build_frontend
from qkv.frontends.text import TextFrontend
from qkv.layers.context import Context, Memories
from qkv.layers.features import WIDE
from qkv.layers.signal import Signal, placeholder
from qkv.layers.tap import Tap
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.joined import Joined
from qkv.state.arrival import Counts
from qkv.system.errors import UserError


def walk_places(ids: Sequence[int], cells: Sequence[tuple[int, ...]], begin: int, axes: int) -> tuple[Tensor, int]:
    """Return (positions (N, A) of a row on A axes, the next one), the first of which is ``begin``.

    cells: sizes of the grid of each value, by the number of its input; it has the last axes, and 1 on those before.
    """
    pieces, at = [torch.zeros(0, axes, dtype=torch.long)], 0
    while at < len(ids):
        sizes = cells[(-1 - ids[at]) % len(cells)] if ids[at] < 0 else ()
        if sizes:
            every = (*(1,) * (axes - len(sizes)), *sizes)
            steps = torch.meshgrid(*map(torch.arange, every), indexing="ij")
            piece, further = torch.stack(steps, -1).flatten(0, -2), max(sizes)
        else:
            end = at + 1
            while end < len(ids) and not (ids[end] < 0 and cells[(-1 - ids[end]) % len(cells)]):
                end += 1
            piece, further = torch.arange(end - at)[:, None].expand(-1, axes), end - at
        pieces.append(piece + begin)
        at, begin = at + len(piece), begin + further
    return torch.cat(pieces), begin


@implements(Joined)
class JoinedFrontend(TextFrontend):
    """Front end for token ids (B, N) and other inputs, whose values replace placeholder ids -> vectors (B, N, D).

        ids           5  9  -1  -1  -1  7           x_i = E[id]  where id >= 0
        inputs              one value               x_i = vectors of the input's front end, in order, at ids < 0

    For rotations by several axes (``rope_axes``), a word has one position on all axes, and a picture the coordinates of
    its grid; see ``Context.places``.

    Then types, positions in the row, norm and dropout follow as for text. Each row of an input's signal is one value.
    Values are in the order of their placeholders: row by row, from left to right.
    """

    part: Joined

    def __init__(self, part: Joined, stack: Stack, width: int, table: nn.Parameter | None = None):
        super().__init__(part, stack, width, table)
        vector_width, self.place_axes = part.vector_width(part.width or width), stack.place_axes
        self.inputs = nn.ModuleDict(
            {
                name: build_frontend(stack.model_copy(update={"frontend": each}), vector_width)
                for name, each in part.inputs.items()
            }
        )

    def initialise(self, std: float) -> None:
        super().initialise(std)
        for frontend in self.inputs.values():
            assert isinstance(frontend, Frontend)
            frontend.initialise(std)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        """Create random ids, preceded by random values of those inputs that fit into ``length`` positions."""
        ids, inputs, begin = super().random(rows, length, generator).values, dict[str, Signal](), 0
        for index, (name, frontend) in enumerate(self.inputs.items()):
            assert isinstance(frontend, Frontend)
            share = max(1, (length - begin) // (2 * len(self.inputs)))
            signal = frontend.random(rows, share, generator)
            end = begin + frontend.count(signal)
            if end <= length:
                ids[:, begin:end] = placeholder(index, len(self.inputs))
                inputs[name], begin = signal, end
        return Signal(ids, inputs=inputs or None)

    def embed(
        self, signal: Signal, past: Past | None = None, tap: Tap | None = None, memories: Memories | None = None
    ) -> tuple[Tensor, Context]:
        x, context = super().embed(signal, past, tap, memories)
        return x, self._with_places(signal, context, past) if self.place_axes else context

    def _with_places(self, signal: Signal, context: Context, past: Past | None) -> Context:
        """Return the context with positions on several axes."""
        rows, device = signal.num_rows, signal.values.device
        before = Counts((0,) * rows) if past is None else past.positions
        behind = Counts((0,) * rows) if past is None or past.behind is None else past.behind
        if signal.inputs is None:
            if not any(behind):
                return context
            return replace(context, places=(context.positions - behind.tensor(device)[:, None])[..., None])
        if signal.positions is not None or signal.segments is not None:
            raise UserError("rows of words and pictures have their own positions on several axes; leave positions out")
        cells = [self._cells(name, signal.inputs.get(name)) for name in self.inputs]
        ids = signal.values.tolist()
        lengths = [len(row) for row in ids] if signal.lengths is None else signal.lengths.tolist()
        walked = [
            walk_places(row[:length], cells, first - back, self.place_axes)
            for row, length, first, back in zip(ids, lengths, before, behind, strict=True)
        ]
        places = pad_sequence([places for places, _ in walked], batch_first=True).to(device)
        places = functional.pad(places, (0, 0, 0, signal.values.shape[1] - places.shape[1]))
        after = Counts(a + b - c for a, b, (_, c) in zip(before, lengths, walked, strict=True))
        return replace(context, places=places, behind=after)

    def _cells(self, name: str, values: Signal | None) -> tuple[int, ...]:
        """Return the sizes of the grid of each value of an input; () for one whose positions are those of words."""
        frontend = self.inputs[name]
        assert isinstance(frontend, Frontend)
        return (values is not None and frontend.cells(values)) or ()

    def embedded(self, signal: Signal, context: Context) -> Tensor:
        if signal.inputs is None:
            return super().embedded(signal, context)
        ids = signal.values
        x = super().embedded(replace(signal, values=ids.clamp(min=0)), context)
        unknown = next((name for name in signal.inputs if name not in (*self.inputs, WIDE)), None)
        if unknown is not None:
            raise UserError(f"the model has no input {unknown!r}; it reads {', '.join(self.inputs)}")
        for index, name in enumerate(self.inputs):
            here = (ids < 0) & ((-1 - ids) % len(self.inputs) == index)
            vectors = self._vectors_of(name, signal.inputs.get(name), x)
            if not here.is_meta and int(here.sum()) != len(vectors):
                raise UserError(
                    f"rows have {int(here.sum())} placeholder ids of the input {name!r}, but its values have "
                    f"{len(vectors)} positions"
                )
            x = x.masked_scatter(here[..., None], vectors)
        return x

    def _vectors_of(self, name: str, values: Signal | None, x: Tensor) -> Tensor:
        """Embed all values of an input; return the vectors (M, D) of their M unpadded positions, in the dtype of x."""
        if values is None:
            return x.new_zeros(0, x.shape[-1])
        frontend = self.inputs[name]
        assert isinstance(frontend, Frontend)
        vectors, context = frontend.embed(values)
        if context.lengths is None:
            return vectors.flatten(0, 1).to(x.dtype)
        real = torch.arange(vectors.shape[1], device=x.device) < context.lengths[:, None]
        return vectors[real].to(x.dtype)
