"""Specs for sound: processors of samples and of log-mel frames, random changes, and front ends of convolutions."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from qkv.spec.base import Part, Seq
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import Placed
from qkv.spec.parts import NoPositions, Positions
from qkv.spec.processors import Processor, Role
from qkv.spec.signals.images import Patches

LOWEST_RATE, HIGHEST_RATE = 100, 768_000
"""Bounds of sampling rates, in Hz."""
LONGEST_SOUND = 86_400
"""Upper bound of seconds of one sound: a day."""
SIMPLE_COEFFICIENTS = 20
"""Number of mel-frequency cepstral coefficients (MFCC) that a linear model reads."""
Rate = Annotated[int, Field(ge=LOWEST_RATE, le=HIGHEST_RATE)]
Size = Annotated[int, Field(gt=0, le=1_000_000)]


class SoundChange(Part, slot=True):
    """Base class of random changes of training sounds, a function of (seed, step)."""

    of_frames: ClassVar[bool] = False
    """True if it changes frames of a spectrum, False if it changes samples."""


class WhiteNoise(SoundChange, kind="white_noise"):
    """Gaussian noise at a signal-to-noise ratio drawn uniformly from ``least`` to ``most`` dB."""

    rate: float = Field(default=0.5, ge=0, le=1, description="fraction of the sounds that are changed")
    least: float = Field(default=10.0, ge=-60, le=120, description="lowest signal-to-noise ratio, in dB")
    most: float = Field(default=40.0, ge=-60, le=120, description="highest signal-to-noise ratio, in dB")

    def problems(self) -> list[Problem]:
        return _order(self.least, self.most)


class Shift(SoundChange, kind="shift"):
    """Shift in time by up to ``seconds``, with silence in place of what is missing."""

    rate: float = Field(default=1.0, ge=0, le=1, description="fraction of the sounds that are changed")
    seconds: float = Field(default=0.05, gt=0, le=LONGEST_SOUND)


class Speed(SoundChange, kind="speed"):
    """Change of speed, and of pitch with it, by a factor from ``least`` to ``most`` (Ko et al. 2015)."""

    rate: float = Field(default=0.5, ge=0, le=1, description="fraction of the sounds that are changed")
    least: float = Field(default=0.9, ge=0.1, le=10)
    most: float = Field(default=1.1, ge=0.1, le=10)

    def problems(self) -> list[Problem]:
        return _order(self.least, self.most)


class Loudness(SoundChange, kind="loudness"):
    """Multiplication by a gain drawn uniformly from ``-decibels`` to ``decibels``."""

    rate: float = Field(default=0.5, ge=0, le=1, description="fraction of the sounds that are changed")
    decibels: float = Field(default=6.0, gt=0, le=60)


class Room(SoundChange, kind="room"):
    """Reverberation: convolution with decaying noise, whose level falls by 60 dB in a time of up to ``seconds``."""

    rate: float = Field(default=0.25, ge=0, le=1, description="fraction of the sounds that are changed")
    seconds: float = Field(default=0.3, gt=0, le=10, description="longest reverberation time (RT60)")


class FrameMasks(SoundChange, kind="frame_masks"):
    """SpecAugment (Park et al. 2019): bands of frequencies and of frames get the mean of the sound's frames."""

    of_frames: ClassVar[bool] = True
    bands: int = Field(default=2, ge=0, le=100, description="number of masked bands of frequencies")
    bins: int = Field(default=12, ge=1, le=1000, description="largest width of a band, in bins")
    spans: int = Field(default=2, ge=0, le=100, description="number of masked spans of frames")
    share: float = Field(default=0.15, gt=0, le=1, description="largest length of a span, as a fraction of the sound")


def _order(least: float, most: float) -> list[Problem]:
    if least <= most:
        return []
    return [Problem(("least",), f"{least:g} given, which is more than most, {most:g}; give less")]


