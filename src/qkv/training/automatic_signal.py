"""Register of the functions that choose a recipe for a kind of signal, and the settings that they share."""

from __future__ import annotations

from collections.abc import Callable

from qkv.data.records.model import Records
from qkv.inspection.machine import Machine
from qkv.spec.data import Data
from qkv.spec.errors import UserError
from qkv.spec.processors import Processor
from qkv.spec.recipe import Recipe
from qkv.spec.register import import_all
from qkv.spec.tasks import Task
from qkv.spec.training import AdamW, Checkpoints, Cosine, Training, Validation
from qkv.training.automatic import MINUTES

Choice = Callable[[Task, Data, Records, Machine], Recipe]
"""(task, data with a processor of the kind, records, machine) -> recipe without a name."""

_CHOICES: dict[type[Processor], Choice] = {}
_FEWEST = 300
_PATIENCE = 8


def chooses(part: type[Processor]) -> Callable[[Choice], Choice]:
    """Register the decorated function as the choice of a recipe for data that ``part`` reads."""

    def register(found: Choice) -> Choice:
        _CHOICES[part] = found
        return found

    return register


def choice_for(processor: Processor) -> Choice:
    """Function that chooses a recipe for data of this kind. Raises ``UserError`` if none is registered."""
    import_all("qkv.training.signals")
    if type(processor) not in _CHOICES:
        raise UserError(f"no recipe is chosen for data of the kind {processor.kind!r} yet; train a recipe with it")
    return _CHOICES[type(processor)]


def training_of(
    examples: int,
    rows: int,
    machine: Machine,
    epochs: int,
    warmup: int = 100,
    validated: int | None = None,
) -> Training:
    """Training settings for ``epochs`` of ``examples`` in batches of ``rows``, within the budget of ``MINUTES``.

    It is validated every epoch on ``validated`` batches (None: all), at least ten times, and stops when that no longer
    improves.
    """
    epoch = max(1, examples // rows)
    steps = max(_FEWEST, epochs * epoch)
    every = max(10, min(steps // 10, epoch))
    return Training(
        steps=steps,
        minutes=MINUTES,
        batch_size=rows,
        optimizer=AdamW(lr=1e-3, weight_decay=0.05),
        precision=machine.precision,
        schedule=Cosine(warmup=min(warmup, steps // 10), final=0.01),
        validation=Validation(every=every, batches=validated, patience=_PATIENCE),
        checkpoints=Checkpoints(every=every),
    )
