"""HTML report of a training run: model, curves, evaluation, samples, cost, next commands."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.report.evaluation import BESIDE_THE_POINT, add_evaluation, chosen_by, headline, named, words
from qkv.report.figures import duration, fixed, short
from qkv.report.page import Page, Tone
from qkv.report.sections import add_sections

Status = Literal["running", "finished", "stopped", "failed"]

_TONES: dict[Status, Tone] = {"running": "accent", "finished": "good", "stopped": "", "failed": "danger"}
_UNSEEN = ("bits_per_token", "bits_per_byte")
"""Metrics that are not shown, because they are other metrics in less common units."""
_MOST_SAMPLES, _LONGEST_SAMPLE = 24, 6000


@dataclass(frozen=True)
class TrainingRun:
    """Data of a training run that its HTML report shows.

    ``metrics`` are the rows of ``metrics.jsonl``: ``step``, ``time`` (seconds trained so far), ``loss`` and
    ``val_loss`` (in ``loss_unit``), further ``val_`` metrics of the task, ``lr``, ``grad_norm``, ``tokens_per_second``,
    ``event``; all are optional. ``samples`` are ``{"step", "text"}``; default: ``sample`` of the rows. ``figures`` may
    have ``total_steps``, ``parameters``, ``flops`` (total), ``tokens`` (total), ``characters_per_token`` (of the
    validation text) and ``clip_norm``; missing ones are omitted from the report. ``message``: reason why a run stopped
    or failed; ``usage``: (purpose, command) to use the run. ``evaluation``: ``step`` and ``splits`` of the evaluation
    of the best weights.
    """

    name: str
    description: str = ""
    metrics: Sequence[Mapping[str, Any]] = ()
    spec_yaml: str = ""
    cost: Sequence[tuple[str, str]] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()
    folder: str = ""
    status: Status = "finished"
    message: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    loss_unit: str = "nats a token"
    best: str = "loss"
    """Validation metric that selected the best weights."""
    usage: tuple[str, str] = ("", "")
    evaluation: Mapping[str, Any] | None = None
    sections: Sequence[Mapping[str, Any]] = ()
    """Further sections, in the form of ``qkv.report.sections``."""

    def series(self, key: str) -> tuple[list[float], list[float]]:
        """Return (steps, values) of the metric ``key`` over training."""
        rows = [row for row in self.metrics if row.get(key) is not None and row.get("step") is not None]
        return [row["step"] for row in rows], [float(row[key]) for row in rows]

    def last(self, key: str) -> float | None:
        """Return the newest finite value of the metric ``key``; None if there is none."""
        return next((v for v in reversed(self.series(key)[1]) if math.isfinite(v)), None)

    @property
    def counted(self) -> str:
        """Plural of the items over which the loss is averaged: tokens, examples or words."""
        return f"{self.loss_unit.rpartition(' ')[2]}s"

    @property
    def measured(self) -> list[str]:
        """Names of the validation metrics other than the loss, without the prefix "val_"."""
        names = dict.fromkeys(name for row in self.metrics if "val_loss" in row for name in row)
        return [name.removeprefix("val_") for name in names if name.startswith("val_") and name != "val_loss"]

    @property
    def step(self) -> int:
        """Latest step in the metrics."""
        return max((int(row["step"]) for row in self.metrics if row.get("step") is not None), default=0)


def training_report(run: TrainingRun) -> str:
    """Build a self-contained HTML report of a training run; the page of a running run reloads twice a minute."""
    page = Page(run.name or "Training run", refresh=30 if run.status == "running" else None)
    page.data["run"] = _data(run)
    page.header(run.description, run.status, _TONES[run.status])
    _add_progress(page, run)
    for sentence in _what_happened(run):
        page.note(sentence, "danger" if run.status == "failed" else "accent")
    page.cards(cards(run))
    add_sections(page, run.sections)
    _add_curves(page, run)
    if run.evaluation:
        add_evaluation(page, run.evaluation["splits"], run.evaluation["step"], run.best)
    _add_samples(page, run)
    if run.cost:
        with page.section("Cost"):
            page.table([], run.cost)
    _add_commands(page, run)
    if run.spec_yaml:
        with page.section("Recipe"), page.details("spec.yaml", open_=run.spec_yaml.count("\n") < 30):
            page.code(run.spec_yaml, "yaml")
    if run.environment:
        with page.section("Environment"):
            page.table([], list(run.environment.items()))
    return page.html()


def cards(run: TrainingRun) -> list[Card]:
    """Build the cards of the key numbers that are available: losses, metrics of the task, speed, time and size."""
    return [card for card in (_validation_card(run), *_task_cards(run), *(make(run) for make in _CARDS)) if card]


def _add_progress(page: Page, run: TrainingRun) -> None:
    total = run.figures.get("total_steps")
    if run.status != "finished" and total:
        page.progress(run.step, total, f"step {run.step:,} of {total:,.0f}, {run.step / total:.0%}")


def _data(run: TrainingRun) -> dict[str, Any]:
    """Return a summary of the run as plain data, to embed in the page; the curves are embedded separately."""
    validations = [{"step": s, "val_loss": v} for s, v in zip(*run.series("val_loss"), strict=True)]
    data = {
        "name": run.name,
        "status": run.status,
        "message": run.message,
        "step": run.step,
        "figures": dict(run.figures),
    }
    return {
        **data,
        "cost": [list(row) for row in run.cost],
        "environment": dict(run.environment),
        "validations": validations,
    }


def _what_happened(run: TrainingRun) -> list[str]:
    """Return sentences on how the run ended: its message, and the step of the first non-finite loss if the message does
    not name it.
    """
    sentences = [run.message] if run.message else []
    steps, losses = run.series("loss")
    bad = next((step for step, loss in zip(steps, losses, strict=True) if not math.isfinite(loss)), None)
    if bad is not None and str(bad) not in run.message and f"{bad:,}" not in run.message:
        sentences.append(f"The training loss became NaN or infinite at step {bad:,}.")
    if run.status == "failed" and not sentences:
        sentences.append(f"The run failed after step {run.step:,}.")
    return sentences


Card = tuple[str, str, str]


def _validation_card(run: TrainingRun) -> Card | None:
    steps, values = run.series("val_loss")
    last = run.last("val_loss")
    if last is None:
        return None
    if run.evaluation:  # show the loss of the evaluated weights, as the other cards do
        at = run.evaluation["step"]
        saved = next((v for v, s in zip(values, steps, strict=True) if s == at and math.isfinite(v)), None)
        if saved is not None:
            return (
                "Loss, validation",
                fixed(saved),
                f"step {at:,}, {chosen_by(run.best)}" if at != run.step else run.loss_unit,
            )
    best, at = min((v, s) for v, s in zip(values, steps, strict=True) if math.isfinite(v))
    return "Validation loss", fixed(last), run.loss_unit if best == last else f"best {fixed(best)} at step {at:,}"


def _train_loss_card(run: TrainingRun) -> Card | None:
    _, losses = run.series("loss")
    recent = [v for v in losses[-50:] if math.isfinite(v)]
    if not recent:
        return None
    return (
        "Training loss",
        fixed(statistics.fmean(recent)),
        f"mean of {len(recent)} steps" if len(recent) > 1 else "one step",
    )


def _task_cards(run: TrainingRun) -> list[Card]:
    """Build the cards of the task's metrics from the final evaluation, or from the last validation if there is none
    yet.
    """
    if run.evaluation:
        return headline(run.evaluation["splits"])
    pairs = [(name, run.last(f"val_{name}")) for name in run.measured if name not in _UNSEEN]
    return [(named(name), fixed(value), _beside(run, name)) for name, value in pairs if value is not None]


def _beside(run: TrainingRun, name: str) -> str:
    width = run.figures.get("characters_per_token")
    if name == "bits_per_character" and width and width != 1:
        return f"{short(width)} characters per token"
    return "" if name == "bits_per_character" else "on the validation split"


def _speed_card(run: TrainingRun) -> Card | None:
    values = [v for v in run.series("tokens_per_second")[1] if math.isfinite(v)]
    return (f"{run.counted} per second".capitalize(), short(statistics.median(values)), "median") if values else None


def _time_card(run: TrainingRun) -> Card | None:
    seconds = max((float(row["time"]) for row in run.metrics if row.get("time") is not None), default=None)
    if seconds is None:
        return None
    tokens = run.figures.get("tokens")
    return "Training time", duration(seconds), f"{short(tokens)} {run.counted}" if tokens else ""


def _parameters_card(run: TrainingRun) -> Card | None:
    count = run.figures.get("parameters")
    return ("Parameters", short(count), f"{count:,.0f}" if count >= 1e4 else "") if count else None


def _flops_card(run: TrainingRun) -> Card | None:
    flops = run.figures.get("flops")
    return ("Compute", short(flops), "floating-point operations") if flops else None


_CARDS: list[Callable[[TrainingRun], Card | None]] = [
    _train_loss_card,
    _time_card,
    _speed_card,
    _parameters_card,
    _flops_card,
]


def _add_curves(page: Page, run: TrainingRun) -> None:
    loss = loss_chart(run)
    charts = [
        *_figure_charts(run),
        *(chart for chart in (_rate_chart(run), _norm_chart(run), _speed_chart(run)) if chart),
    ]
    if not loss.lines and not charts:
        return
    with page.section("Learning curves"):
        if loss.lines:
            page.chart(loss)
        if charts:
            page.charts(charts)
        _add_validations(page, run)


def loss_chart(run: TrainingRun, width: int = 960, height: int = 360) -> LineChart:
    """Draw the training loss (smoothed and raw) and the validation loss as a line chart.

    The axis is logarithmic if the largest loss is over twice the smallest.
    """
    lines = []
    steps, losses = run.series("loss")
    if steps:
        lines.append(Line("training", steps, losses, smooth=True))
    at, held_out = run.series("val_loss")
    if at:
        lines.append(Line("validation", at, held_out, points=True))
    log = _spread(losses + held_out) > 2
    label = f"{run.loss_unit}, logarithmic" if log else run.loss_unit
    events = [
        (row["step"], str(row["event"])) for row in run.metrics if row.get("event") and row.get("step") is not None
    ]
    return LineChart("Loss", lines, "step", label, y_log=log, events=events, width=width, height=height)


def _spread(values: list[float]) -> float:
    """Return the ratio of the largest to the smallest finite value.

    It is 0 if a value is not positive, which a logarithmic axis cannot show.
    """
    finite = [v for v in values if math.isfinite(v)]
    return max(finite) / min(finite) if finite and min(finite) > 0 else 0.0


def _small(title: str, line: Line, **options: Any) -> LineChart:
    return LineChart(title, [line], "step", width=360, height=230, **options)


def _figure_charts(run: TrainingRun) -> list[LineChart]:
    """Draw line charts of the validation metrics that are not functions of the loss."""
    charts = []
    for name in run.measured:
        steps, values = run.series(f"val_{name}")
        if name not in BESIDE_THE_POINT and steps:
            charts.append(_small(named(name), Line(words(name), steps, values, points=True)))
    return charts


def _rate_chart(run: TrainingRun) -> LineChart | None:
    steps, values = run.series("lr")
    return _small("Learning rate", Line("learning rate", steps, values), y_zero=True) if steps else None


def _norm_chart(run: TrainingRun) -> LineChart | None:
    steps, values = run.series("grad_norm")
    if not steps:
        return None
    log, clip = _spread(values) > 20, run.figures.get("clip_norm")
    unit = ", ".join(words for words in ("logarithmic" if log else "", f"clipped at {clip:g}" if clip else "") if words)
    return _small("Gradient norm", Line("gradient norm", steps, values, smooth=True), y_label=unit, y_log=log)


def _speed_chart(run: TrainingRun) -> LineChart | None:
    steps, values = run.series("tokens_per_second")
    return (
        _small(
            f"{run.counted} per second".capitalize(),
            Line(f"{run.counted} per second", steps, values, smooth=True),
            y_zero=True,
        )
        if steps
        else None
    )


def _add_validations(page: Page, run: TrainingRun) -> None:
    steps, values = run.series("val_loss")
    if len(steps) < 2:
        return
    training = dict(zip(*run.series("loss"), strict=True))
    curves = {
        words(name): dict(zip(*run.series(f"val_{name}"), strict=True)) for name in run.measured if name not in _UNSEEN
    }
    rows = [
        [int(s), training.get(s), v, *(curve.get(s) for curve in curves.values())]
        for s, v in zip(steps, values, strict=True)
    ]
    with page.details(f"{len(rows):,} validations as a table"):
        page.table(["step", "training loss", "validation loss", *curves], _spaced(rows, 200))


def _spaced(items: Sequence[Any], most: int) -> list[Any]:
    """Return all items, or ``most`` evenly spaced items that include the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _add_samples(page: Page, run: TrainingRun) -> None:
    logged = [
        {"step": row.get("step", 0), "text": row["sample"]} for row in run.metrics if row.get("sample") is not None
    ]
    samples = _spaced(run.samples or logged, _MOST_SAMPLES)
    if not samples:
        return
    *earlier, last = samples
    writes = "Generated text" if run.counted == "tokens" else "Predictions"
    with page.section("Sample predictions during training" if run.evaluation else writes):
        page.prose(f"After {int(last['step']):,} steps:")
        page.sample(_cut(str(last["text"])))
        if earlier:
            page.prose("Earlier:")
        for sample in earlier:
            with page.details(f"step {int(sample['step']):,}", preview=str(sample["text"])):
                page.sample(_cut(str(sample["text"])))


def _cut(text: str) -> str:
    beyond = len(text) - _LONGEST_SAMPLE
    return text if beyond <= 0 else f"{text[:_LONGEST_SAMPLE]}\n… and {beyond:,} more characters"


def _add_commands(page: Page, run: TrainingRun) -> None:
    """Append the shell commands to use, evaluate or resume the run."""
    if not run.folder:
        return
    folder = shlex.quote(run.folder)
    use = run.usage if run.usage[1] else ("generate text", f'qkv generate {folder} "Once upon a time"')
    commands = [use, ("evaluate on held-out data", f"qkv evaluate {folder}")]
    if run.status in ("stopped", "failed"):
        commands.insert(0, ("resume from the last checkpoint", f"qkv train {folder}"))
    with page.section("Next steps"):
        page.code("\n".join(f"# {what}\n{command}" for what, command in commands), "shell")
