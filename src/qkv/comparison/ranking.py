"""Results of a comparison: for each entry the mean over seeds, its interval, the difference to the baseline, and the p
value of this difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from qkv.comparison.outcome import Outcome
from qkv.comparison.plan import PlannedRun, RunPlan
from qkv.comparison.statistics import Estimate, estimate, holm, paired_p
from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.report.comparison import Curve, TableOf, ranking_report
from qkv.report.evaluation import ERRORS, words
from qkv.report.figures import duration, fixed, short
from qkv.runs.metrics import rows_of
from qkv.spec.recipes.comparison import factor_name
from qkv.system.errors import UserError, nearest
from qkv.tasks.registry import task_of_recipe
from qkv.training.compare import setting_text, settings_that_differ, validations

SIGNIFICANT = 0.05
"""A difference counts as significant if its corrected p value is below this level."""
_COLUMNS = ("entry", "parameters", "training FLOPs", "time", "rate", "mean ± interval", "difference", "p", "p (Holm)")
_BUDGETS = {
    "parameters": "equal parameters (within 1 %)",
    "flops": "equal training FLOPs",
    "steps": "equal training steps",
    "time": "equal training time",
}
_SECONDS = ("seconds in all", "training seconds")
Runs = Sequence[tuple[PlannedRun, Outcome]]


@dataclass(frozen=True)
class EntryResult:
    """Result of one entry. values: seed -> metric; flops, seconds: means over its runs; failed: reason, or "". figures:
    metric -> mean over the seeds, for every metric of the compared split. change: override that fits the entry to the
    budget, or "".

    difference: mean difference to the baseline, paired by seed.   p, corrected: p value of the paired test, before and
    after Holm's correction; None for the baseline.
    """

    name: str
    parameters: int
    change: str
    rate: float | None
    values: Mapping[int, float]
    flops: float | None
    seconds: float | None
    failed: str = ""
    difference: Estimate | None = None
    p: float | None = None
    corrected: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> Estimate | None:
        """Mean over the seeds with its confidence interval; None if a run failed."""
        return None if self.failed or not self.values else estimate(list(self.values.values()))


@dataclass(frozen=True)
class Ranking:
    """Results of a comparison, in the order of its entries. split: split of the compared metric. trials: entry ->
    factor of the learning rate -> metric on validation data, None for a failed run.
    """

    plan: RunPlan
    split: str
    rows: tuple[EntryResult, ...]
    trials: Mapping[str, Mapping[float, float | None]]
    page: ClassVar[str] = "report.html"

    @property
    def lower(self) -> bool:
        """True if lower values of the metric are better."""
        return self.plan.metric in ERRORS

    def conclusions(self) -> list[str]:
        """Return sentences that say which entry is best and which differences are significant."""
        estimates = [(row, row.mean) for row in self.rows]
        means = {row.name: average.mean for row, average in estimates if average is not None}
        failed = [f"{row.name} failed: {row.failed}" for row in self.rows if row.failed]
        if not means:
            return failed
        best = (min if self.lower else max)(means, key=lambda name: means[name])
        count, reference = len(self.plan.comparison.seeds), self.plan.comparison.reference
        sentences = [f"Best mean {words(self.plan.metric)} ({self.split}): {best}, {fixed(means[best])}."]
        if count < 2:
            sentences.append("With one seed, the spread is unknown; use more seeds for intervals and tests.")
        elif reference not in means:
            sentences.append("The baseline failed, so no differences are tested.")
        else:
            significant = [row for row in self.rows if row.corrected is not None and row.corrected < SIGNIFICANT]
            better = [row.name for row in significant if row.difference and (row.difference.mean < 0) == self.lower]
            worse = [row.name for row in significant if row.name not in better]
            sentences += [
                f"Better than {reference} at the 5 % level over {count} seeds: {', '.join(better) or 'none'}."
            ]
            sentences += [f"Worse: {', '.join(worse) or 'none'}. All other differences may be chance."]
        return [*sentences, *failed]

    def table(self) -> TableOf:
        """Build the main table, with one row for each entry."""
        return TableOf("results", _COLUMNS, [_cells(row) for row in self.rows])

    def tables(self) -> list[TableOf]:
        """Return the tables that the terminal shows."""
        return [self.table()]

    def plain(self) -> dict[str, Any]:
        """Return the content as plain data, for JSON."""
        compared = self.plan.comparison
        return {
            "metric": self.plan.metric,
            "split": self.split,
            "lower_is_better": self.lower,
            "equal": compared.equal,
            "baseline": compared.reference,
            "seeds": list(compared.seeds),
            "conclusions": self.conclusions(),
            "entries": [_plain(row, self.trials[row.name], compared.entries[row.name]) for row in self.rows],
        }

    def report(self) -> str:
        """Build a self-contained HTML page: conclusions, table, metric against cost, learning rates tried, settings,
        curves.
        """
        lead = f"{self.plan.comparison.recipe}: {_BUDGETS[self.plan.comparison.equal]}, " + (
            f"{len(self.plan.comparison.seeds)} seeds; {words(self.plan.metric)} on the {self.split} split, "
            f"{'lower' if self.lower else 'higher'} is better"
        )
        charts = [
            self._against("training FLOPs", [row.flops for row in self.rows]),
            self._against("seconds of training", [row.seconds for row in self.rows]),
        ]
        tables = [self.table(), self._trial_table(), self._settings()]
        title = f"Comparison of {len(self.rows)} models"
        return ranking_report(title, lead, self.conclusions(), charts, tables, self._curves(), self.plain())

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        from qkv.report.fragment import tables_fragment

        return tables_fragment(" ".join(self.conclusions()), [(list(_COLUMNS), list(self.table().rows))])

    def _against(self, axis: str, costs: Sequence[float | None]) -> LineChart:
        results = [(row.name, cost, row.mean) for row, cost in zip(self.rows, costs, strict=True)]
        lines = [Line(name, *_marks(cost, mean), points=True) for name, cost, mean in results if cost and mean]
        name = words(self.plan.metric)
        about = "Means over the seeds; vertical lines are 95 % intervals."
        title = f"{name[:1].upper()}{name[1:]} by {axis}"
        return LineChart(title, lines, axis, name, x_log=True, width=640, height=400, description=about)

    def _trial_table(self) -> TableOf:
        rates = self.plan.comparison.rates
        rows = [
            [name, *("failed" if tried[rate] is None else fixed(tried[rate] or 0.0) for rate in rates)]
            for name, tried in self.trials.items()
        ]
        title = f"validation {words(self.plan.metric)} by factor of the learning rate, first seed"
        return TableOf(title, ["entry", *map(factor_name, rates)], rows if len(rates) > 1 else [])

    def _settings(self) -> TableOf:
        entries = self.plan.entries
        settings = settings_that_differ([entry.recipe for entry in entries.values()])
        rows = [(path, *map(setting_text, values)) for path, values in settings.items()]
        return TableOf("settings that differ", ["", *entries], rows)

    def _curves(self) -> list[Curve]:
        seed = self.plan.comparison.seeds[0]
        runs = [self.plan.run(row.name, row.rate, seed) for row in self.rows if row.rate is not None]
        curves = [
            Curve(run.entry, task_of_recipe(run.recipe).loss_unit, *validations(rows_of(run.folder))) for run in runs
        ]
        return [curve for curve in curves if curve.steps]


def ranked(plan: RunPlan, trials: Runs, chosen: Mapping[str, float], runs: Runs) -> Ranking:
    """Compute the results from the finished ``runs`` at the learning rates ``chosen``, and ``trials``, the runs that
    selected these rates.
    """
    finished = [outcome for _, outcome in (*trials, *runs) if not outcome.failed]
    split = "test" if finished and all(f"test.{plan.metric}" in each.figures for each in finished) else "validation"
    by_rate = {(run.entry, run.rate): outcome for run, outcome in trials}
    tried = {
        name: {rate: value_of(by_rate[name, rate], "validation", plan.metric) for rate in plan.comparison.rates}
        for name in plan.entries
    }
    rows = {name: _row(plan, name, split, chosen.get(name), [*trials, *runs]) for name in plan.entries}
    baseline = rows[plan.comparison.reference]
    rows = {name: row if row is baseline else _tested(row, baseline) for name, row in rows.items()}
    corrected = holm({name: row.p for name, row in rows.items() if row.p is not None})
    done = tuple(EntryResult(**{**vars(row), "corrected": corrected.get(name)}) for name, row in rows.items())
    return Ranking(plan, split, done, tried)


def value_of(outcome: Outcome, split: str, metric: str) -> float | None:
    """Return the metric of a run on a split; None if the run failed or the metric is not finite. Raises ``UserError``
    for a metric that the task does not measure.
    """
    value = outcome.figures.get(f"{split}.{metric}")
    if value is None and not outcome.failed:
        names = {path.partition(".")[2] for path in outcome.figures}
        if names:
            raise UserError(f"metric: {metric!r} is not measured in this task; {nearest(metric, names)}")
    return value


def _row(plan: RunPlan, name: str, split: str, rate: float | None, runs: Runs) -> EntryResult:
    outcomes = {run.seed: outcome for run, outcome in runs if run.entry == name and run.rate == rate}
    by_seed = {seed: value_of(outcome, split, plan.metric) for seed, outcome in outcomes.items()}
    values = {seed: value for seed, value in by_seed.items() if value is not None}
    reasons = [f"seed {seed}: {outcomes[seed].failed or 'no finite metric'}" for seed in outcomes if seed not in values]
    if rate is None:
        first = next((outcome.failed for run, outcome in runs if run.entry == name), "")
        reasons = [f"at every learning rate; {first or 'no finite metric'}"]
    flops, seconds = (_mean_count(outcomes.values(), names) for names in (("training FLOPs",), _SECONDS))
    sized = plan.entries[name]
    figures = _mean_figures([each.figures for each in outcomes.values() if not each.failed], split)
    failed = "; ".join(reasons)
    return EntryResult(name, sized.parameters, sized.change, rate, values, flops, seconds, failed, figures=figures)


def _mean_figures(figures: Sequence[Mapping[str, float]], split: str) -> dict[str, float]:
    """Return metric -> mean over all runs, for every metric of ``split`` that all runs have."""
    names = [path for path in (figures[0] if figures else ()) if path.startswith(f"{split}.")]
    return {
        path.partition(".")[2]: sum(each[path] for each in figures) / len(figures)
        for path in names
        if all(path in each for each in figures)
    }


def _mean_count(outcomes: Any, names: Sequence[str]) -> float | None:
    values = [
        next((float(each.counts[name]) for name in names if each.counts.get(name) is not None), None)
        for each in outcomes
        if not each.failed
    ]
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _tested(row: EntryResult, baseline: EntryResult) -> EntryResult:
    """Return the result ``row`` with its difference to the ``baseline``, paired by seed, and the p value of the paired
    test.
    """
    if row.failed or baseline.failed:
        return row
    differences = [row.values[seed] - baseline.values[seed] for seed in row.values]
    return EntryResult(**{**vars(row), "difference": estimate(differences), "p": paired_p(differences)})


def _marks(cost: float, mean: Estimate) -> tuple[list[float], list[float]]:
    """Return (costs, values) of an entry's points in the chart: both ends of the interval, and the mean."""
    ends = [] if mean.half is None else [mean.mean - mean.half, mean.mean + mean.half]
    values = [*ends, mean.mean]
    return [cost] * len(values), values


