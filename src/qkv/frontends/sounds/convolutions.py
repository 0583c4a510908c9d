"""Front ends of sound: convolutions over samples, and over log-mel frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, pad

from qkv.frontends.placed import PlacedFrontend
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.signal import Signal
from qkv.layers.times import MaskedSignal
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.sound import MelConvolutions, OfFrames, OfSound, WaveConvolutions
from qkv.system.errors import UserError

_EPS = 1e-5


class SoundFrontend(PlacedFrontend):
    """Base class of front ends of sound: strided convolutions over time, whose lengths follow from the signal's."""

    part: OfSound  # type: ignore[assignment]
    convolutions: nn.ModuleList

    def count(self, signal: Signal) -> int:
        return self.part.steps(signal.values.shape[1])

    def lengths(self, signal: Signal) -> Tensor | None:
        lengths = self._lengths_read(signal)
        for i in range(len(self.part.strides)):
            lengths = None if lengths is None else self.part.after(lengths, i)
        return lengths

    def spans(self, signal: Signal) -> list[tuple[int, int]]:
        """Return the values, such as frames, from one position to the next; convolutions read some around them too."""
        step = self.part.stride
        return [(step * place, step * (place + 1) - 1) for place in range(self.count(signal))]

    def _lengths_read(self, signal: Signal) -> Tensor | None:
        return None if signal.lengths is None else signal.lengths.clamp(min=self.part.least)

    def _values_read(self, signal: Signal) -> Tensor:
        """Return the values (B, T, …) in the weights' precision, with 0 after each row; T is enough for a position."""
        values = signal.values.to(next(self.parameters()).dtype)
        if signal.lengths is not None:
            real = _real(values.shape[1], signal.lengths)
            values = values * real.view(*real.shape, *(1,) * (values.dim() - 2))
        short = self.part.least - values.shape[1]
        return values if short <= 0 else pad(values, (0, 0) * (values.dim() - 2) + (0, short))

    def initialise(self, std: float) -> None:
        """Initialise convolutions as He et al. 2015."""
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d | nn.Conv2d)
            nn.init.kaiming_normal_(convolution.weight)
            if convolution.bias is not None:
                nn.init.zeros_(convolution.bias)

    def _check_place(self, signal: Signal) -> None:
        """Raise ``UserError`` for a sound without values, or on another device."""
        if signal.values.device != self.device:
            raise UserError(f"sounds are on {signal.values.device} and the model on {self.device}; move one of them")
        if not signal.values.shape[1]:
            raise UserError("the sounds are empty; give one sample or more")


class SampleFrontend(SoundFrontend):
    """Base class of front ends of samples (B, T)."""

    def check(self, signal: Signal) -> None:
        values = signal.values
        if values.dim() != 2 or not values.is_floating_point():
            kind = str(values.dtype).removeprefix("torch.")
            raise UserError(
                f"sounds have the shape {tuple(values.shape)} of {kind}; the model reads numbers (B, samples)"
            )
        self._check_place(signal)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, self.part.needed(length), generator=generator))


class FrameFrontend(SoundFrontend):
    """Base class of front ends of log-mel frames (B, T, bins)."""

    part: OfFrames  # type: ignore[assignment]

    def __init__(self, part: OfFrames, stack: Stack, width: int, table: object = None):
        if part.bins is None:
            raise UserError("model.frontend.bins is not set: set it, or open the data, whose processor sets it")
        super().__init__(part, stack, width)

    def check(self, signal: Signal) -> None:
        values, bins = signal.values, self.part.bins
        if values.dim() != 3 or values.shape[2] != bins or not values.is_floating_point():
            raise UserError(
                f"sounds have the shape {tuple(values.shape)}, and the model reads log-mel frames (B, frames, {bins})"
            )
        self._check_place(signal)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, self.part.needed(length), self.part.bins or 1, generator=generator))