class Sounds(Processor):
    """Base class of processors of sounds: mono samples at one sampling rate.

    Files of any format, rate and number of channels are read, averaged over channels and resampled. With ``seconds``,
    every sound is cut or padded with silence to this length; else lengths are kept.
    """

    role = Role(
        "sound",
        "sound",
        ("sound", "audio", "file", "filename", "path", "clip", "speech", "recording", "wav"),
        values="sound files",
    )
    rate: Rate | None = Field(default=None, description="samples per second; default: the data's, at most 16,000")
    seconds: float | None = Field(default=None, gt=0, le=LONGEST_SOUND, description="length of every sound")
    longest: float = Field(default=60.0, gt=0, le=LONGEST_SOUND, description="seconds beyond which a sound is cut")
    changes: Seq[SoundChange] = Field(default=(), description="random changes of training sounds")

    of_sounds: ClassVar[bool] = True
    of_samples: ClassVar[bool] = False
    """True if the front end reads samples, False if it reads frames of a spectrum."""

    def following(self, start: Processor) -> Self:
        """Return a copy that takes all settings from ``start`` but the random changes, which it keeps."""
        return self.changed(**{name: getattr(start, name) for name in type(start).model_fields if name != "changes"})

    @property
    def varies(self) -> bool:
        return bool(self.changes)

    @property
    def fixed(self) -> bool:
        """True if all sounds have one length."""
        return self.seconds is not None

    @property
    def num_simple(self) -> int | None:
        return None if self.rate is None else 4 * SIMPLE_COEFFICIENTS + 1

    @property
    def spacing(self) -> float:
        """Seconds from a value that the front end reads to the next. The rate must be known."""
        assert self.rate is not None
        return self.step / self.rate

    @property
    def step(self) -> int:
        """Samples from a value that the front end reads to the next."""
        return 1

    @property
    def frame(self) -> int:
        """Samples of a value that the front end reads."""
        return 1

    def samples(self, seconds: float) -> int:
        """Return the number of samples in ``seconds``. The rate must be known."""
        assert self.rate is not None
        return round(seconds * self.rate)


class Waveform(Sounds, kind="waveform"):
    """Samples of a sound, from -1 to 1; with ``normalise``, of mean 0 and variance 1 (Baevski et al. 2020).

    x' = (x - mean) / √(variance + 1e-7), over the samples of the sound without its padding.
    """

    of_samples: ClassVar[bool] = True
    normalise: bool = True

    @property
    def local(self) -> bool:
        return not self.normalise and self.seconds is None


