"""Specs of neural codecs: encoder of waveforms, quantizer, and decoder, by convolutions or by spectra."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from qkv.spec.base import LARGEST, Seq, Spec
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import WIDEST, Frontend
from qkv.spec.heads import Head
from qkv.spec.models.blocks import MOST_LAYERS, Block, Layered
from qkv.spec.models.quantizers import Quantizer, ScalarQuantizer
from qkv.spec.parts import NoNorm, Norm
from qkv.spec.processors import Processor
from qkv.spec.signals.sound import Rate, Waveform

LONGEST_KERNEL, LONGEST_HOP = 1024, 1 << 20
_Kernel = Annotated[int, Field(gt=0, le=LONGEST_KERNEL)]


class SeaNet(Spec):
    """Convolutional network between waveforms and vectors, one vector per Π strides samples (SEANet, Défossez et al.
    2022).

    The encoder: a convolution of ``channels`` features; for each stride s, residual units and a convolution of 2 s taps
    with that stride, which doubles the features; an LSTM, if there is one; a last convolution. The decoder is its
    mirror image, with transposed convolutions. A residual unit: x + f(x), or W x + f(x) with ``shortcut``, f: a dilated
    convolution to fewer features (÷ ``narrowing``), and one of 1 tap back; an activation precedes each convolution.
    """

    channels: int = Field(default=16, gt=0, le=WIDEST, description="features of the first convolution")
    strides: Seq[Annotated[int, Field(gt=0, le=LONGEST_KERNEL // 2)]] = Field(
        default=(2, 4, 4, 5), min_length=1, max_length=16, description="strides of the encoder, from the waveform on"
    )
    kernel: _Kernel = Field(default=7, description="taps of the first convolution")
    last_kernel: _Kernel = Field(default=7, description="taps of the last convolution")
    unit_kernel: _Kernel = Field(default=3, description="taps of the dilated convolution of a residual unit")
    dilations: Seq[Annotated[int, Field(gt=0, le=LONGEST_KERNEL)]] = Field(
        default=(1,), max_length=16, description="dilation of each residual unit before a stride"
    )
    narrowing: int = Field(default=2, gt=0, le=WIDEST, description="divisor of the features inside of a residual unit")
    shortcut: bool = Field(default=False, description="linear map of a residual unit's input, in place of x")
    activation: Literal["elu", "snake"] = Field(
        default="elu", description="snake: x + sin²(a x) / a with a learned for each feature (Ziyin et al. 2020)"
    )
    lstm: int = Field(default=0, ge=0, le=16, description="layers of the LSTM, whose input is added to its output")
    causal: bool = Field(
        default=True,
        description="no output reads later samples than those of its own vector; false: padding on both sides",
    )
    padding: Literal["zeros", "reflect", "replicate"] = Field(default="zeros", description="samples before the first")
    ends: Literal["wave", "each"] = Field(
        default="wave",
        description="wave: silence completes the last vector's samples, and without causal a transposed convolution of "
        "an odd stride leaves out its last output (DAC); each: each convolution completes its last output",
    )
    norm: Literal["weight", "group", "none"] = Field(
        default="weight", description="weight: w = g v / |v| per feature; group: group norm of one group (48 kHz)"
    )

    @property
    def hop(self) -> int:
        """Samples of each vector."""
        return prod(self.strides)

    @property
    def exact(self) -> bool:
        """True if no vector depends on the padding of its row in a batch."""
        return self.causal and self.padding == "zeros" and self.ends == "wave" and self.norm != "group"

    @property
    def widest(self) -> int:
        """Features before the last convolution of the encoder."""
        return self.channels * 2 ** len(self.strides)

    def problems(self) -> list[Problem]:
        if self.hop > LONGEST_HOP:
            sentence = f"their product is {self.hop}, more than {LONGEST_HOP} samples of a vector"
            return [Problem(("strides",), f"{sentence}; give fewer or smaller ones")]
        if self.widest > WIDEST:
            sentence = f"{len(self.strides)} doublings of {self.channels} features are more than {WIDEST}"
            return [Problem(("channels",), f"{sentence}; give fewer channels or strides")]
        if self.narrowing > self.channels:
            sentence = f"{self.narrowing} given, but a residual unit has {self.channels} features"
            return [Problem(("narrowing",), f"{sentence}; give at most as many")]
        return []


class SampleEncoder(Frontend):
    """Base class of front ends that map each ``hop`` samples of a waveform to a vector."""

    processor: ClassVar[type[Processor] | None] = Waveform
    rate: Rate | None = Field(default=None, description="samples per second; default: the processor's")

    @property
    def own_processor(self) -> Processor | None:
        return None if self.rate is None else Waveform(rate=self.rate, normalise=False)

    @property
    def reads_whole_rows(self) -> bool:
        return True

    def fitted(self, processor: Processor) -> Self:
        assert isinstance(processor, Waveform)
        if self.rate not in (None, processor.rate):
            sentence = f"{self.rate} Hz given, but the processor has {processor.rate} Hz; leave it out"
            raise SpecError([Problem(("rate",), sentence)])
        return self.changed(rate=processor.rate)

    def unsized(self) -> Self:
        return self.changed(rate=None)


class WaveEncoder(SampleEncoder, kind="wave_encoder"):
    """Encoder of a neural codec: waveform (B, T) -> vectors (B, ⌈T / hop⌉, D) by convolutions with strides."""

    network: SeaNet = SeaNet()

    @property
    def hop(self) -> int:
        """Samples of each vector."""
        return self.network.hop


_Frames = Annotated[int, Field(gt=0, le=LONGEST_KERNEL, description="windows of a vector")]


def _frame_problems(hop: int, frames: int) -> list[Problem]:
    """Return the error if ``frames`` windows do not divide a vector of ``hop`` samples into even steps."""
    if hop % (2 * frames) == 0:
        return []
    return [Problem(("frames",), f"{frames} windows do not divide {hop} samples into steps of an even number of them")]


class Spectra(SampleEncoder, kind="spectra"):
    """Encoder of a neural codec: waveform (B, T) -> vectors (B, ⌈T / hop⌉, D), linear maps of spectra.

    A vector has ``frames`` windows of 4 h samples, h = hop / frames apart. Of each frequency of the short-time Fourier
    transform S it reads log |S|, and real and imaginary part of S / |S| (Vocos, Siuzdak 2023, backwards).
    """

    hop: int = Field(default=160, gt=0, le=LONGEST_HOP, description="samples of each vector")
    frames: _Frames = 4

    def problems(self) -> list[Problem]:
        return _frame_problems(self.hop, self.frames)


class DecoderBlocks(Layered):
    """Blocks over the quantised vectors of a sound, before its decoder makes samples of them (Mimi)."""

    blocks: Seq[Block] = Field(default=(), max_length=MOST_LAYERS, description="an empty list: none")
    norm: Norm = NoNorm()

    @property
    def row_positions(self) -> int:
        return LARGEST  # sounds have any length

    @property
    def rows_known(self) -> bool:
        return False


class SampleDecoder(Head):
    """Base class of heads of neural codecs: vectors (B, N, D) -> codes (B, N, K) -> waveform (B, N · hop)."""

    per_position = True
    instead_of: ClassVar[str] = "codebook"
    quantizer: Quantizer = ScalarQuantizer()
    decoder: DecoderBlocks = DecoderBlocks()


class WaveDecoder(SampleDecoder, kind="wave_decoder"):
    """Quantizer and decoder of a neural codec by transposed convolutions: the mirror image of ``wave_encoder``.

    With ``stride`` s a code stands for s vectors: a convolution of 2 s taps with that stride before the quantizer, and
    a transposed one after it, of ``groups`` groups of features (Mimi, Défossez et al. 2024).
    """

    network: SeaNet | None = Field(default=None, description="default: the mirror image of the front end's")
    bounded: bool = Field(default=False, description="samples between -1 and 1 by a tanh (DAC)")
    stride: int = Field(default=1, gt=0, le=LONGEST_KERNEL // 2, description="vectors of the front end for each code")
    groups: int = Field(default=1, gt=0, le=WIDEST, description="groups of the transposed convolution of that stride")

    def reading(self, frontend: Frontend) -> Self:
        network = getattr(frontend, "network", None)
        if not isinstance(network, SeaNet) or network == self.network:
            return self
        if self.network is None:
            return self.changed(network=network)
        if self.network.hop != network.hop:
            sentence = f"the strides give {self.network.hop} samples a vector, but those of the front end {network.hop}"
            raise SpecError([Problem(("network", "strides"), f"{sentence}; leave the key out")])
        return self


class SpectrumDecoder(SampleDecoder, kind="spectrum_decoder"):
    """Quantizer and decoder of a neural codec by the inverse short-time Fourier transform (Vocos, Siuzdak 2023).

    Each vector gives ``frames`` spectra S = e^m (a + i b) / |a + i b|, with m, a and b by linear maps for each
    frequency; their windows of 4 hop / frames samples are added up. The mirror image of ``spectra``.
    """

    hop: int | None = Field(
        default=None, gt=0, le=LONGEST_HOP, description="samples of each vector; default: the front end's"
    )
    frames: _Frames = 4

    def reading(self, frontend: Frontend) -> Self:
        hop = getattr(frontend, "hop", None)
        if not isinstance(hop, int) or hop == self.hop:
            return self
        if self.hop is None:
            return self.changed(hop=hop)
        sentence = f"{self.hop} samples a vector, but {hop} in the front end; leave the key out"
        raise SpecError([Problem(("hop",), sentence)])

    def problems(self) -> list[Problem]:
        return [] if self.hop is None else _frame_problems(self.hop, self.frames)