@implements(WaveConvolutions)
class WaveConvolutionFrontend(SampleFrontend):
    """Front end for samples (B, T) -> vectors (B, N, D): z = convolutions(x), x' = W LN(z) + b, x' + GELU(conv(x')).

    The samples beyond the length of a row are 0; so are the vectors before the position convolution.
    """

    part: WaveConvolutions

    def __init__(self, part: WaveConvolutions, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack, width)
        channels = (1, *part.channels)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(channels[i], channels[i + 1], kernel, stride, bias=part.bias)
            for i, (kernel, stride) in enumerate(zip(part.kernels, part.strides, strict=True))
        )
        count = {"first": 1, "layer": len(part.channels), "none": 0}[part.norms]
        self.norms = nn.ModuleList(_channel_norm(part, i) for i in range(count))
        last, out = channels[-1], part.vector_width(width)
        self.feature_norm = nn.LayerNorm(last, eps=_EPS) if part.feature_norm else None
        self.map = Linear(last, out)
        self.masked = nn.Parameter(torch.zeros(out)) if part.mask_vector else None
        self.latents: Tensor | None = None
        """Vectors (B, N, C) before the map of the last call with masked positions, which a loss reads."""
        near = part.near_layers if part.near else 0
        self.near = nn.ModuleList(
            nn.Conv1d(out, out, part.near, padding=part.near // 2, groups=part.groups) for _ in range(near)
        )

    def layouts(self) -> Layouts:
        names = [name for name, module in self.named_children() if module is not None and name != "map"]
        layouts = {name: WHOLE for name in names if name in ("convolutions", "norms", "feature_norm", "near")}
        return layouts if self.masked is None else {**layouts, "masked": WHOLE}

    def initialise(self, std: float) -> None:
        """Initialise convolutions as He et al. 2015; the position convolution from N(0, 4 / (kernel · width))."""
        super().initialise(std)
        for convolution in self.near:
            assert isinstance(convolution, nn.Conv1d)
            nn.init.normal_(convolution.weight, std=2 / (self.part.near * convolution.out_channels) ** 0.5)
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)
        if self.masked is not None:
            nn.init.uniform_(self.masked)

    def forward(self, signal: Signal, context: Context) -> Tensor:
        x = self.features(signal)
        if self.feature_norm is not None:
            x = self.feature_norm(x)
        x = self._masked(signal, x, self.map(x))
        return self.placed(self._with_near(x, context), context)

    def _masked(self, signal: Signal, latents: Tensor, x: Tensor) -> Tensor:
        """Return x (B, N, D) with the learned vector at masked positions; if there are any, keep the latents."""
        masked = MaskedSignal.of(signal).masked
        if masked is None:
            return x
        if self.masked is None:
            raise UserError("positions are masked, but the front end has no vector for them; give mask_vector=true")
        self.latents = latents
        return torch.where(masked[..., None], self.masked.to(x.dtype), x)

    def features(self, signal: Signal) -> Tensor:
        """Return the outputs (B, N, C) of the strided convolutions."""
        x, lengths = self._values_read(signal)[:, None], self._lengths_read(signal)
        for i, convolution in enumerate(self.convolutions):
            x = convolution(x)
            lengths = None if lengths is None else self.part.after(lengths, i)
            if i < len(self.norms):
                x = self.norms[i](x, lengths) if self.part.norms == "first" else self.norms[i](x.mT).mT
            x = gelu(x)
        return x.mT

    def _with_near(self, x: Tensor, context: Context) -> Tensor:
        """Return x (B, N, D) plus the position vectors that the convolutions over its positions give."""
        if not len(self.near):
            return x
        near = x = silenced(x.mT, context.lengths)
        for convolution in self.near:
            near = convolution(silenced(near, context.lengths))[..., : x.shape[2]]
            near = gelu(layer_norm(near.mT, near.shape[1:2], eps=_EPS).mT if self.part.stacked else near)
        return (x + near).mT


def _channel_norm(part: WaveConvolutions, index: int) -> nn.Module:
    channels = part.channels[index]
    return TimeNorm(channels, channels, eps=_EPS) if part.norms == "first" else nn.LayerNorm(channels, eps=_EPS)


@implements(MelConvolutions)
class MelConvolutionFrontend(FrameFrontend):
    """Front end for log-mel frames (B, T, bins) -> vectors (B, N, D): x ← GELU(conv(x)) for each convolution."""

    part: MelConvolutions

    def __init__(self, part: MelConvolutions, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack, width)
        assert part.bins is not None
        channels = (part.bins, *(part.vector_width(width),) * len(part.kernels))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(channels[i], channels[i + 1], kernel, stride, padding=kernel // 2)
            for i, (kernel, stride) in enumerate(zip(part.kernels, part.strides, strict=True))
        )

    def layouts(self) -> Layouts:
        return {"convolutions": WHOLE}

    def forward(self, signal: Signal, context: Context) -> Tensor:
        x, lengths = self._values_read(signal).mT, self._lengths_read(signal)
        for i, convolution in enumerate(self.convolutions):
            x = gelu(convolution(silenced(x, lengths)))
            lengths = None if lengths is None else self.part.after(lengths, i)
        return self.placed(x.mT, context)


def silenced(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return x (B, C, T, …) with 0 beyond the length of each row."""
    if lengths is None:
        return x
    real = _real(x.shape[2], lengths)[:, None]
    return x * real.view(*real.shape, *(1,) * (x.dim() - 3))


def _real(count: int, lengths: Tensor) -> Tensor:
    """Return a mask (B, ``count``) that is True before the length of each row."""
    return torch.arange(count, device=lengths.device) < lengths[:, None]


class TimeNorm(nn.GroupNorm):
    """Norm over time and the channels of each group: (B, C, T) -> (B, C, T).

    Over the first ``lengths`` (B) steps of each row.
    """

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:  # type: ignore[override]
        if lengths is None:
            return super().forward(x)
        groups = x.unflatten(1, (self.num_groups, -1))
        real, count = _real(x.shape[2], lengths)[:, None, None], groups.shape[2] * lengths.clamp(min=1)
        count = count[:, None, None, None]
        centred = torch.where(real, groups - torch.where(real, groups, 0).sum((2, 3), keepdim=True) / count, 0)
        scale = (centred.square().sum((2, 3), keepdim=True) / count + self.eps).rsqrt()
        return (centred * scale).flatten(1, 2) * self.weight[:, None] + self.bias[:, None]
