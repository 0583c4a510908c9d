"""Time budget of a run: plan the number of steps after a rehearsal, revise the plan after the first updates, and save
each plan before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from qkv.training.plan import Costs, Plan, PlanStage, first_plan, read_plan, second_plan, unlimited, write_plan
from qkv.training.setup import Setup
from qkv.training.watch.events import Planned


class Budget:
    """Holder of the current ``plan``: the number of steps with which a run ends within ``training.minutes``. The plan
    is revised once, after the first updates.

    ``saved``: plan stored in the checkpoint that the run resumes from, or None.
    """

    def __init__(self, setup: Setup, saved: Mapping[str, Any] | None):
        self._given, self._folder, self._world = setup.recipe.training, setup.checkpoints.folder, setup.world
        plan = self._world.lead(lambda: read_plan(self._folder, saved)) if self.limited else None
        self._decided = plan is not None or not self.limited
        self._take(plan or unlimited(self._given))
        self._updates, self._seconds = 0, 0.0

    def _take(self, plan: Plan) -> None:
        self.plan, self.training = plan, plan.training(self._given)

    @property
    def limited(self) -> bool:
        """True if the recipe limits the time of the run with ``training.minutes``."""
        return self._given.minutes is not None

    def stage(self, done: int) -> PlanStage:
        """Return the number of steps and the intervals that apply after ``done`` updates."""
        return self.plan.after(done)

    def begin(self, rehearse: Callable[[], Costs], spent: Callable[[], float]) -> None:
        """Make the first plan before training, unless a plan was loaded.

        ``rehearse``: function that measures the costs; ``spent``: function that returns the seconds since the run
        began.
        """
        if not self._decided:
            costs = rehearse()
            self._keep(first_plan(self._given, costs, spent()))
            self._decided = True

    def saw(self, done: int, seconds: float) -> None:
        """Record that update number ``done`` took ``seconds``; the revised plan uses the mean over the first updates as
        the cost of a step.
        """
        if done <= self.plan.check:
            self._updates, self._seconds = self._updates + 1, self._seconds + seconds

    def check(self, done: int, spent: float) -> bool:
        """Revise the plan if ``done``, the number of updates so far, is ``plan.check`` and no revised plan was loaded.

        Returns True if a revised plan applies from this update on. ``spent``: seconds since the run began.
        """
        if self.plan.asks(done):
            costs = replace(self.plan.costs, step=self._seconds / self._updates)
            self._keep(second_plan(self.plan, self._given, costs, spent))
        return done == self.plan.check

    def _keep(self, plan: Plan) -> None:
        plan = self._world.agree(plan)  # the clocks of several processes measure different costs
        self._world.lead(lambda: write_plan(self._folder, plan))
        self._take(plan)

    def announcement(self, done: int) -> Planned:
        """Return the event that announces the planned number of steps and the expected time, as of update ``done``."""
        stage = self.stage(done)
        assert self._given.minutes is not None
        decided = self.plan.check if stage is self.plan.second else 0
        return Planned(
            decided, stage.steps, self._given.steps, self._given.minutes, stage.seconds, self.plan.costs.evaluation
        )
