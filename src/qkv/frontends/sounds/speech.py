"""Front end of speech: characters and voices, then the codes of a neural codec."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.frontends.placed import PlacedFrontend
from qkv.layers.context import Context
from qkv.layers.layout import ROWS, Layouts
from qkv.layers.signal import Signal
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.speech import SpeechTokens
from qkv.system.errors import UserError


@implements(SpeechTokens)
class SpeechFrontend(PlacedFrontend):
    """Front end for ids (B, N, 1 + K) -> vectors (B, N, D): the symbol, and the codes of K codebooks, each plus 1.

    The id 0 stands for nothing, and adds nothing to the vector.
    """

    part: SpeechTokens

    def __init__(self, part: SpeechTokens, stack: Stack, width: int, table: object = None):
        if part.symbols is None or part.codebooks is None or part.codes is None:
            raise UserError(
                "model.frontend.symbols, codebooks and codes are not set: set them, or open the data, whose processor "
                "sets them"
            )
        super().__init__(part, stack, width)
        self.sizes = (part.symbols, *(part.codes,) * part.codebooks)
        # One table: the rows of the symbols, then those of each codebook.
        self.vectors = nn.Parameter(torch.zeros(sum(self.sizes), part.vector_width(width)))

    def layouts(self) -> Layouts:
        return {"vectors": ROWS}

    def initialise(self, std: float) -> None:
        """Initialise the embeddings from N(0, std²)."""
        nn.init.normal_(self.vectors, std=std)

    def check(self, signal: Signal) -> None:
        values = signal.values
        if values.dim() != 3 or values.shape[2] != len(self.sizes) or values.is_floating_point():
            shape, kind = tuple(values.shape), str(values.dtype).removeprefix("torch.")
            raise UserError(
                f"speech has the shape {shape} and the type {kind}, and the model reads ids (B, N, {len(self.sizes)}): "
                "a symbol, and a code of each codebook"
            )

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        columns = [torch.randint(size + 1, (rows, length), generator=generator) for size in self.sizes]
        return Signal(torch.stack(columns, -1))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        ids, first = signal.values, torch.tensor((0, *self.sizes[:-1]), device=signal.values.device).cumsum(0)
        present = (ids > 0)[..., None]
        vectors = nn.functional.embedding((ids - 1).clamp(min=0) + first, self.vectors)
        return self.placed((vectors * present).sum(2), context)
