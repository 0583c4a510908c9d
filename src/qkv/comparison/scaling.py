"""Scaling of models: train every entry at several sizes and training lengths, fit a scaling law, and check it with a
larger run.

    OUT/scaling.json, scaling.html
    OUT/ENTRY/size-FACTOR/steps-FACTOR/rate-FACTOR/seed-SEED/   an ordinary run folder
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from qkv.comparison.budget import Sized, resized
from qkv.comparison.executors import Executor, Watcher, execute
from qkv.comparison.law import Extrapolation, FittedLaw, LossPoint, fitted_law
from qkv.comparison.outcome import Outcome
from qkv.comparison.plan import PlannedRun, RunPlan, scaled
from qkv.comparison.ranking import value_of
from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.report.comparison import TableOf, ranking_report
from qkv.report.evaluation import ERRORS, words
from qkv.report.figures import fixed, short
from qkv.runs.storage.files import clear_errors
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.comparison import factor_name
from qkv.system.errors import UserError
from qkv.system.files import write_file

RESULTS = "scaling.json"
LENGTHS = (1, 2, 4)
"""Training lengths, as factors of the recipe's number of steps."""
_PARAMETERS = ("E", "A", "α", "B", "β")


@dataclass(frozen=True)
class ScaledRun:
    """One finished run: factors of its size and training length, and its loss; None if it failed."""

    size: int
    length: int
    seed: int
    parameters: int
    tokens: int
    loss: float | None


@dataclass(frozen=True)
class EntryScaling:
    """Results of one entry: its runs, the scaling law fitted to them, and, if requested, a larger run with the loss
    that the law predicts for it.
    """

    name: str
    runs: tuple[ScaledRun, ...]
    fit: FittedLaw | None
    larger: ScaledRun | None
    extrapolated: Extrapolation | None

    @property
    def holds(self) -> bool | None:
        """True if the larger run's loss lies in the 90 % prediction interval; None without a larger run or its loss."""
        if self.extrapolated is None or self.larger is None or self.larger.loss is None:
            return None
        return self.extrapolated.low <= self.larger.loss <= self.extrapolated.high


@dataclass(frozen=True)
class Scaling:
    """Results of all entries of a scaling comparison."""

    plan: RunPlan
    entries: tuple[EntryScaling, ...]
    split: ClassVar[str] = "validation"
    page: ClassVar[str] = "scaling.html"

    def conclusions(self) -> list[str]:
        """Return sentences that state the law of each entry, and whether it predicted the larger run."""
        sentences = []
        for entry in self.entries:
            failed = sum(run.loss is None for run in entry.runs)
            if failed:
                sentences.append(f"{entry.name}: {failed} of {len(entry.runs)} runs failed.")
            if entry.fit is not None:
                e, a, alpha, b, beta = map(short, entry.fit.law)
                sentences.append(
                    f"{entry.name}: L = {e} + {a} N^-{alpha} + {b} D^-{beta} for N parameters and D tokens."
                )
            if entry.extrapolated is not None and entry.larger is not None:
                sentences.append(_checked(entry, entry.extrapolated, entry.larger))
        return sentences

    def tables(self) -> list[TableOf]:
        """Build two tables: the losses of all runs, and the laws with their intervals."""
        columns = ["entry", "parameters", "tokens", "seed", f"{words(self.plan.metric)} ({self.split})", "law"]
        rows = [row for entry in self.entries for row in _run_rows(entry)]
        laws = [
            [entry.name, *(f"{short(v)} ({short(low)}–{short(high)})" for v, (low, high) in _law_values(entry.fit))]
            for entry in self.entries
            if entry.fit is not None
        ]
        title = "L = E + A N^-α + B D^-β, with 90 % intervals from the bootstrap"
        return [TableOf("losses", columns, rows), TableOf(title, ["entry", *_PARAMETERS], laws)]

    def plain(self) -> dict[str, Any]:
        """Return the content as plain data, for JSON."""
        return {
            "metric": self.plan.metric,
            "split": self.split,
            "conclusions": self.conclusions(),
            "entries": [_plain(entry) for entry in self.entries],
        }

    def report(self) -> str:
        """Build a self-contained HTML page: conclusions, charts of loss against compute, tables of losses and laws."""
        lead = f"{self.plan.comparison.recipe}: {self.plan.comparison.scale} sizes, {len(LENGTHS)} lengths of training"
        charts = [_chart(entry, words(self.plan.metric)) for entry in self.entries]
        title = "Scaling of " + ", ".join(entry.name for entry in self.entries)
        return ranking_report(title, lead, self.conclusions(), charts, self.tables(), [], self.plain())


