"""Where a run stands between two steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qkv.data.batch import Batch


@dataclass
class Standing:
    """Progress of a run; part of each checkpoint. ``seconds`` of training, earlier starts included."""

    step: int = 0
    tokens: int = 0
    """Targets of all steps."""
    rows: int = 0
    positions: int = 0
    """Of all rows, padding included."""
    sources: int = 0
    """Positions of what an encoder read, padding included."""
    seconds: float = 0.0
    best_figure: float | None = None
    """Of the kind that ``training.validation.best`` names."""
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    looked: int = 0
    """The last step after which validation and sample were done with."""
    sampling_seconds: float = 0.0
    preparation: float = 0.0
    """Seconds before training, of every start: data, model, rehearsal."""

    def count(self, batches: Iterable[Batch]) -> None:
        """Add what the forward passes over ``batches`` computed."""
        for rows, positions, sources in (batch.computed for batch in batches):
            self.rows, self.positions, self.sources = self.rows + rows, self.positions + positions, self.sources + sources
