"""Register of selected implementations with reasons and gains, as printed by ``qkv why``.

Measured choices can differ between processes and change the last bits of a result. A run therefore stores
``snapshot()`` with its weights and calls ``restore()`` when it resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from qkv.ops.selection import timing
from qkv.ops.selection.choices_cache import recall, remember


@dataclass(frozen=True)
class Choice:
    """Implementation (``twin``) selected for the operator ``op`` in a case (shape, precision), with the reason."""

    op: str
    case: str
    twin: str
    reason: str
    gain: float | None = None
    """Measured speed-up over torch's default or the other precision; None if not measured or the default fails."""


NOISE = 1.1
"""Ratio of two single timings below which a difference is regarded as noise."""

CLEAR = 2.0
"""Speed-up below which alternating runs must confirm it, since other load may have slowed one candidate."""

SMALLEST, WON = 1.02, 0.8
"""Condition for a confirmed speed-up: (minimum median of the time ratios, minimum fraction of ratios above 1).

The second condition is a sign test.
"""

_chosen: dict[tuple[str, str], Choice] = {}
Assumption = Callable[[str, str, Collection[str]], str | None]
"""(op, case, candidates if they would be timed) -> name of the implementation, or None to decide as usual."""
_assumed: ContextVar[Assumption | None] = ContextVar("assumed", default=None)


@contextmanager
def assuming(assumption: Assumption) -> Iterator[None]:
    """Context manager: select implementations by ``assumption``, without timing or storing choices.

    Used to count costs and in measurements.
    """
    token = _assumed.set(assumption)
    try:
        yield
    finally:
        _assumed.reset(token)


def _assumption() -> Assumption | None:
    return None if torch.compiler.is_compiling() else _assumed.get()  # the compiler cannot trace context variables


def by_reference() -> bool:
    """Return whether a model is being exported, when every operation uses its reference implementation.

    In an export, sizes are symbolic, so that no choice can depend on them, and other libraries lack the faster
    operators.
    """
    return torch.compiler.is_exporting()


def chosen(op: str, case: str) -> Choice | None:
    """Return the choice for (op, case) made in this process, or None; a lookup of 0.3 µs, for frequent calls."""
    return _chosen.get((op, case)) if _assumption() is None else None


def choose(op: str, case: str, decide: Callable[[], Choice], among: Collection[str] = ()) -> Choice:
    """Return the choice for (op, case); call ``decide`` if this process has not made it yet.

    among: names of the candidates, if ``decide`` measures; a measured choice is also cached for later processes.
    """
    assumption = _assumption()
    if assumption is not None:
        twin = assumption(op, case, among)
        return decide() if twin is None else Choice(op, case, twin, "assumed")
    found = _chosen.get((op, case))
    if found is None:
        found = _chosen[op, case] = _measured(op, case, decide, among) if among else decide()
    return found


def _measured(op: str, case: str, decide: Callable[[], Choice], among: Collection[str]) -> Choice:
    fields = recall(op, case)
    if fields is not None and fields["twin"] in among:
        return Choice(op, case, **fields)
    # This may run inside activation checkpointing, whose hooks would save the trial's tensors as the model's, or inside
    # inference mode, which forbids the trial's backward pass.
    with torch.inference_mode(False), saved_tensors_hooks(_as_it_is, _as_it_is):
        found = decide()
    if found.gain is not None:
        remember(op, case, {"twin": found.twin, "reason": found.reason, "gain": found.gain})
    return found


def fastest(op: str, case: str, plain: str, runs: Mapping[str, Callable[[], object]], what: str) -> Choice:
    """Time ``runs`` by name and choose the fastest; ``plain`` unless a small speed-up is confirmed by alternating runs.

    ``what``: description of the timed work, for the reason. A candidate that raises RuntimeError is unavailable; if all
    candidates fail, RuntimeError is raised with the error of ``plain``.
    """
    found = timing.race(runs)
    if not found.seconds:
        raise RuntimeError(found.failed[plain])
    best = min(found.seconds, key=lambda name: found.seconds[name])
    reason = told(what, found)
    if plain in found.failed:
        return Choice(op, case, best, reason)
    gain = found.seconds[plain] / found.seconds[best]
    if 1 < gain < CLEAR:
        gain = _confirmed(timing.duel(runs[plain], runs[best]))
    return Choice(op, case, best, reason, gain) if gain > 1 else Choice(op, case, plain, reason, 1.0)


def _confirmed(ratios: list[float]) -> float:
    """Return the median of the sorted time ``ratios`` if they show a speed-up beyond chance (sign test), else 1."""
    middle = median(ratios)
    return middle if middle > SMALLEST and sum(ratio > 1 for ratio in ratios) >= WON * len(ratios) else 1.0


def told(what: str, found: timing.Race) -> str:
    """Format the times of all candidates, fastest first, and the errors of those that cannot run."""
    times = ", ".join(f"{name} {s * 1e3:.3g}" for name, s in sorted(found.seconds.items(), key=lambda item: item[1]))
    return "; ".join(
        [f"{what}, ms: {times}", *(f"{name} does not run here ({reason})" for name, reason in found.failed.items())]
    )


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def made(op: str, case: str) -> str | None:
    """Return the name of the implementation chosen for (op, case) in this process; None if none has been chosen yet."""
    found = _chosen.get((op, case))
    return None if found is None else found.twin


def all_choices() -> list[Choice]:
    """Return all choices made in this process, in order."""
    return list(_chosen.values())


def snapshot() -> list[dict[str, object]]:
    """Return all choices of this process as plain data, for ``restore``."""
    return [asdict(choice) for choice in _chosen.values()]


def restore(saved: list[dict[str, object]]) -> None:
    """Restore the choices ``saved`` by ``snapshot`` in an earlier process."""
    for item in saved:
        choice = Choice(**item)  # type: ignore[arg-type]
        _chosen[choice.op, choice.case] = choice
