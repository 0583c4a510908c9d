"""Outcome of one run of a comparison, finished or failed, and the function that carries out a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from qkv.runs.storage.files import clear_errors
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.training.watch.events import Ended, Event, Started, Stepped

FILE = "outcome.json"
KILLED = "killed by the operating system, for example because memory ran out"
"""Reason of failure of a run whose process was killed by another program or the system."""
_COUNTS = ("steps", "best step", "seconds in all", "training seconds", "training FLOPs")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run. failed: reason of the failure, or "".   figures: metrics of the best weights, "split.metric" ->
    value.   counts: steps, seconds, FLOPs.
    """

    failed: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)


class Report(NamedTuple):
    """Progress of a run: steps done, total steps, and targets per second."""

    step: int
    steps: int
    speed: float


OnReport = Callable[[Report], object]


def carry_out(recipe: Recipe, folder: Path, tell: OnReport) -> Outcome:
    """Train ``recipe`` in the run folder ``folder``, or resume it there; store the outcome in the folder, and return
    it.

    Any executor can call this function with ``Recipe.parse`` of the plain recipe; nothing else is needed. A run that
    diverges, runs out of memory or raises an unexpected error after training began counts as failed. Raises
    ``UserError`` for other errors, such as a full disk, and ``Interrupted`` after a signal.
    """
    outcome = read_outcome(folder)
    if outcome is None:
        outcome = _train(recipe, folder, tell)
        write_outcome(folder, outcome)
    return outcome


def _train(recipe: Recipe, folder: Path, tell: OnReport) -> Outcome:
    from qkv.training.compare import facts_of
    from qkv.training.loop import train

    begun, diverged = list[bool](), list[str]()

    def heard(event: Event) -> None:
        if isinstance(event, Started):
            begun.append(True)
            tell(Report(event.step, event.steps, 0.0))
        elif isinstance(event, Stepped):
            tell(Report(event.step, event.steps, event.tokens_per_second))
        elif isinstance(event, Ended) and event.status == "failed":
            diverged.append(event.message)

    try:
        train(recipe, folder, on_event=heard)
    except UserError:
        if not diverged:
            raise
        return Outcome(f"diverged: {diverged[0]}")
    except Exception as error:
        if _lacks_memory(error):
            return Outcome("out of memory")
        if not begun:
            raise
        return Outcome(f"{type(error).__name__}: {error}")
    facts = facts_of(folder)
    return Outcome("", facts.figures, {name: facts.counts.get(name) for name in _COUNTS})


def _lacks_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    )


def read_outcome(folder: Path) -> Outcome | None:
    """Read the outcome of the run in ``folder``; None if the run has not ended. Raises ``UserError`` if the file is
    damaged.
    """
    path = folder / FILE
    try:
        return Outcome(**json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):  # NotADirectoryError: starting the run will raise a UserError
        return None
    except (OSError, ValueError, TypeError, RecursionError):
        raise UserError(f"{path} is damaged; remove it, and the outcome is determined again from the run") from None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Store the outcome of the run in ``folder``. Raises ``UserError``."""
    with clear_errors(str(folder / FILE)):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / FILE, (json.dumps(asdict(outcome), indent=1) + "\n").encode())
