"""Progress of a run between two steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qkv.data.batch import Batch


@dataclass
class Standing:
    """Progress of a run; part of each checkpoint. ``seconds``: training time, including earlier starts."""

    step: int = 0
    tokens: int = 0
    """Total targets."""
    rows: int = 0
    positions: int = 0
    """Total positions of all rows, padding included."""
    sources: int = 0
    """Total positions that an encoder read, padding included."""
    seconds: float = 0.0
    best_figure: float | None = None
    """Best value of the metric ``training.validation.best``."""
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    looked: int = 0
    """Last step whose validation and sample are complete."""
    sampling_seconds: float = 0.0
    preparation: float = 0.0
    """Seconds before training, over all starts: data, model, rehearsal."""

    def count(self, batches: Iterable[Batch]) -> None:
        """Add the rows and positions computed for ``batches``."""
        for rows, positions, sources in (batch.computed for batch in batches):
            self.rows, self.positions, self.sources = self.rows + rows, self.positions + positions, self.sources + sources
