"""Which implementation of an op is used, why, and what it gained: what ``qkv why`` prints.

A choice that rests on a measurement can differ from one start to the next, and with it the last bits of a result. A run
therefore stores ``snapshot()`` beside its weights and calls ``restore()`` when it goes on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Choice:
    """The twin of ``op`` that is used where ``case`` holds."""

    op: str
    case: str
    twin: str
    reason: str
    gain: float | None = None
    """Times faster than the plain path, as measured on this machine; None if the choice follows from the shapes alone."""


_chosen: dict[tuple[str, str], Choice] = {}


def record(choice: Choice) -> Choice:
    """Remember a choice; the first one made for an (op, case) stays."""
    return _chosen.setdefault((choice.op, choice.case), choice)


def recorded(op: str, case: str) -> Choice | None:
    """The choice made so far, if any."""
    return _chosen.get((op, case))


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
