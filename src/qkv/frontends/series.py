"""Front ends of time series: patches of windows, and future steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qkv.frontends.placed import PlacedFrontend
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.positions import build_positions
from qkv.layers.signal import Signal
from qkv.layers.times import WINDOW_EPS, TimedSignal
from qkv.spec.model import Stack
from qkv.spec.parts import NoNorm
from qkv.spec.register import implements
from qkv.spec.signals.series import SeriesPatches, SeriesSteps
from qkv.system.errors import UserError


class _SeriesFrontend(PlacedFrontend):
    """Base class of front ends of time series with float values (B, T, features)."""

    part: SeriesPatches | SeriesSteps  # type: ignore[assignment]
    width_read: int
    """Number of features per time step."""

    def __init__(self, part: SeriesPatches | SeriesSteps, stack: Stack, width: int):
        super(PlacedFrontend, self).__init__(part, stack)
        self.norm = build_norm(NoNorm(), width)
        self.positions = build_positions(part.positions, stack.context_length, part.vector_width(width))

    def check(self, signal: Signal) -> None:
        values = signal.values
        if values.dim() != 3 or values.shape[2] != self.width_read or not values.is_floating_point():
            shape = tuple(values.shape)
            raise UserError(
                f"series have the shape {shape} and the type {str(values.dtype).removeprefix('torch.')}, and the model "
                f"reads numbers (B, T, {self.width_read}): the features of each step"
            )
        if values.device != self.device:
            raise UserError(f"series are on {values.device} and the model on {self.device}; move one of them")


@implements(SeriesPatches)
class SeriesPatchFrontend(_SeriesFrontend):
    """Front end for windows of series (B, T, C + K), C channels and K known covariates -> patch vectors (B, N, D).

    Patch n holds the steps n · stride to n · stride + patch - 1, counted from the first step. With ``align`` "end", the
    first steps are dropped so that the last patch ends at the last step. The last value of a row replaces its padding
    and, with ``pad_end``, is repeated ``stride`` times more. Inverted: position n holds all steps of feature n.
    """

    part: SeriesPatches
    gain: nn.Parameter | None
    offset: nn.Parameter | None
    rates: nn.Parameter | None
    phases: nn.Parameter | None

    def __init__(self, part: SeriesPatches, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack, width)
        self.inverted = part.channels == "inverted"
        self.features = part.row_features or 1
        self.width_read = self.features + (part.covariates or 0)
        if self.inverted and part.steps is None:
            raise UserError("model.frontend.steps is not set: set it, or build the model together with its data")
        timed = 1 + part.frequencies * (1 + self.features) if part.frequencies else 0
        read = part.steps if self.inverted else part.patch * (self.width_read + timed)
        self.map = Linear(read or 1, part.vector_width(width))
        for name, value in (("gain", 1.0), ("offset", 0.0)):
            shape = torch.full((self.features,), value)
            self.register_parameter(name, nn.Parameter(shape) if part.affine else None)
        waves = part.frequencies
        self.register_parameter("rates", nn.Parameter(torch.empty(waves)) if waves else None)
        self.register_parameter("phases", nn.Parameter(torch.zeros(waves)) if waves else None)
        if waves:
            self.initialise(0.0)

    def layouts(self) -> Layouts:
        return {name: WHOLE for name in ("gain", "offset", "rates", "phases") if getattr(self, name) is not None}

    def initialise(self, std: float) -> None:
        """Initialise the time frequencies to 1 to 256 periods per window, on a logarithmic scale.

        Each frequency is used twice, for a sine and for a cosine.
        """
        if self.rates is not None and self.phases is not None:
            turns = torch.logspace(0, 8, (len(self.rates) + 1) // 2, base=2.0).repeat_interleave(2)
            with torch.no_grad():
                self.rates.copy_(2 * math.pi * turns[: len(self.rates)])
                self.phases.copy_(torch.arange(len(self.phases)) % 2 * (math.pi / 2))

    def count(self, signal: Signal) -> int:
        return signal.values.shape[2] if self.inverted else self.part.patches(signal.values.shape[1])

    def spans(self, signal: Signal) -> list[tuple[int, int]] | None:
        if self.inverted:
            return None
        steps, part, count = signal.values.shape[1], self.part, self.count(signal)
        first = steps - part.patch - (count - 1) * part.stride if part.align == "end" and not part.pad_end else 0
        starts = [first + n * part.stride for n in range(count)]
        return [(min(start, steps - 1), min(start + part.patch, steps) - 1) for start in starts]

    def lengths(self, signal: Signal) -> Tensor | None:
        if signal.lengths is None or self.inverted:
            return None
        steps = torch.clamp(signal.lengths - self.part.patch, min=0)
        return torch.div(steps, self.part.stride, rounding_mode="floor") + 1 + self.part.pad_end

    def check(self, signal: Signal) -> None:
        super().check(signal)
        steps, part = signal.values.shape[1], self.part
        if self.inverted and steps != part.steps:
            raise UserError(f"a window has {steps} steps, and the model reads {part.steps}")
        if not self.inverted and part.steps is not None and steps < part.patch:
            raise UserError(f"a window of {steps} steps is shorter than a patch of {part.patch}; give more steps")
        if (TimedSignal.of(signal).times is None) != (self.rates is None):
            raise UserError(
                "times are given, and the front end reads none; set frontend.frequencies"
                if self.rates is None
                else "the front end reads the times of the values, and none are given"
            )

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        part = self.part
        steps = part.steps or (length - 1 - part.pad_end) * part.stride + part.patch
        values = torch.randn(rows, max(steps, part.patch), self.width_read, generator=generator)
        times = torch.linspace(-1, 0, values.shape[1]).expand(rows, -1) if part.frequencies else None
        return TimedSignal(values, times=times)

    def level(self, signal: Signal) -> tuple[Tensor, Tensor]:
        """Return (shift, scale), each (B, C), that normalise each window: x = (value - shift) / scale."""
        return self._level(_prolonged(signal.values, signal.lengths), signal.lengths)

    def _level(self, values: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute ``level`` from rows (B, T, C + K) whose padding repeats their last value."""
        values = values[..., : self.features]
        if self.part.normalise == "none":
            return torch.zeros_like(values[:, 0]), torch.ones_like(values[:, 0])
        if self.part.normalise == "last":
            shift, scale = values[:, -1], torch.ones_like(values[:, 0])
        elif lengths is None:
            shift, scale = values.mean(1), (values.var(1, correction=0) + WINDOW_EPS).sqrt()
        else:
            count, real = lengths[:, None].clamp(min=1), _real(values, lengths)
            shift = torch.where(real, values, 0).sum(1) / count
            squares = torch.where(real, (values - shift[:, None]).square(), 0).sum(1) / count
            scale = (squares + WINDOW_EPS).sqrt()
        if self.gain is None or self.offset is None:
            return shift, scale
        gain = self.gain + WINDOW_EPS  # as in the authors' code, to avoid a division by 0
        return shift - scale * self.offset / gain, scale / gain

    def forward(self, signal: Signal, context: Context) -> Tensor:
        values, part = _prolonged(signal.values, signal.lengths), self.part
        shift, scale = self._level(values, signal.lengths)
        x = (values[..., : self.features] - shift[:, None]) / scale[:, None]
        if values.shape[2] > self.features:
            x = torch.cat((x, values[..., self.features :]), -1)
        if self.inverted:
            return self.placed(self.map(x.transpose(1, 2)), context)
        if self.rates is not None:
            assert self.phases is not None
            times = TimedSignal.of(signal).times
            assert times is not None
            time = times[..., None].to(x.dtype)
            waves = (time * self.rates + self.phases).sin()
            products = (x[..., : self.features, None] * waves[..., None, :]).flatten(-2)
            x = torch.cat((x, time, waves, products), -1)
        if part.align == "end":
            x = self._aligned(x, signal.lengths)
        more = max(0, part.patch - x.shape[1]) + part.stride * part.pad_end
        if more:
            x = torch.cat((x, x[:, -1:].expand(-1, more, -1)), 1)
        patches = x.unfold(1, part.patch, part.stride)  # (B, N, features, patch)
        return self.placed(self.map(patches.flatten(2)), context)

    def _aligned(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Drop the first steps of each row of x (B, T, …) that fill no patch; if rows differ, repeat the last step."""
        part, steps = self.part, x.shape[1]
        if lengths is None:
            return x[:, max(0, steps - part.patch) % part.stride :]
        first = (lengths.long() - part.patch).clamp(min=0) % part.stride
        index = (torch.arange(steps, device=x.device) + first[:, None]).clamp(max=steps - 1)
        return x.gather(1, index[..., None].expand_as(x))


def _real(values: Tensor, lengths: Tensor) -> Tensor:
    """Build a mask (B, T, 1) that is True at unpadded steps."""
    return (torch.arange(values.shape[1], device=values.device) < lengths[:, None])[..., None]


def _prolonged(values: Tensor, lengths: Tensor | None) -> Tensor:
    """Replace the padding of each row of ``values`` (B, T, …) by the row's last unpadded value."""
    if lengths is None:
        return values
    last = values.gather(1, (lengths.long() - 1).clamp(min=0)[:, None, None].expand(-1, 1, values.shape[2]))
    return torch.where(_real(values, lengths), values, last)


@implements(SeriesSteps)
class SeriesStepFrontend(_SeriesFrontend):
    """Front end for future steps with known covariates (B, H, K) -> vectors (B, H, D).

    Each vector is the sum of a learned vector, the same at all steps, and a linear map of the covariates if there are
    any. Position vectors follow.
    """

    part: SeriesSteps

    def __init__(self, part: SeriesSteps, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack, width)
        self.width_read = part.covariates or 0
        self.map = Linear(self.width_read, part.vector_width(width)) if self.width_read else None
        self.vector = nn.Parameter(torch.zeros(part.vector_width(width)))

    @property
    def device(self) -> torch.device:
        return self.vector.device

    def initialise(self, std: float) -> None:
        nn.init.normal_(self.vector, std=std)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, self.part.steps or length, self.width_read, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        x = self.vector.expand(*signal.values.shape[:2], -1)
        return self.placed(x if self.map is None else x + self.map(signal.values), context)
