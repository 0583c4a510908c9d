"""Front end that merges token ids and other named inputs into one sequence."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from qkv.frontends.frontend import Frontend, build_frontend
from qkv.frontends.text import TextFrontend
from qkv.layers.context import Context
from qkv.layers.signal import Signal, placeholder
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.joined import Joined
from qkv.system.errors import UserError


@implements(Joined)
class JoinedFrontend(TextFrontend):
    """Front end for token ids (B, N) and other inputs, whose values replace placeholder ids -> vectors (B, N, D).

        ids           5  9  -1  -1  -1  7           x_i = E[id]  where id >= 0
        inputs              one value               x_i = vectors of the input's front end, in order, at ids < 0

    Then types, positions in the row, norm and dropout follow as for text. Each row of an input's signal is one value.
    Values are in the order of their placeholders: row by row, from left to right.
    """

    part: Joined

    def __init__(self, part: Joined, stack: Stack, width: int, table: nn.Parameter | None = None):
        super().__init__(part, stack, width, table)
        vector_width = part.vector_width(part.width or width)
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

    def embedded(self, signal: Signal, context: Context) -> Tensor:
        if signal.inputs is None:
            return super().embedded(signal, context)
        ids = signal.values
        x = super().embedded(replace(signal, values=ids.clamp(min=0)), context)
        unknown = next((name for name in signal.inputs if name not in self.inputs), None)
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
