"""Division of steps and validations among the processes of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from qkv.data.batching.batch import Batch
from qkv.ops.selection.choices import table
from qkv.parallel.meeting import in_contact
from qkv.parallel.mesh import share
from qkv.runs.evaluation import measure
from qkv.tasks.task import Totals
from qkv.training.setup import Setup
from qkv.training.steps.gradients import DividedGradient, StepGradient


def gradients_of(setup: Setup) -> StepGradient:
    """Return how this process computes the gradient of a step: alone, or with others, which divide rows, positions or
    weights.
    """
    model, task, world = setup.model, setup.task, setup.world
    parameters = [p for p in model.parameters() if p.requires_grad]
    if world.size == 1:
        return StepGradient(model, task, parameters)
    if world.mesh.get("context", 1) > 1:
        from qkv.training.steps.shared import SharedGradient

        return SharedGradient(model, task, parameters, world, setup.recipe.parallel.context_by)
    if world.mesh.get("shard", 1) == 1:
        return DividedGradient(model, task, parameters, world)
    from qkv.training.steps.sharded import ShardedGradient, check_shards

    check_shards(setup.recipe)
    return ShardedGradient(model, task, world)


def measured(setup: Setup, batches: Iterable[Batch], stop: Callable[[], bool]) -> Totals | None:
    """Sum losses and results of the whole model over ``batches``, of which each process computes some, in the order of
    one process; None if ``stop`` returned True.
    """
    task, precision = setup.task, setup.recipe.training.precision
    index, count = share(setup.world)
    if count == 1:
        return measure(setup.model, task, batches, precision, stop)
    results = dict[int, Totals]()
    with in_contact(), table().apart():
        for number, batch in enumerate(batches):
            if number % count == 0 and stop():
                return None
            if number % count == index:
                results[number] = measure(setup.model, task, [batch], precision) or Totals()
    return _joined(setup.world.gather(results))


def _joined(parts: Iterable[dict[int, Totals]]) -> Totals:
    seen = Totals()
    for _, totals in sorted({number: totals for part in parts for number, totals in part.items()}.items()):
        seen.loss += totals.loss
        seen.count += totals.count
        seen.outcomes += totals.outcomes
    return seen
