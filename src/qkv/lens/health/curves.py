"""Checks of a run's curves: loss, spikes, validation, forecast. They read metrics only, so older runs have them too."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from qkv.data.batching.batch import Batch
from qkv.lens.health.evidence import Evidence
from qkv.lens.health.forecast import COVERAGE, PART, forecast
from qkv.lens.health.records import median_ratios
from qkv.lens.health.spikes import DEVIATIONS, find_spikes
from qkv.lens.health.verdict import Verdict
from qkv.runs.evaluation import measure
from qkv.tasks.dataset import ExampleDataset

LEARNED = 0.05
"""Minimum share of the initial loss by which it falls. With a loss of ln V for V equally probable outcomes, a model
that has learned nothing but their frequencies falls by more on all but uniform data.
"""
_PLATEAU = 100
"""Number of steps before which a plateau is no verdict."""
DIVERGED = 1.2
"""Maximum ratio of the loss at the end to its lowest level, as medians over a twentieth of the run."""
EARLY_RISE, FIRST_RATIO = 1.2, 0.2
"""Maximum ratio of the loss in the first tenth of a run to its first value, and maximum update-to-weight ratio of the
median layer in the first steps.
"""
_FIRST_STEPS = 3
OVERFITTED = 0.05
"""Maximum share by which the validation loss may rise above its minimum while the training loss falls."""
_SHOWN = 5


def check_learning(e: Evidence) -> Verdict | None:
    """Compare the fall of the training loss with ``LEARNED``."""
    _, losses = e.series("loss")
    if len(losses) < 20:
        return None
    start, end = statistics.median(losses[: max(1, len(losses) // 100)]), statistics.median(_last(losses, 10))
    fall = (start - end) / abs(start) if start else 0.0
    source = "less than what the frequencies of the outcomes alone give"
    sentence = (
        f"the training loss fell by {100 * fall:.1f} % of its first value {start:.4g}; below {100 * LEARNED:g} %, "
        f"{source}, nothing was learned"
    )
    if fall < LEARNED and (e.steps < _PLATEAU or e.recipe.start.checkpoint is not None):
        sentence += f", which says little after {e.steps} steps or after a start from trained weights"
        return Verdict("learning", "note", sentence, fall, LEARNED, source)
    ill = fall < LEARNED
    return Verdict(
        "learning", "alarm" if ill else "good", sentence, fall, LEARNED, source, e.with_rate(10) if ill else ""
    )


def check_divergence(e: Evidence) -> Verdict | None:
    """Compare the loss at the end with its lowest level."""
    steps, losses = e.series("loss")
    width = max(5, len(losses) // 20)
    if len(losses) < 4 * width:
        return None
    levels = [statistics.median(losses[i : i + width]) for i in range(0, len(losses) - width + 1, width)]
    lowest, end = min(levels), statistics.median(losses[-width:])
    place = steps[levels.index(lowest) * width]
    ratio = end / lowest if lowest > 0 else 1.0
    rise, spread = end - lowest, _spread(losses)
    ill = ratio > DIVERGED and rise > 3 * spread
    sentence = (
        f"the training loss ends at {ratio:.2f} times its lowest level {lowest:.4g}, of step {place:,}; above "
        f"{DIVERGED:g} times, and three times its spread between neighbouring steps, training diverges"
    )
    cure = e.with_rate(1 / 3) if ill else ""
    return Verdict("divergence", "alarm" if ill else "good", sentence, ratio, DIVERGED, "relative measure", cure)


def check_warmup(e: Evidence) -> Verdict | None:
    """Compare the highest loss at the beginning with the first one, and the first updates with the weights."""
    _, losses = e.series("loss")
    first = losses[: max(10, len(losses) // 10)]
    if len(losses) < 20 or first[0] <= 0:
        return None
    smooth = [statistics.median(first[i : i + 3]) for i in range(1, len(first) - 2)]
    ratio = max(smooth) / first[0]
    warmup = e.recipe.training.schedule.warmup
    update = max((r for step, r in median_ratios(e.records).items() if step <= _FIRST_STEPS), default=0.0)
    change = f", and the first updates change the weights by {update:.2g} of their size" if update else ""
    sentence = (
        f"with a warm-up of {warmup} steps, the loss of the first {len(first)} steps rises to {ratio:.2f} times its "
        f"first value{change}; above {EARLY_RISE:g} times or {FIRST_RATIO:g} of the size, the first updates are too "
        "large (Gotmare et al. 2019)"
    )
    ill = ratio > EARLY_RISE or update > FIRST_RATIO
    cure = e.cure(f"training.schedule.warmup={max(2 * warmup, e.steps // 10)}") if ill else ""
    source = "Gotmare et al. 2019: warm-up prevents large updates at the beginning"
    return Verdict("warmup", "warning" if ill else "good", sentence, ratio, EARLY_RISE, source, cure)


def check_spikes(e: Evidence) -> Verdict | None:
    """Find spikes of the training loss, and the rows of the batches that made them."""
    steps, losses = e.series("loss")
    if len(losses) < 20:
        return None
    spikes = find_spikes(steps, losses)
    source = "Iglewicz & Hoaglin 1993, with a wider limit for heavy tails"
    rule = (
        f"the median of the 50 losses before it by {DEVIATIONS:g} robust standard deviations, of them or of their "
        "logarithms"
    )
    if not spikes:
        return Verdict("spikes", "good", f"no loss exceeds {rule}", 0, 0, source)
    step, loss, limit = max(spikes, key=lambda spike: spike[1] / spike[2])
    some = ", ".join(f"{step:,}" for step, _, _ in spikes[:_SHOWN]) + (" …" if len(spikes) > _SHOWN else "")
    sentence = (
        f"{len(spikes)} losses exceed {rule}, in steps {some}; the largest, {loss:.4g} in step {step:,}, is above "
        f"{limit:.4g}{_batch_clause(e, step)}"
    )
    cure = e.cure("training.spikes=skip")
    return Verdict("spikes", "warning", sentence, loss, limit, source, cure, _rows(e, step))


def _rows(e: Evidence, step: int) -> tuple[str, ...]:
    """Return the numbers of the training rows of a step, from 1; empty if they are unknown."""
    many = e.recipe.training.accumulate
    numbers = [n for i in range(many) for n in (e.dataset.row_numbers((step - 1) * many + i) if e.dataset else ())]
    return tuple(str(n + 1) for n in numbers)


def _batch_clause(e: Evidence, step: int) -> str:
    """Name the rows of the batch, and the row whose loss under the trained weights is the highest."""
    rows = [int(name) - 1 for name in _rows(e, step)]
    if not rows or e.dataset is None:
        return ""
    unit = "rows" if isinstance(e.dataset, ExampleDataset) else "windows that begin at tokens"
    text = ", ".join(f"{row + 1:,}" for row in rows[:_SHOWN]) + (" …" if len(rows) > _SHOWN else "")
    clause = f"; its batch has the training {unit} {text}"
    if isinstance(e.dataset, ExampleDataset) and e.run is not None and e.task is not None:
        singles = [(e.dataset.batch_of([row]), row) for row in dict.fromkeys(rows)]
        loss, row = max((_loss(e, batch), row) for batch, row in singles)
        clause += f", of which row {row + 1:,} has the highest loss, {loss:.4g}"
    return clause


def _loss(e: Evidence, batch: Batch) -> float:
    assert e.run is not None
    assert e.task is not None
    totals = measure(e.run.model, e.task, [batch], e.recipe.training.precision)
    return totals.loss / max(1, totals.count) if totals else 0.0


def check_overfitting(e: Evidence) -> Verdict | None:
    """Compare the last validation loss with the lowest one, and the training loss between both."""
    steps, values = e.series("val_loss")
    if len(values) < 3:
        return None
    place = values.index(min(values))
    rise = values[-1] / values[place] - 1 if values[place] > 0 else 0.0
    at, losses = e.series("loss")
    before = [loss for step, loss in zip(at, losses, strict=True) if step <= steps[place]]
    falls = bool(before) and statistics.fmean(_last(losses, 10)) < statistics.fmean(_last(before, 10))
    late = len(values) - 1 - place
    ill = rise > OVERFITTED and late >= 2 and falls
    if place == len(values) - 1:
        sentence = f"the last validation, of step {steps[-1]:,}, is the best: {values[-1]:.4g}"
        return Verdict("overfitting", "good", sentence, 0.0, OVERFITTED, "relative measure")
    sentence = (
        f"the validation loss is lowest in step {steps[place]:,}, {values[place]:.4g}, and ends {100 * rise:.1f} % "
        f"higher while the training loss {'falls' if falls else 'does not fall'}; above {100 * OVERFITTED:g} % in two "
        "validations the model overfits (the run keeps the best weights)"
    )
    cure = e.cure(f"training.steps={max(1, steps[place])}") if ill else ""
    return Verdict("overfitting", "warning" if ill else "good", sentence, rise, OVERFITTED, "relative measure", cure)


def check_forecast(e: Evidence) -> Verdict | None:
    """Compare the loss at the end with the forecast after a tenth of the run."""
    _, losses = e.series("loss")
    planned = max(e.recipe.training.steps, e.steps) if e.recipe.training.minutes is None else e.steps
    part = losses[: int(PART * planned)]
    if len(part) < 3 * e.recipe.training.schedule.warmup:
        return None  # the losses of the warm-up follow no law
    expected = forecast(part, planned)
    if expected is None:
        return None
    sentence = (
        f"if the power law of the first {expected.read:,} steps holds, the loss after {planned:,} steps is "
        f"{expected.loss:.4g} ({100 * COVERAGE:g} % interval of the fit {expected.low:.4g} to {expected.high:.4g}; "
        "jumps that come later are not in it)"
    )
    if e.steps >= planned:
        sentence += f"; it is {statistics.fmean(_last(losses, 20)):.4g}"
    return Verdict("forecast", "note", sentence, expected.loss, expected.high, "power law, Hestness et al. 2017")


def check_data_seen(e: Evidence) -> Verdict | None:
    """State how often the training data was read."""
    if e.dataset is None or e.dataset.epoch_targets <= 0 or not e.steps or e.task is None:
        return None
    if e.task.spec.reads == "nothing":
        return None
    many = e.recipe.training.accumulate
    sample = range(min(8, e.steps))
    targets = statistics.fmean(e.dataset.batch(step * many).num_targets for step in sample) * many * e.steps
    epochs = targets / e.dataset.epoch_targets
    seen = f"{100 * epochs:.3g} % of the training data was read" if epochs < 1 else f"{epochs:.3g} epochs were read"
    sentence = (
        f"{seen}; up to 4 epochs of a text are nearly as good as new text, and after about 40 more add nothing "
        "(Muennighoff et al. 2023)"
    )
    return Verdict("data_seen", "note", sentence, epochs, 40, "Muennighoff et al. 2023")


def _last(values: Sequence[float], parts: int) -> Sequence[float]:
    return values[-max(1, len(values) // parts) :]


def _spread(losses: Sequence[float]) -> float:
    """Return a robust standard deviation of the noise of single losses, from differences of neighbours."""
    steps = [abs(b - a) for a, b in itertools.pairwise(losses)]
    return 1.4826 * statistics.median(steps) / 2**0.5
