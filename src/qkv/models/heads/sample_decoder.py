"""Base class of the heads of neural codecs: quantizer, blocks, and a decoder to samples."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.models.heads.head import Head
from qkv.models.heads.quantizers import Coded, build_quantizer
from qkv.models.stack.layered import Layered
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import Problem, SpecError
from qkv.spec.signals.codecs import DecoderBlocks, SampleDecoder


class ReconstructedWave(NamedTuple):
    """Decoded waveform (B, N · hop), and the codes that it was decoded from."""

    samples: Tensor
    codes: Coded


class _DecoderStack(Layered):
    """Blocks over quantised vectors (B, N, D), one position each."""

    def __init__(self, part: DecoderBlocks, width: int):
        super().__init__()
        self.lay(part, width, "head.stack.blocks")

    def forward(self, x: Tensor) -> Tensor:
        context = Context(torch.arange(x.shape[1], device=x.device)[None])
        return self.norm(self.last(x, context), context)


class SampleDecoderHead(Head):
    """Base class of heads of neural codecs: x (B, N, D) -> codes (B, N, K) -> waveform (B, N · hop).

    exact: True if no code depends on silence behind its row, so that rows of all lengths are coded together.
    lookahead: number of samples at the end that later codes change; None if they may change all.
    """

    part: SampleDecoder
    exact: bool = False
    lookahead: int | None = None

    def __init__(self, part: SampleDecoder, width: int, hop: int):
        super().__init__()
        wrong = part.decoder.block_problems(width)
        if part.decoder.reads_memory:
            wrong = [
                Problem(("blocks",), "the decoder of a codec has no memory to read; leave such branches out"),
                *wrong,
            ]
        if wrong:
            raise SpecError([problem.under("model", "head", "decoder") for problem in wrong])
        self.part, self.hop, self.num_outputs = part, hop, hop
        self.quantizer = build_quantizer(part.quantizer, width)
        self.stack = _DecoderStack(part.decoder, width) if part.decoder.blocks else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.reconstructed(x).samples

    def reconstructed(self, x: Tensor, codebooks: int | None = None) -> ReconstructedWave:
        """Quantise and decode vectors x (B, N, D), with the first ``codebooks`` codebooks; see ``Quantizer``."""
        codes = self.quantizer(self.latents(x), codebooks)
        return ReconstructedWave(self.decoded(codes.q), codes)

    def ids(self, x: Tensor, codebooks: int | None = None) -> Tensor:
        """Return the codes (B, N, n) of vectors x (B, N, D)."""
        return self.quantizer(self.latents(x), codebooks).ids

    def latents(self, x: Tensor) -> Tensor:
        """Return the vectors z that are quantised, of vectors x (B, N, D); by default x."""
        return x

    def count(self, positions: Tensor) -> Tensor:
        """Return the numbers of codes of rows of ``positions`` vectors; by default as many."""
        return positions

    def samples(self, ids: Tensor) -> Tensor:
        """Decode codes ``ids`` (B, N, n) of the first n codebooks to a waveform (B, N · hop)."""
        return self.decoded(self.quantizer.vectors(ids))

    @abstractmethod
    def decoded(self, q: Tensor) -> Tensor:
        """Decode quantised vectors q (B, N, D) to a waveform (B, N · hop)."""

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, length * self.hop, generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Absolute error Σ |y - target|; ``smoothing`` is ignored, because targets are numbers."""
        return (at_least_single(outputs) - targets).abs().sum()
