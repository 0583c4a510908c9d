"""Plan of the number of steps that fit into ``training.minutes``: made after a rehearsal, and revised once after the
first steps.

The plan is written to ``resume/plan.json`` before it takes effect and is part of every checkpoint. Each step depends
only on the plan and the step number, so an interrupted run resumes bit for bit, also on another machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qkv.runs.storage.files import clear_errors
from qkv.spec.training import Training
from qkv.system.files import write_file
from qkv.training.optim.schedules import shortened

FILE = "plan.json"
_AIM = 0.95
"""Share of the time budget that the plan uses; the rest is a reserve for costs that are not measured before training.
"""
_LEAST = 20
"""Minimum number of planned steps."""
_LOOKS = 10
"""Number of validations that remain in a run that is shortened to fit its time budget."""
_LOOKING = 0.25
"""Maximum share of the time budget that validations may take."""
_CHECK = (10, 0.02)
"""The plan is revised after this many updates, or after this share of all planned updates if that is more."""


@dataclass(frozen=True)
class Costs:
    """Measured seconds per update, validation, sample, checkpoint, and save of the best weights (``best``), and of the
    whole final evaluation (``evaluation``).
    """

    step: float
    validation: float = 0.0
    sample: float = 0.0
    checkpoint: float = 0.0
    best: float = 0.0
    evaluation: float = 0.0


@dataclass(frozen=True)
class PlanStage:
    """Plan that applies to one stage of a run: total number of updates (``steps``), updates between validations
    (``validate``) and between checkpoints (``save``), and expected seconds of the whole run.
    """

    steps: int
    validate: int
    save: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Plan of a run within a time budget. ``first`` is computed from the ``costs`` measured before training.

    After update ``check``, ``second`` replaces ``first``; it uses the measured time of the first updates. Runs without
    a time budget have only ``first``.
    """

    first: PlanStage
    costs: Costs
    check: int = 0
    second: PlanStage | None = None
    spent: float = 0.0
    """Seconds of preparation before the first plan was made."""

    def after(self, done: int) -> PlanStage:
        """Return the stage that applies after ``done`` updates: ``second`` from update ``check`` on, before it
        ``first``.
        """
        return self.second if self.second and done >= self.check else self.first

    def asks(self, done: int) -> bool:
        """Return True if the plan must be revised after update ``done``: this is update ``check``, and there is no
        revised plan yet.
        """
        return done == self.check > 0 and self.second is None

    def training(self, training: Training) -> Training:
        """Return ``training`` with the learning-rate warm-up shortened to fit this plan's number of steps."""
        return training.changed(schedule=shortened(training.schedule, self.first.steps, training.steps))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, for its file and for checkpoints."""
        return asdict(self)

    @staticmethod
    def parse(plain: Mapping[str, Any]) -> Plan:
        """Build a plan from the plain data of ``to_dict``. Raises TypeError or KeyError if malformed."""
        second = plain["second"]
        return Plan(
            PlanStage(**plain["first"]),
            Costs(**plain["costs"]),
            int(plain["check"]),
            PlanStage(**second) if second else None,
            float(plain["spent"]),
        )


def unlimited(training: Training) -> Plan:
    """Return the plan of a run without a time budget: the steps and intervals of the recipe."""
    return Plan(_whole(training), Costs(0.0))


def first_plan(training: Training, costs: Costs, spent: float) -> Plan:
    """Plan as many steps as fit into ``training.minutes``, after ``spent`` seconds of preparation."""
    stage = _stage(training, costs, 0, spent)
    most, share = _CHECK
    check = max(most, math.ceil(share * stage.steps))
    return Plan(stage, costs, check if check < stage.steps else 0, spent=spent)


def second_plan(plan: Plan, training: Training, costs: Costs, spent: float) -> Plan:
    """Return ``plan`` with a second stage, for the updates after ``plan.check``.

    ``costs``: measured during the first ``plan.check`` updates of the run. ``spent``: seconds since the start of the
    run.
    """
    return replace(plan, second=_stage(training, costs, plan.check, spent))


def expected(training: Training, costs: Costs, stage: PlanStage, done: int, spent: float) -> float:
    """Compute the expected seconds of the whole run, including preparation and final evaluation, if ``done`` of its
    updates have taken ``spent`` seconds.
    """
    ahead = spent + (stage.steps - done) * costs.step
    ahead += _times(done, stage.steps, stage.validate) * (costs.validation + costs.best)
    every = training.sample_every
    # Without sample_every, samples other than the first and the last take two percent of the time.
    few = min(_times(done, stage.steps, stage.validate), 2 + 0.02 * ahead / max(costs.sample, 1e-9))
    ahead += costs.sample * (few if every is None else _times(done, stage.steps, every))
    clocked = training.checkpoints.seconds
    by_clock = 0 if clocked is None else ahead / max(clocked, 50 * costs.checkpoint)
    return ahead + costs.checkpoint * (_times(done, stage.steps, stage.save) + by_clock) + costs.evaluation


def read_plan(folder: Path, saved: Mapping[str, Any] | None) -> Plan | None:
    """Read the plan of a run from its file in ``folder``; None if neither the file nor the checkpoint has one.

    ``saved``: the plan in the checkpoint. The file may add a ``second`` stage to it; if the file differs in
    anything else, the plan in the checkpoint is returned.
    """
    saved_plan = None if saved is None else Plan.parse(saved)
    try:
        stored = Plan.parse(json.loads((folder / FILE).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return saved_plan
    fits = saved_plan is None or saved_plan in (stored, replace(stored, second=None))
    return stored if fits else saved_plan


def write_plan(folder: Path, plan: Plan) -> None:
    """Write the plan into ``folder`` atomically. Raises ``UserError`` on disk errors."""
    path = folder / FILE
    with clear_errors(str(path)):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(plan.to_dict(), indent=1).encode())


def _whole(training: Training) -> PlanStage:
    return PlanStage(training.steps, training.validation.every, training.checkpoints.every)


def _times(done: int, steps: int, every: int) -> int:
    """Return how many times an action is still due after ``done`` updates, if it is due after every ``every`` updates
    and after the last of ``steps`` updates.
    """
    return steps // every - done // every + (steps % every > 0)


def _stage(training: Training, costs: Costs, done: int, spent: float) -> PlanStage:
    """Plan the largest number of steps that fits into the time budget, at most the number in the recipe, after ``done``
    updates that took ``spent`` seconds.
    """
    assert training.minutes is not None
    most = 60 * _AIM * training.minutes
    least = min(training.steps, max(_LEAST, done + 1))

    def timed(steps: int) -> PlanStage:
        stage = _shorter(training, costs, steps)
        return replace(stage, seconds=expected(training, costs, stage, done, spent))

    whole = timed(training.steps)
    if whole.seconds <= most:
        return whole
    low, high = least, training.steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if timed(middle).seconds <= most else (low, middle)
    return timed(low)


def _shorter(training: Training, costs: Costs, steps: int) -> PlanStage:
    """Plan a run of only ``steps`` steps: shorten the intervals of validations and checkpoints so that about ten of
    each remain, within the limit on validation time.
    """
    whole = _whole(training)
    if steps == whole.steps:
        return whole
    assert training.minutes is not None

    def sooner(every: int) -> int:
        return max(1, min(every, max(steps // _LOOKS, math.ceil(every * steps / whole.steps))))

    looks = _LOOKING * 60 * training.minutes / max(costs.validation + costs.best, 1e-9)
    validate = max(sooner(whole.validate), math.ceil(steps / max(1.0, looks)))
    return PlanStage(steps, min(steps, validate), sooner(whole.save))
