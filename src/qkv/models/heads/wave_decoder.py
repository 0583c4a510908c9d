"""Head of neural codecs: quantizer, and convolutional decoder to a waveform."""

from __future__ import annotations

from torch import Tensor

from qkv.layers.sound.waves import (
    LOUDNESS,
    TransposedWaveConvolution,
    WaveConvolution,
    WaveLayers,
    decoder_layers,
)
from qkv.models.heads.sample_decoder import SampleDecoderHead
from qkv.ops.at_least_single import at_least_single
from qkv.spec.register import implements
from qkv.spec.signals.codecs import SeaNet, WaveDecoder
from qkv.system.errors import UserError


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
class WaveDecoderHead(SampleDecoderHead):
    """Quantizer and convolutional decoder: x (B, N, D) -> codes (B, N, K) -> waveform (B, N · hop)."""

    part: WaveDecoder

    def __init__(self, part: WaveDecoder, width: int, table: object):
        if part.network is None:
            raise UserError("model.head.network is not set: set it, or use the front end 'wave_encoder'")
        if width % part.groups:
            raise UserError(f"model.head.groups is {part.groups}, but it should divide the width, {width}")
        super().__init__(part, width, part.stride * part.network.hop)
        self.down, self.up = _resampling(part, part.network, width)
        self.network = WaveLayers(decoder_layers(part.network, width))
        self.exact = part.network.exact and part.stride == 1
        self.lookahead = 0 if part.network.causal and part.decoder.causal else None

    def initialise(self, std: float) -> None:
        """Initialise the convolutions to keep the variance, down to a waveform of the usual loudness; the quantizer."""
        self.quantizer.initialise()
        for each in (self.down, self.up):
            if each is not None:
                each.initialise()
        self.network.initialise(last=LOUDNESS)

    def latents(self, x: Tensor) -> Tensor:
        """Return the vectors z (B, ⌈N / stride⌉, D) that are quantised, of vectors x (B, N, D)."""
        return x if self.down is None else self.down(x.mT).mT

    def count(self, positions: Tensor) -> Tensor:
        return (positions + self.part.stride - 1) // self.part.stride

    def decoded(self, q: Tensor) -> Tensor:
        x = q.to(next(self.network.parameters()).dtype)
        x = x if self.up is None else self.up(x.mT).mT
        x = x if self.stack is None else self.stack(x)
        y = at_least_single(self.network(x.mT)[:, 0])
        return y.tanh() if self.part.bounded else y
