"""Learning-rate schedules: pure functions that map the number of an update to a factor of the optimiser's learning
rate.

Updates are counted from 1, so the last of ``steps`` updates is number ``steps``. Each schedule has a linear warm-up,
s/w, over its first w = ``warmup`` updates, except the inverse square root, whose warm-up is part of its formula.
"""

from __future__ import annotations

import math

from qkv.spec.register import implementation, implements
from qkv.spec.training import Constant, Cosine, InverseSquareRoot, LinearDecay, Schedule, WarmupStableDecay


def multiplier(schedule: Schedule, step: int, steps: int, width: int) -> float:
    """Return the factor of the optimiser's learning rate at update ``step`` (from 1) of ``steps``, in a model of
    ``width`` features.
    """
    return implementation(schedule, "qkv.training.optim")(schedule, step, steps, width)


@implements(Constant)
def constant(schedule: Constant, step: int, steps: int, width: int) -> float:
    """Return the factor of the constant schedule: 1 after the linear warm-up."""
    return _rise(schedule, step)


@implements(InverseSquareRoot)
def inverse_square_root(schedule: InverseSquareRoot, step: int, steps: int, width: int) -> float:
    """Return the factor of the inverse square root: D^-½ · min(s^-½, s · w^-3/2) at update s, with warm-up w and width
    D (Vaswani et al. 2017); largest at s = w.
    """
    return width**-0.5 * min(step**-0.5, step * schedule.warmup**-1.5)


@implements(Cosine)
def cosine(schedule: Cosine, step: int, steps: int, width: int) -> float:
    """Return the factor of the cosine decay from 1 to f = ``final``: f + (1 - f) (1 + cos πp) / 2, where p is the
    elapsed share of the updates after the warm-up (Loshchilov & Hutter 2017).
    """
    if step <= schedule.warmup:
        return _rise(schedule, step)
    return schedule.final + (1 - schedule.final) * 0.5 * (1 + math.cos(math.pi * _share(step, schedule.warmup, steps)))


@implements(LinearDecay)
def linear(schedule: LinearDecay, step: int, steps: int, width: int) -> float:
    """Return the factor of the linear decay from 1 to f = ``final``: 1 - (1 - f) p, where p is the elapsed share of the
    updates after the warm-up.
    """
    if step <= schedule.warmup:
        return _rise(schedule, step)
    return 1 - (1 - schedule.final) * _share(step, schedule.warmup, steps)


@implements(WarmupStableDecay)
def warmup_stable_decay(schedule: WarmupStableDecay, step: int, steps: int, width: int) -> float:
    """Return the factor of warm-up, stable, decay: 1 until the last ``decay`` share of all updates, then linear decay
    to ``final`` (Hu et al. 2024).
    """
    stable_until = max(schedule.warmup, steps - round(schedule.decay * steps))
    if step <= stable_until:
        return _rise(schedule, step)
    return 1 - (1 - schedule.final) * _share(step, stable_until, steps)


def shortened(schedule: Schedule, steps: int, most: int) -> Schedule:
    """Return ``schedule`` with its warm-up shortened for a run of ``steps`` updates instead of ``most``.

    The new warm-up is the same share of the updates as before, but at least a tenth of them, and never longer than the
    old warm-up. The inverse square root is unchanged, because its warm-up determines all rates.
    """
    if steps == most or schedule.fixed_by_warmup:
        return schedule
    return schedule.changed(warmup=min(schedule.warmup, max(steps // 10, schedule.warmup * steps // most)))


def same_so_far(schedule: Schedule, done: int, steps: int, other: int, width: int) -> bool:
    """Return True if the first ``done`` updates have the same learning rates in a run of ``steps`` updates and in a run
    of ``other`` updates.
    """
    return all(
        multiplier(schedule, s, steps, width) == multiplier(schedule, s, other, width) for s in range(1, done + 1)
    )


def _rise(schedule: Schedule, step: int) -> float:
    return min(1.0, step / schedule.warmup) if schedule.warmup else 1.0


def _share(step: int, start: int, steps: int) -> float:
    """Return the elapsed share of the updates between ``start`` and ``steps``, at most 1."""
    return min(1.0, (step - start) / max(1, steps - start))