class LogMel(Sounds, kind="log_mel"):
    """Log-mel frames of a sound: levels of ``bins`` mel bands in windows of ``window`` ms, every ``hop`` ms.

    y[t, b] = log Σ_f filter[b, f] |FFT(window · x[t hop …])[f]|². ``form``: ``whisper``: log10 of at least 1e-10,
    raised to at least the maximum of the sound - 8, then (y + 4) / 4 (Radford et al. 2022); ``log``: natural logarithm
    of y + ``floor``. ``normalise``: ``clip``: each bin has mean 0 and deviation 1 over the frames of the sound;
    ``data``: (y - mean) / deviation, with those of the training set, which may be one for all bins; ``none``.

    ``scale``: frequencies of the bands, ``slaney`` (linear below 1 kHz, filters of equal area), ``htk`` (O'Shaughnessy
    1987, filters of height 1) or ``kaldi`` (the same, triangles in mel). ``centre``: frame t is centred at sample
    t · hop, with reflection or zeros beyond the ends; else it begins there.
    """

    in_windows: ClassVar[bool] = True
    bins: int = Field(default=80, gt=1, le=1000, description="number of mel bands")
    window: float = Field(default=25.0, gt=0, le=1000, description="length of a window, in ms")
    hop: float = Field(default=10.0, gt=0, le=1000, description="time from a window to the next, in ms")
    transform: int | None = Field(default=None, gt=1, le=1 << 16, description="size of the FFT; default: the window's")
    shape: Literal["hann", "symmetric_hann", "povey"] = Field(default="hann", description="weights of a window")
    scale: Literal["slaney", "htk", "kaldi"] = "slaney"
    lowest: float = Field(default=0.0, ge=0, description="lowest frequency, in Hz")
    highest: float | None = Field(default=None, gt=0, description="highest frequency, in Hz; default: half the rate")
    centre: bool = True
    ends: Literal["reflect", "zeros"] = Field(default="reflect", description="what is beyond the ends, if centred")
    trim: bool = Field(default=True, description="leave out the last frame of centred ones (Whisper)")
    preemphasis: float = Field(default=0.0, ge=0, lt=1, description="a in x[t] - a x[t - 1]")
    offset: bool = Field(default=False, description="subtract the mean of each window (Kaldi)")
    multiplier: float = Field(default=1.0, gt=0, description="factor of the samples (Kaldi: 32768)")
    form: Literal["whisper", "log"] = "whisper"
    floor: float = Field(default=1e-10, gt=0, description="smallest power")
    normalise: Literal["none", "clip", "data"] = "none"
    length: int | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        description="frames of every sound, cut or filled with 0",
    )
    mean: Seq[float] | None = Field(default=None, description="for normalise=data; default: the training set's")
    deviation: Seq[Annotated[float, Field(gt=0)]] | None = Field(default=None, description="as for mean")

    @property
    def fixed(self) -> bool:
        return self.length is not None or super().fixed

    @property
    def local(self) -> bool:
        return self.form == "log" and self.normalise != "clip" and not self.fixed

    @property
    def frame(self) -> int:
        """Samples of a window."""
        return self.samples(self.window / 1000)

    @property
    def step(self) -> int:
        """Samples from a window to the next."""
        return self.samples(self.hop / 1000)

    @property
    def size(self) -> int:
        """Size of the FFT."""
        return self.transform or self.frame

    def values_of(self, size: int) -> int:
        return self.frames(size)

    def frames(self, samples: int) -> int:
        """Return the number of frames of ``samples`` samples."""
        if self.centre:
            return max(1, samples // self.step + (not self.trim))
        return max(0, samples - self.frame) // self.step + 1

    def problems(self) -> list[Problem]:
        problems = list[Problem]()
        for name in ("mean", "deviation"):
            values = getattr(self, name)
            if values is not None and len(values) not in (1, self.bins):
                problems.append(
                    Problem((name,), f"{len(values)} values given; give 1, or {self.bins}, one for each bin")
                )
        if (self.mean is None) != (self.deviation is None):
            problems.append(Problem(("mean",), "give both mean and deviation, or neither"))
        if self.rate is None:
            return problems
        half = self.rate / 2
        if self.highest is not None and self.highest > half:
            problems.append(Problem(("highest",), f"{self.highest:g} Hz given; at most half of the rate, {half:g} Hz"))
        if self.lowest >= (self.highest or half):
            problems.append(
                Problem(("lowest",), f"{self.lowest:g} Hz given; give less than {self.highest or half:g} Hz")
            )
        if self.step < 1:
            problems.append(Problem(("hop",), f"{self.hop:g} ms are less than a sample at {self.rate} Hz; give more"))
        if self.size < self.frame or self.frame < 2:
            sentence = f"a window of {self.frame} samples at {self.rate} Hz needs a larger one"
            problems.append(Problem(("transform" if self.transform else "window",), sentence))
        return problems


class OfSound(Placed):
    """Base class of front ends of sounds of any length: convolutions over time."""

    positions: Positions = NoPositions()
    kernels: Seq[Size] = (3, 3)
    strides: Seq[Size] = (1, 2)

    @property
    def reads_whole_rows(self) -> bool:
        return True

    def border(self, kernel: int) -> int:
        """Return the number of zeros that a convolution of this kernel adds at each end of its input; 0: none."""
        return 0

    def after(self, length: Any, index: int) -> Any:
        """Return the number of steps, or a tensor of them, after convolution number ``index`` on ``length`` steps."""
        kernel, stride = self.kernels[index], self.strides[index]
        return (length + 2 * self.border(kernel) - kernel) // stride + 1

    @property
    def reach(self) -> int | None:
        reach, step = 1, 1
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            reach, step = reach + (kernel - 1) * step, step * stride
        return reach

    @property
    def stride(self) -> int:
        """Number of samples or frames from one position to the next."""
        return math.prod(self.strides)

    @property
    def least(self) -> int:
        """Number of samples or frames of one position; shorter sounds are padded to it with 0."""
        return self.needed(1)

    def needed(self, positions: int) -> int:
        """Return the smallest number of samples or frames that have ``positions`` positions."""
        for kernel, stride in zip(reversed(self.kernels), reversed(self.strides), strict=True):
            positions = max(1, (positions - 1) * stride + kernel - 2 * self.border(kernel))
        return positions

    def steps(self, length: int) -> int:
        """Return the number of positions for ``length`` samples or frames."""
        length = max(length, self.least)
        for index in range(len(self.kernels)):
            length = self.after(length, index)
        return length

    def positions_of(self, size: int) -> int:
        return self.steps(size)

    def canonical(self, width: int) -> Self:
        return self.changed(dropout=0.0)

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if len(self.strides) != len(self.kernels) or not self.kernels:
            sentence = f"{len(self.strides)} given for {len(self.kernels)} kernels; give one for each, one or more"
            problems.append(Problem(("strides",), sentence))
        return problems


class WaveConvolutions(OfSound, kind="wave_convolutions"):
    """Samples (B, T) -> vectors by strided convolutions over time (wav2vec 2.0, Baevski et al. 2020).

    Each convolution is without padding, followed by a norm and GELU. ``norms``: ``first``: norm of each channel over
    time after the first only; ``layer``: layer norm over channels after each. The vectors get a layer norm
    (``feature_norm``) and a linear map to the model's width (``project``). ``near`` > 0: a convolution over ``near``
    positions in ``groups`` groups with GELU gives the position vectors, which are added, repeated ``near_layers`` times
    (data2vec: each with a layer norm without weights).
    """

    processor: ClassVar[type[Processor] | None] = Waveform
    channels: Seq[Size] = (512,) * 7
    kernels: Seq[Size] = (10, 3, 3, 3, 3, 2, 2)
    strides: Seq[Size] = (5, 2, 2, 2, 2, 2, 2)
    bias: bool = Field(default=False, description="bias of the convolutions")
    norms: Literal["first", "layer", "none"] = "first"
    feature_norm: bool = Field(default=True, description="layer norm before the map to the model's width")
    near: int = Field(default=128, ge=0, le=10_000, description="kernel of the position convolution; 0: none")
    groups: int = Field(default=16, gt=0, le=10_000, description="groups of the position convolution")
    near_layers: int = Field(default=1, gt=0, le=100, description="number of position convolutions in a row")
    mask_vector: bool = Field(default=False, description="learned vector of masked positions, for pretraining")
    stacked: bool = Field(default=False, description="layer norm without weights after each position convolution")

    @property
    def reach(self) -> int | None:
        return None if self.near or self.norms == "first" else super().reach

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if len(self.channels) != len(self.kernels):
            sentence = f"{len(self.channels)} given for {len(self.kernels)} kernels; give one for each"
            problems.append(Problem(("channels",), sentence))
        return problems

    def width_problems(self, width: int) -> list[Problem]:
        problems = super().width_problems(width)
        if self.near and width % self.groups:
            problems.append(Problem(("frontend", "groups"), f"{self.groups} does not divide the width, {width}"))
        return problems


class OfFrames(OfSound):
    """Base class of front ends of log-mel frames (B, T, bins) of sounds of any length."""

    processor: ClassVar[type[Processor] | None] = LogMel
    bins: int | None = Field(default=None, gt=1, le=1000, description="mel bands; default: the processor's")

    def fitted(self, processor: Processor) -> Self:
        assert isinstance(processor, LogMel)
        if self.bins not in (None, processor.bins):
            sentence = f"{self.bins} given, but the processor has {processor.bins}; leave it out"
            raise SpecError([Problem(("bins",), sentence)])
        return self.changed(bins=processor.bins)

    def unsized(self) -> Self:
        return self.changed(bins=None)


class MelConvolutions(OfFrames, kind="mel_convolutions"):
    """Log-mel frames (B, T, bins) -> vectors by convolutions over time, each with GELU (Whisper, Radford et al. 2022).

    Convolution i maps to the model's width with ``kernels[i]`` frames and ``strides[i]``, padded by half of the kernel.
    """

    def border(self, kernel: int) -> int:
        return kernel // 2


class MelPatches(Patches, kind="mel_patches"):
    """Log-mel frames (B, T, bins) -> vectors of patches of bands and frames (AST, Gong et al. 2021).

    As ``patches`` of a grey image whose rows are bands and whose columns are frames; ``length`` of the processor sets
    their number.
    """

    processor: ClassVar[type[Processor] | None] = LogMel
    patch: int = Field(default=16, gt=0, le=1000, description="bands and frames of a patch")
    stride: int | None = Field(default=10, gt=0, le=1000, description="bands and frames from a patch to the next")

    @property
    def limited_by(self) -> str:
        return "the length of the sounds"

    def fitted(self, processor: Processor) -> Self:
        assert isinstance(processor, LogMel)
        if processor.length is None:
            sentence = "patches need sounds of one number of frames; set the length of the processor"
            raise SpecError([Problem((), sentence)])
        return self.changed(height=processor.bins, width=processor.length, channels=1)
