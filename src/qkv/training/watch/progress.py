"""Counters of a run in progress, saved in each checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from qkv.data.batching.batch import Batch
from qkv.models.transformer import Transformer

FITTED = 0.8
"""A training loss below this share of the validation loss shows that the model has fitted the training rows."""
_KEPT, _FALLS = 0.95, 0.98
"""Weight of the previous value in the moving average of the training loss; ratio of this average to its value at the
best validation, below which the training loss counts as falling.
"""


@dataclass
class RunProgress:
    """Counters of a run in progress, saved in each checkpoint. ``seconds``: training time, including the time before
    the run was resumed.
    """

    step: int = 0
    tokens: int = 0
    """Number of targets trained on so far."""
    rows: int = 0
    positions: int = 0
    """Number of positions of all rows trained on so far, padding included."""
    sources: int = 0
    """Number of positions that the encoder has read so far, padding included."""
    seconds: float = 0.0
    best_figure: float | None = None
    """Best value so far of the metric ``training.validation.best``."""
    best_loss: float | None = None
    """Validation loss at the best value."""
    least_loss: float | None = None
    """Least validation loss so far."""
    best_step: int = 0
    stale: int = 0
    """Number of validations since the best one, or since the least loss if that is later."""
    train_loss: float | None = None
    """Moving average of the training loss."""
    best_train_loss: float | None = None
    """Moving average of the training loss at the best validation."""
    fitting: bool = False
    """True if, at the last validation, the training loss was still falling and exceeded ``FITTED`` times the validation
    loss.
    """
    looked: int = 0
    """Last step after which validation and sample, if due, are done."""
    sampling_seconds: float = 0.0
    preparation: float = 0.0
    """Seconds of preparation before training, summed over all times the run was started or resumed: opening data,
    building the model, measuring costs.
    """

    recent: list[float] = field(default_factory=list)
    """Last training losses that are no spikes, if spikes are skipped or rolled back."""
    spike_length: int = 0
    """Number of steps of the spike at this step, if any."""

    def saw(self, loss: float) -> None:
        """Update the moving average of the training loss with the loss of one step."""
        before = self.train_loss
        self.train_loss = loss if before is None else _KEPT * before + (1 - _KEPT) * loss

    def learns(self, loss: float) -> bool:
        """Return True if ``loss`` is the least validation loss so far; also record it."""
        if self.least_loss is not None and not loss < self.least_loss:
            return False
        self.least_loss = loss
        return True

    def compare(self, loss: float, best: bool) -> None:
        """Update ``fitting`` after a validation with loss ``loss``; ``best``: True if this validation is the best so
        far.
        """
        train_loss, before = self.train_loss, self.best_train_loss
        self.best_train_loss = train_loss if best else before
        falls = train_loss is not None and before is not None and train_loss < _FALLS * before
        self.fitting = train_loss is not None and falls and train_loss > FITTED * loss

    def count(self, model: Transformer, batches: Iterable[Batch]) -> None:
        """Add the rows and positions that ``model`` computes for ``batches``, padding included, to the counters."""
        for batch in batches:
            self.rows += batch.input.num_rows
            self.positions += model.frontend.computed(batch.input)
            if batch.source is not None and model.encoder is not None:
                self.sources += model.encoder.frontend.computed(batch.source)