@dataclass(frozen=True)
class _Cell:
    """Model of one size and one training length."""

    entry: str
    size: int
    length: int
    sized: Sized
    recipe: Recipe

    def planned(self, plan: RunPlan, rate: float, seed: int) -> PlannedRun:
        training = self.recipe.training.changed(optimizer=scaled(self.recipe.training.optimizer, rate), seed=seed)
        place = plan.folder / self.entry / f"size-{self.size}" / f"steps-{self.length}"
        name = f"{self.entry}, size × {self.size}, steps × {self.length}"
        recipe = self.recipe.changed(training=training)
        return PlannedRun(name, rate, seed, recipe, place / f"rate-{factor_name(rate)}" / f"seed-{seed}")

    def finished(self, run: PlannedRun, outcome: Outcome, metric: str) -> ScaledRun:
        training, model = self.recipe.training, self.recipe.model
        tokens = training.steps * training.batch_size * training.accumulate * model.context_length
        loss = value_of(outcome, Scaling.split, metric)
        return ScaledRun(self.size, self.length, run.seed, self.sized.parameters, tokens, loss)


def scale(plan: RunPlan, executor: Executor, watcher: Watcher, fit: bool) -> Scaling:
    """Train every entry of ``plan`` at its sizes and training lengths. With ``fit``, also fit a law to the losses,
    extrapolate it to twice the largest size and length, and train that model.

    The learning rate of each size is the best on validation data with the shortest training and the first seed. The
    rate of the larger model is extrapolated from these by ``extrapolated_rate``. Raises ``UserError`` for a metric of
    which higher values are better, and for recipes with a time budget.
    """
    _check(plan)
    cells = {name: _cells(plan, name, sized) for name, sized in plan.entries.items()}
    rates = _rates(plan, cells, executor, watcher)
    seeds = plan.comparison.seeds
    cases = [(cell, rates[name, cell.size], seed) for name in cells for cell in cells[name] for seed in seeds]
    cases = [each for each in cases if each[1] is not None]
    runs = [cell.planned(plan, rate or 1.0, seed) for cell, rate, seed in cases]
    outcomes = execute(runs, executor, watcher)
    results: dict[str, list[ScaledRun]] = {name: [] for name in cells}
    for (cell, _, _), run, outcome in zip(cases, runs, outcomes, strict=True):
        results[cell.entry].append(cell.finished(run, outcome, plan.metric))
    entries = [_entry(plan, name, results[name], rates, executor, watcher, fit) for name in cells]
    done = Scaling(plan, tuple(entries))
    with clear_errors(f"the folder {plan.folder}"):
        write_file(plan.folder / RESULTS, (json.dumps(done.plain(), ensure_ascii=False, indent=1) + "\n").encode())
        write_file(plan.folder / Scaling.page, done.report().encode())
    return done


def total(plan: RunPlan, fit: bool) -> int:
    """Return the maximum number of runs of a scaling comparison."""
    compared = plan.comparison
    sizes = compared.scale or 0
    tried = sizes * (len(compared.rates) - 1)
    return len(plan.entries) * (tried + sizes * len(LENGTHS) * len(compared.seeds) + fit)


def _check(plan: RunPlan) -> None:
    if plan.metric not in ERRORS:
        raise UserError(
            f"metric: a scaling law needs a metric that decreases, such as loss, but {plan.metric!r} increases"
        )
    for name, sized in plan.entries.items():
        if sized.recipe.training.minutes is not None:
            raise UserError(
                f"entry {name!r} has training.minutes, but scaling varies the number of steps; set it to null"
            )


def _cells(plan: RunPlan, name: str, smallest: Sized) -> list[_Cell]:
    """Return the models of an entry at all sizes, sorted by size, each with all training lengths."""
    sizes = [2**i for i in range(plan.comparison.scale or 0)]
    return [cell for size in sizes for cell in _of_size(plan, name, smallest, size, LENGTHS)]


def _of_size(plan: RunPlan, name: str, smallest: Sized, size: int, lengths: Iterable[int]) -> list[_Cell]:
    knob = plan.comparison.knobs.get(name, "model.width")
    base = smallest if size == 1 else resized(name, smallest.recipe, size * smallest.parameters, knob)
    steps = base.recipe.training.steps
    trained = {n: base.recipe.changed(training=base.recipe.training.changed(steps=n * steps)) for n in lengths}
    return [_Cell(name, size, n, base, recipe) for n, recipe in trained.items()]


def _rates(
    plan: RunPlan, cells: Mapping[str, Sequence[_Cell]], executor: Executor, watcher: Watcher
) -> dict[tuple[str, int], float | None]:
    """Choose (entry, size) -> factor of the learning rate; None if all its runs failed."""
    compared = plan.comparison
    shortest = [cell for each in cells.values() for cell in each if cell.length == LENGTHS[0]]
    if len(compared.rates) == 1:
        return {(cell.entry, cell.size): compared.rates[0] for cell in shortest}
    cases = [(cell, rate) for cell in shortest for rate in compared.rates]
    outcomes = execute([cell.planned(plan, rate, compared.seeds[0]) for cell, rate in cases], executor, watcher)
    best: dict[tuple[str, int], tuple[float, float]] = {}
    for (cell, rate), outcome in zip(cases, outcomes, strict=True):
        loss, key = value_of(outcome, Scaling.split, plan.metric), (cell.entry, cell.size)
        if loss is not None and (key not in best or loss < best[key][0]):
            best[key] = loss, rate
    return {(cell.entry, cell.size): best.get((cell.entry, cell.size), (0.0, None))[1] for cell in shortest}


