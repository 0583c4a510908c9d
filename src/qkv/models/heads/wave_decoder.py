"""Head of neural codecs: quantizer, and convolutional decoder to a waveform."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.sound.waves import (
    LOUDNESS,
    TransposedWaveConvolution,
    WaveConvolution,
    WaveLayers,
    decoder_layers,
)
from qkv.models.heads.head import Head
from qkv.models.heads.quantizers import Coded, build_quantizer
from qkv.models.stack.layered import Layered
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import Problem, SpecError
from qkv.spec.register import implements
from qkv.spec.signals.codecs import DecoderBlocks, SeaNet, WaveDecoder
from qkv.system.errors import UserError


class ReconstructedWave(NamedTuple):
    """Decoded waveform (B, N · hop), and the codes that it was decoded from."""

    samples: Tensor
    codes: Coded


def _check(part: WaveDecoder, width: int) -> None:
    """Raise ``UserError`` if the decoder of a part does not fit vectors of ``width`` features."""
    wrong = part.decoder.block_problems(width)
    if part.decoder.reads_memory:
        wrong = [Problem(("blocks",), "the decoder of a codec has no memory to read; leave such branches out"), *wrong]
    if wrong:
        raise SpecError([problem.under("model", "head", "decoder") for problem in wrong])
    if width % part.groups:
        raise UserError(f"model.head.groups is {part.groups}, but it should divide the width, {width}")


class _DecoderStack(Layered):
    """Blocks over quantised vectors (B, N, D), one position each."""

    def __init__(self, part: DecoderBlocks, width: int):
        super().__init__()
        self.lay(part, width, "head.stack.blocks")

    def forward(self, x: Tensor) -> Tensor:
        context = Context(torch.arange(x.shape[1], device=x.device)[None])
        return self.norm(self.last(x, context), context)


def _resampling(
    part: WaveDecoder, net: SeaNet, width: int
) -> tuple[WaveConvolution | None, TransposedWaveConvolution | None]:
    """Build the convolutions around the quantizer of a part with a stride."""
    if part.stride == 1:
        return None, None
    plain, sizes = net.changed(norm="none"), (width, width)
    down = WaveConvolution(plain.changed(padding="replicate"), sizes, 2 * part.stride, part.stride, bias=False)
    return down, TransposedWaveConvolution(plain, sizes, part.stride, part.groups, bias=False)


@implements(WaveDecoder)
class WaveDecoderHead(Head):
    """Quantizer and decoder: x (B, N, D) -> codes (B, N, K) -> waveform (B, N · hop)."""

    def __init__(self, part: WaveDecoder, width: int, table: object):
        super().__init__()
        if part.network is None:
            raise UserError("model.head.network is not set: set it, or use the front end 'wave_encoder'")
        _check(part, width)
        self.part, self.hop = part, part.stride * part.network.hop
        self.num_outputs = self.hop
        self.down, self.up = _resampling(part, part.network, width)
        self.quantizer = build_quantizer(part.quantizer, width)
        self.stack = _DecoderStack(part.decoder, width) if part.decoder.blocks else None
        self.network = WaveLayers(decoder_layers(part.network, width))

    def initialise(self, std: float) -> None:
        """Initialise the convolutions to keep the variance, down to a waveform of the usual loudness; the quantizer."""
        self.quantizer.initialise()
        for each in (self.down, self.up):
            if each is not None:
                each.initialise()
        self.network.initialise(last=LOUDNESS)

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
        """Return the vectors z (B, ⌈N / stride⌉, D) that are quantised, of vectors x (B, N, D)."""
        return x if self.down is None else self.down(x.mT).mT

    def count(self, positions: Tensor) -> Tensor:
        """Return the numbers of codes of rows of ``positions`` vectors."""
        return (positions + self.part.stride - 1) // self.part.stride

    def samples(self, ids: Tensor) -> Tensor:
        """Decode codes ``ids`` (B, N, n) of the first n codebooks to a waveform (B, N · hop)."""
        return self.decoded(self.quantizer.vectors(ids))

    def decoded(self, q: Tensor) -> Tensor:
        """Decode quantised vectors q (B, N, D) to a waveform (B, N · hop)."""
        x = q.to(next(self.network.parameters()).dtype)
        x = x if self.up is None else self.up(x.mT).mT
        x = x if self.stack is None else self.stack(x)
        y = at_least_single(self.network(x.mT)[:, 0])
        return y.tanh() if self.part.bounded else y

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, length * self.hop, generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Absolute error Σ |y - target|; ``smoothing`` is ignored, because targets are numbers."""
        return (at_least_single(outputs) - targets).abs().sum()
