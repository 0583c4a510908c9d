"""Which implementation of an op is used, why, and what it gained: what ``qkv why`` prints.

A choice that rests on a measurement can differ from one start to the next, and with it the last bits of a result. A run
therefore stores ``snapshot()`` beside its weights and calls ``restore()`` when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from qkv.ops.timing import shortest


@dataclass(frozen=True)
class Choice:
    """The twin of ``op`` that is used where ``case`` holds."""

    op: str
    case: str
    twin: str
    reason: str
    gain: float | None = None
    """Times faster than torch's plain path, as measured on this machine; None if the choice follows from the shapes alone."""


_chosen: dict[tuple[str, str], Choice] = {}


def choose(op: str, case: str, decide: Callable[[], Choice]) -> Choice:
    """The choice for an (op, case), decided when first asked for and kept."""
    found = _chosen.get((op, case))
    if found is None:
        found = _chosen[op, case] = decide()
    return found


def fastest(op: str, case: str, plain: str, runs: Mapping[str, Callable[[], object]], what: str) -> Choice:
    """Time each of ``runs`` and take the quickest, or ``plain`` where nothing beats it by more than the noise."""
    # A choice may fall inside activation checkpointing, whose hooks would take the trial's tensors for the model's.
    with saved_tensors_hooks(_as_it_is, _as_it_is):
        seconds = {name: shortest(run) for name, run in runs.items()}
    best = min(seconds, key=lambda name: seconds[name])
    gain = seconds[plain] / seconds[best]
    # Within the noise of so short a measurement the plain path is kept.
    twin, gain = (best, gain) if gain > 1.1 else (plain, 1.0)
    times = ", ".join(f"{name} {s * 1e3:.3g}" for name, s in sorted(seconds.items(), key=lambda item: item[1]))
    return Choice(op, case, twin, f"{what}, ms: {times}", gain)


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
