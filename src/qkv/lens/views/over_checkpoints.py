"""Values of one probe over all kept checkpoints of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qkv.models.transformer import Transformer
from qkv.runs.run import Run
from qkv.runs.storage.load import load_checkpoints
from qkv.system.errors import UserError

Probe = Callable[[Transformer], float | Mapping[str, float]]
"""Function from a model to one number, or to several by name."""


@dataclass(frozen=True)
class OverCheckpoints:
    """Values of a probe over S checkpoints: steps (S), and the values (S) by name; NaN where one has no such value."""

    steps: tuple[int, ...]
    values: Mapping[str, tuple[float, ...]]

    def first_step(self, name: str, bound: float) -> int | None:
        """Return the first step at which a value is at least ``bound``; None if it never is."""
        return next((step for step, value in zip(self.steps, self.values[name], strict=True) if value >= bound), None)


def over_checkpoints(run: Run | str | Path, probe: Probe) -> OverCheckpoints:
    """Apply ``probe`` to the model at every checkpoint that the run keeps, in the order of steps.

    A probe that returns one number has the name "value". ``training.checkpoints.keep`` and ``every`` of the recipe say
    which are kept. Raises ``UserError`` if there is none, or for a damaged one.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    rows = list[tuple[int, Mapping[str, float]]]()
    for checkpoint in load_checkpoints(folder):
        answer = probe(checkpoint.model)
        rows.append((checkpoint.step, answer if isinstance(answer, Mapping) else {"value": float(answer)}))
    if not rows:
        raise UserError(
            f"{folder} keeps no checkpoint; set training.checkpoints.every and training.checkpoints.keep before it is "
            "trained"
        )
    names = dict.fromkeys(name for _, values in rows for name in values)
    table = {name: tuple(float(values.get(name, float("nan"))) for _, values in rows) for name in names}
    return OverCheckpoints(tuple(step for step, _ in rows), table)