def _entry(
    plan: RunPlan,
    name: str,
    runs: Sequence[ScaledRun],
    rates: Mapping[tuple[str, int], float | None],
    executor: Executor,
    watcher: Watcher,
    fit: bool,
) -> EntryScaling:
    points = [LossPoint(run.parameters, run.tokens, run.loss) for run in runs if run.loss is not None]
    if not fit:
        return EntryScaling(name, tuple(runs), None, None, None)
    try:
        law = fitted_law(points)
    except ValueError as error:
        raise UserError(f"entry {name!r}: {error}; use more sizes with --scale, or check why runs failed") from None
    largest = max(run.size for run in runs)
    (cell,) = _of_size(plan, name, plan.entries[name], 2 * largest, [2 * LENGTHS[-1]])
    chosen = {size: rate for (entry, size), rate in rates.items() if entry == name and rate is not None}
    run = cell.planned(plan, extrapolated_rate(chosen, cell.size), plan.comparison.seeds[0])
    larger = cell.finished(run, execute([run], executor, watcher)[0], plan.metric)
    return EntryScaling(name, tuple(runs), law, larger, law.extrapolated(larger.parameters, larger.tokens))


def extrapolated_rate(chosen: Mapping[int, float], size: int) -> float:
    """Extrapolate the factor of the learning rate to a model ``size`` times as large as the smallest. ``chosen``: size
    -> best factor.

        log rate = a + b log size, by least squares

    The best rate falls with size as a power law (Kaplan et al. 2020, Bi et al. 2024). With a single size, its factor is
    returned.
    """
    if len(chosen) < 2:
        return next(iter(chosen.values()), 1.0)
    slope, start = np.polyfit(np.log2(list(chosen)), np.log2(list(chosen.values())), 1)
    return round(float(2 ** (start + slope * math.log2(size))), 4)


def _checked(entry: EntryScaling, predicted: Extrapolation, larger: ScaledRun) -> str:
    about = f"{entry.name}: {larger.parameters:,} parameters and {short(larger.tokens)} tokens"
    interval = f"{fixed(predicted.loss)} ({fixed(predicted.low)}–{fixed(predicted.high)})"
    if larger.loss is None:
        return f"{about}: predicted {interval}, but the run failed."
    inside = "inside" if entry.holds else "outside"
    return f"{about}: predicted {interval}, measured {fixed(larger.loss)}, {inside} the 90 % interval."


def _run_rows(entry: EntryScaling) -> list[list[Any]]:
    more = [] if entry.larger is None else [entry.larger]
    rows = []
    for run in (*entry.runs, *more):
        expected = "" if entry.fit is None else fixed(entry.fit.law.loss(run.parameters, run.tokens))
        loss = "failed" if run.loss is None else fixed(run.loss)
        rows.append([entry.name, run.parameters, short(run.tokens), run.seed, loss, expected])
    return rows


def _law_values(fit: FittedLaw) -> Iterable[tuple[float, tuple[float, float]]]:
    return zip(fit.law, fit.ranges, strict=True)


def _chart(entry: EntryScaling, metric: str) -> LineChart:
    """Draw the loss against compute, 6 N D FLOPs, with one line for each size and points for the larger run."""
    lines = []
    for size in sorted({run.size for run in entry.runs}):
        runs = [run for run in entry.runs if run.size == size and run.loss is not None]
        label = f"{short(runs[0].parameters)} parameters" if runs else ""
        compute, losses = [6.0 * run.parameters * run.tokens for run in runs], [run.loss for run in runs]
        lines += [Line(label, compute, losses, points=True)] if runs else []
    if entry.larger is not None and entry.extrapolated is not None:
        at = 6.0 * entry.larger.parameters * entry.larger.tokens
        low, high = entry.extrapolated.low, entry.extrapolated.high
        lines.append(Line("extrapolated, 90 %", [at, at], [low, high], points=True))
        lines.append(Line("larger run", [at], [entry.larger.loss], points=True))
    title = f"{metric[:1].upper()}{metric[1:]} of {entry.name} by compute"
    about = "Compute is 6 N D FLOPs for N parameters and D tokens."
    return LineChart(title, lines, "FLOPs", metric, x_log=True, y_log=True, description=about)


def _plain(entry: EntryScaling) -> dict[str, Any]:
    fit, predicted = entry.fit, entry.extrapolated
    return {
        "name": entry.name,
        "runs": [vars(run) for run in entry.runs],
        "law": None if fit is None else fit.law._asdict(),
        "ranges": None if fit is None else dict(zip(fit.law._fields, map(list, fit.ranges), strict=True)),
        "error": None if fit is None else fit.error,
        "larger": None if entry.larger is None else vars(entry.larger),
        "extrapolated": None if predicted is None else predicted._asdict(),
        "holds": entry.holds,
    }
