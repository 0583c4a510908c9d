"""Measure how time and memory of a model grow with the number of positions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qkv.costs.counting.losses import random_batch, summed_loss
from qkv.costs.counting.memory import LiveBytes
from qkv.costs.measuring.machine import usable_memory
from qkv.data.batching.batch import Batch
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.errors import SpecError
from qkv.spec.model import Model
from qkv.spec.models.growth import Growth
from qkv.system.errors import UserError

SHORTEST = 256
FITTED = 16
"""Ratio of the last to the first length in a fit."""
LEAST_SECONDS = 0.05
"""Minimum seconds of a pass at the shortest length in a fit."""
_LARGEST = 1 << 24
_SHARE = 0.7
"""Maximum share of the usable memory that a pass may take."""


class GrowthPoint(NamedTuple):
    """Measurements on one row of ``length`` positions: seconds and peak bytes of a forward and backward pass.

    state_bytes: bytes of the decoding state; None if the model does not decode.
    """

    length: int
    seconds: float
    peak_bytes: int
    state_bytes: int | None


class Exponent(NamedTuple):
    """Exponent b of y = a N^b, fitted by least squares on logarithms over the lengths from ``first`` to ``last``.

    half: half the width of its 95 % confidence interval.
    """

    value: float
    half: float
    first: int
    last: int


@dataclass(frozen=True)
class GrowthCurve:
    """Measurements of one model at increasing lengths. ended: reason why longer rows were not measured."""

    name: str
    theory: Growth | None
    points: tuple[GrowthPoint, ...]
    ended: str

    def exponent(self, quantity: str) -> Exponent | None:
        """Fit the exponent of ``seconds`` or ``peak_bytes`` over the lengths from a sixteenth of the longest on.

        Returns None if no measured length is that short, or if a pass at the shortest of these lengths took less than
        50 ms.
        """
        if not self.points:
            return None
        last = self.points[-1].length
        used = [point for point in self.points if point.length * FITTED >= last]
        if used[0].length * FITTED > last or used[0].seconds < LEAST_SECONDS:
            return None
        return fitted([point.length for point in used], [getattr(point, quantity) for point in used])


def fitted(lengths: Sequence[int], values: Sequence[float]) -> Exponent:
    """Fit the slope of log y over log N, with its 95 % interval by the t distribution, to at least three points."""
    x, y = np.log(lengths), np.log(values)
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    rest = y - y.mean() - slope * x
    free = len(x) - 2
    from scipy.special import stdtrit  # imported here because the import is slow

    error = math.sqrt(float(rest @ rest) / free / float(x @ x))
    return Exponent(slope, float(stdtrit(free, 0.975)) * error, lengths[0], lengths[-1])


def growth_curve(
    name: str,
    model: Model,
    longest: int = 65536,
    limit: float = 20.0,
    tell: Callable[[GrowthPoint], None] = lambda point: None,
) -> GrowthCurve:
    """Measure forward and backward passes of ``model`` on one row of 256, 512 … positions.

    The measurement ends at ``longest``, or at a longer row if passes are too short for a fit: a pass at a sixteenth of
    the length must take 50 ms. It ends earlier if the next pass would take more than ``limit`` seconds or most of the
    memory, or if the model does not support the length. ``tell``: called with each point. Raises ``UserError`` for a
    model that does not read one row of token ids.
    """
    if model.encoder is not None or model.frontend.processor is not None:
        raise UserError(f"{name} does not read one row of tokens; only text models without encoder can be measured")
    points: list[GrowthPoint] = []
    ended = ""
    for length in _lengths(longest, points):
        ended = _unaffordable(points, limit)
        if not ended:
            try:
                point = _measured(model, length)
            except (SpecError, UserError) as error:
                ended = f"refused at {length:,}: {str(error).splitlines()[-1].strip()}"
        if ended:
            break
        points.append(point)
        tell(point)
    return GrowthCurve(name, theory(model), tuple(points), ended)


def theory(model: Model) -> Growth | None:
    """Return the theoretical growth of a model's cost; None if a branch does not state it, or if the model's layers
    read latents instead of the positions.
    """
    if model.latents is not None:
        return None
    return model.growth if model.segmentation is None else model.segmentation.growth


def crossover(curve: GrowthCurve, exact: GrowthCurve) -> int | None:
    """Return the shortest length from which on ``curve`` is faster than ``exact`` at all common lengths.

    None if ``curve`` is not faster at the longest common length.
    """
    times = {point.length: point.seconds for point in exact.points}
    shortest = None
    for point in reversed(curve.points):
        if point.length not in times:
            continue
        if point.seconds >= times[point.length]:
            break
        shortest = point.length
    return shortest


def _lengths(longest: int, points: Sequence[GrowthPoint]) -> Iterator[int]:
    """Yield powers of two; continue beyond ``longest`` only while passes are too short for a fit."""
    length = SHORTEST
    while length <= longest or (length <= _LARGEST and _too_short(points)):
        yield length
        length *= 2


def _too_short(points: Sequence[GrowthPoint]) -> bool:
    last = points[-1].length
    return next(point.seconds for point in points if point.length * FITTED >= last) < LEAST_SECONDS


def _unaffordable(points: Sequence[GrowthPoint], limit: float) -> str:
    """Return the reason why twice the longest length is not measured, or "". Time and memory are extrapolated from the
    last two points.
    """
    if len(points) < 2:
        return ""
    before, last = points[-2:]
    seconds = last.seconds * max(2.0, last.seconds / before.seconds)
    needed = last.peak_bytes * max(2.0, last.peak_bytes / before.peak_bytes)
    memory = usable_memory()
    if seconds > limit:
        return f"{2 * last.length:,} positions would take about {seconds:.0f} s"
    if memory is not None and needed > _SHARE * memory:
        return f"{2 * last.length:,} positions would take about {needed / 1e9:.0f} GB"
    return ""


class _Sizes(NamedTuple):
    batch_size: int
    length: int
    source_length: int


def _measured(spec: Model, length: int) -> GrowthPoint:
    model = build(spec.changed(context_length=length))
    batch = random_batch(model, _Sizes(1, length, 0))
    _pass(model, batch)  # not timed: every operation chooses its implementation
    model.zero_grad(set_to_none=True)
    with LiveBytes([*model.parameters(), *model.buffers(), batch.input.values, batch.targets]) as memory:
        _pass(model, batch)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or (len(times) < 9 and time.perf_counter() - began < 1.0):
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        _pass(model, batch)
        times.append(time.perf_counter() - start)
        if times[0] > 5.0:
            break
    state = model.state_bytes(length) if spec.decodes else None
    return GrowthPoint(length, sorted(times)[len(times) // 2], memory.peak, state)


def _pass(model: Transformer, batch: Batch) -> None:
    summed_loss(model, batch).backward()
