"""Progress of a run between two steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qkv.data.batch import Batch
from qkv.models.transformer import Transformer


@dataclass
class Standing:
    """Counters of a run in progress, saved in each checkpoint. ``seconds``: training time, including earlier starts."""

    step: int = 0
    tokens: int = 0
    """Number of targets trained on so far."""
    rows: int = 0
    positions: int = 0
    """Number of positions of all rows so far, padding included."""
    sources: int = 0
    """Number of positions that an encoder has read so far, padding included."""
    seconds: float = 0.0
    best_figure: float | None = None
    """Best value so far of the metric ``training.validation.best``."""
    best_step: int = 0
    stale: int = 0
    """Number of validations since the best one."""
    looked: int = 0
    """Last step whose validation and sample are done."""
    sampling_seconds: float = 0.0
    preparation: float = 0.0
    """Seconds before training, over all starts: opening data, building the model, measuring costs."""

    def count(self, model: Transformer, batches: Iterable[Batch]) -> None:
        """Add the rows and positions that ``model`` computes for ``batches``, padding included, to the counters."""
        for batch in batches:
            self.rows += batch.input.num_rows
            self.positions += model.frontend.computed(batch.input)
            if batch.source is not None and model.encoder is not None:
                self.sources += model.encoder.frontend.computed(batch.source)