def _cells(row: EntryResult) -> list[Any]:
    mean = row.mean
    return [
        row.name,
        row.parameters,
        "" if row.flops is None else short(row.flops),
        "" if row.seconds is None else duration(row.seconds),
        "" if row.rate is None else factor_name(row.rate),
        "failed" if mean is None else _with_interval(mean),
        "" if row.difference is None else _with_interval(row.difference, "+"),
        *("" if p is None else f"{p:.2g}" for p in (row.p, row.corrected)),
    ]


def _with_interval(figure: Estimate, sign: str = "") -> str:
    plus = sign if figure.mean > 0 else ""
    return f"{plus}{fixed(figure.mean)}" + ("" if figure.half is None else f" ± {figure.half:.2g}")


def _plain(row: EntryResult, tried: Mapping[float, float | None], overrides: Sequence[str]) -> dict[str, Any]:
    def interval(figure: Estimate | None) -> list[float] | None:
        return None if figure is None or figure.half is None else [figure.mean - figure.half, figure.mean + figure.half]

    mean = row.mean
    return {
        "name": row.name,
        "overrides": list(overrides),
        "budget_change": row.change or None,
        "parameters": row.parameters,
        "training_flops": row.flops,
        "seconds": row.seconds,
        "rate": row.rate,
        "rates_tried": {factor_name(rate): value for rate, value in tried.items()},
        "values": {str(seed): value for seed, value in row.values.items()},
        "mean": mean and mean.mean,
        "interval": interval(mean),
        "difference": row.difference and row.difference.mean,
        "difference_interval": interval(row.difference),
        "p": row.p,
        "p_corrected": row.corrected,
        "figures": dict(row.figures),
        "failed": row.failed or None,
    }
