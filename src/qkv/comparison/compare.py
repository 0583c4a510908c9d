"""Carry out a comparison from plan to report: select learning rates, run all seeds, compute results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qkv.comparison.executors import Executor, Here, Processes, Watcher, execute
from qkv.comparison.outcome import Outcome
from qkv.comparison.plan import PlannedRun, RunPlan, plan_of
from qkv.comparison.ranking import Ranking, ranked, value_of
from qkv.comparison.ray_cluster import RayCluster
from qkv.comparison.scaling import Scaling, scale, total
from qkv.comparison.show import ShowRuns
from qkv.report.evaluation import ERRORS
from qkv.runs.storage.files import clear_errors
from qkv.runs.storage.folder import SPEC as RUN
from qkv.spec.files.yaml_io import write_spec
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.comparison import Comparison
from qkv.system.errors import UserError
from qkv.system.files import write_file

SPEC, RESULTS = "comparison.yaml", "results.json"


def executor_of(jobs: int | None = None, ray: str | None = None, threads: int = 1) -> Executor:
    """Build an executor: of ``jobs`` processes, of the Ray cluster at the address ``ray``, or of this process.
    ``threads``: cores of each run on the cluster. Raises ``UserError``.
    """
    if ray is None:
        return Here() if jobs is None else Processes(jobs)
    if jobs is not None:
        raise UserError("jobs and ray are both given; omit jobs: the cluster decides how many runs take place at once")
    return RayCluster(ray, threads)


def compare(
    comparison: Comparison,
    out: str | Path,
    executor: Executor | None = None,
    base: Recipe | None = None,
    watcher: Watcher | None = None,
) -> Ranking | Scaling:
    """Carry out a comparison in the folder ``out``, or resume it there; return its results, which are also written
    there. With ``comparison.scale`` the results cover all sizes; see ``qkv.comparison.scaling``.

    Finished runs are not repeated, and unfinished runs are resumed. ``executor``: carries out the runs; None: one after
    the other in this process. ``base``: recipe that the entries change; default: the recipe that the comparison names.
    ``watcher``: receives progress; None shows it on standard error.

    Raises ``UserError`` if the comparison is invalid, and ``Interrupted`` after a signal.
    """
    folder = Path(out)
    if (folder / RUN).exists():
        raise UserError(f"{folder} holds a run; name another folder for the comparison")
    plan = plan_of(comparison, folder, base)
    write_spec(folder / SPEC, comparison)
    executor = executor or Here()
    if watcher is None:
        with ShowRuns(_total(plan)) as display:
            return _results(plan, executor, display)
    return _results(plan, executor, watcher)


def _results(plan: RunPlan, executor: Executor, watcher: Watcher) -> Ranking | Scaling:
    if plan.comparison.scale is not None:
        return scale(plan, executor, watcher, plan.comparison.fit)
    results, folder = _carried_out(plan, executor, watcher), plan.folder
    with clear_errors(f"the folder {folder}"):
        write_file(folder / RESULTS, (json.dumps(results.plain(), ensure_ascii=False, indent=1) + "\n").encode())
        write_file(folder / Ranking.page, results.report().encode())
    return results


def _total(plan: RunPlan) -> int:
    if plan.comparison.scale is not None:
        return total(plan, plan.comparison.fit)
    return len(plan.entries) * (len(plan.comparison.rates) + len(plan.comparison.seeds) - 1)


def _carried_out(plan: RunPlan, executor: Executor, watcher: Watcher) -> Ranking:
    trials = plan.trials()
    tried = list(zip(trials, execute(trials, executor, watcher), strict=True))
    rates = _chosen(plan, tried)
    rest = plan.rest(rates)
    return ranked(plan, tried, rates, list(zip(rest, execute(rest, executor, watcher), strict=True)))


def _chosen(plan: RunPlan, tried: Sequence[tuple[PlannedRun, Outcome]]) -> dict[str, float]:
    """Choose for each entry the factor of the learning rate with the best metric on validation data, the first of
    several equal ones.

    Entries that failed at every rate are omitted.
    """
    sign, best = 1 if plan.metric in ERRORS else -1, dict[str, tuple[float, float]]()
    for run, outcome in tried:
        value = value_of(outcome, "validation", plan.metric)
        if value is not None and (run.entry not in best or sign * value < best[run.entry][0]):
            best[run.entry] = (sign * value, run.rate)
    return {name: rate for name, (_, rate) in best.items()}
