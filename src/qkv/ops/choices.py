"""Which implementation of an op is used, why, and what it gained: what ``qkv why`` prints.

A choice that rests on a measurement can differ from one start to the next, and with it the last bits of a result. A run
therefore stores ``snapshot()`` beside its weights and calls ``restore()`` when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from qkv.ops import timing
from qkv.ops.remembered import recall, remember


@dataclass(frozen=True)
class Choice:
    """The twin of ``op`` that is used where ``case`` holds."""

    op: str
    case: str
    twin: str
    reason: str
    gain: float | None = None
    """Times faster than torch's plain path, or than the other precision, as measured on this machine; None if the choice follows
    from the shapes alone, or the plain path does not run here."""


NOISE = 1.1
"""In so short a measurement, a smaller gain is none."""

_chosen: dict[tuple[str, str], Choice] = {}


def choose(op: str, case: str, decide: Callable[[], Choice], among: Container[str] = ()) -> Choice:
    """The choice for an (op, case), decided when first asked for and kept.

    among: the twins that it may be, where it rests on a measurement; such a choice is remembered for the next process.
    """
    found = _chosen.get((op, case))
    if found is None:
        found = _chosen[op, case] = _measured(op, case, decide, among) if among else decide()
    return found


def _measured(op: str, case: str, decide: Callable[[], Choice], among: Container[str]) -> Choice:
    fields = recall(op, case)
    if fields is not None and fields["twin"] in among:
        return Choice(op, case, **fields)
    # A choice may fall inside activation checkpointing, whose hooks would take the trial's tensors for the model's, or inside
    # inference mode, which would forbid the trial's backward pass.
    with torch.inference_mode(False), saved_tensors_hooks(_as_it_is, _as_it_is):
        found = decide()
    if found.gain is not None:
        remember(op, case, {"twin": found.twin, "reason": found.reason, "gain": found.gain})
    return found


def fastest(op: str, case: str, plain: str, runs: Mapping[str, Callable[[], object]], what: str) -> Choice:
    """Time ``runs`` and take the quickest, or ``plain`` where nothing beats it by more than the noise.

    A candidate that raises RuntimeError is not available; if all do, the error of ``plain`` is raised.
    """
    found = timing.race(runs)
    if not found.seconds:
        raise RuntimeError(found.failed[plain])
    best = min(found.seconds, key=lambda name: found.seconds[name])
    reason = told(what, found)
    if plain in found.failed:
        return Choice(op, case, best, reason)
    gain = found.seconds[plain] / found.seconds[best]
    return Choice(op, case, best, reason, gain) if gain > NOISE else Choice(op, case, plain, reason, 1.0)


def told(what: str, found: timing.Race) -> str:
    """A clause with the time of each candidate, the quickest first, and what kept the others from running."""
    times = ", ".join(f"{name} {s * 1e3:.3g}" for name, s in sorted(found.seconds.items(), key=lambda item: item[1]))
    return "; ".join([f"{what}, ms: {times}", *(f"{name} does not run here ({reason})" for name, reason in found.failed.items())])


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def all_choices() -> list[Choice]:
    """Every choice made so far in this process, in order."""
    return list(_chosen.values())


def snapshot() -> list[dict[str, object]]:
    """The choices as plain data."""
    return [asdict(choice) for choice in _chosen.values()]


def restore(saved: list[dict[str, object]]) -> None:
    """Take the choices of an earlier start in place of this one's."""
    for item in saved:
        choice = Choice(**item)  # type: ignore[arg-type]
        _chosen[choice.op, choice.case] = choice
