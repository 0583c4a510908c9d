"""Replace parts of a trained model: keep the weights that still fit, measure the change in its metrics, and recover by
a short training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.costs.cost import cost
from qkv.costs.counting.losses import random_batch
from qkv.costs.longest import longest
from qkv.costs.measuring.machine import usable_memory
from qkv.costs.measuring.measure import rates
from qkv.data.corpora.corpus import VALIDATION
from qkv.models.edit.transplant import KEPT, NEW, Transferred, in_words, transplant
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.selection.choices import ChoiceTable, using
from qkv.report.evaluation import words
from qkv.report.figures import fixed, short, size
from qkv.runs.evaluation import measure
from qkv.runs.run import Run
from qkv.runs.start import find_start
from qkv.runs.storage.folder import locked
from qkv.runs.storage.load import load
from qkv.runs.storage.published import NOT_SAID
from qkv.spec.base import LARGEST
from qkv.spec.models.adapt import Whole
from qkv.spec.models.surgery import operated, unrolled
from qkv.spec.recipe import Recipe
from qkv.spec.training import Constant
from qkv.system.errors import UserError, quoted
from qkv.training import random_state
from qkv.training.interrupt import Interrupted, StopRequest
from qkv.training.loop import Trainer
from qkv.training.setup import Setup, prepare
from qkv.training.watch.events import Notice, OnEvent, Validated
from qkv.training.watch.record import RunRecorder
from qkv.training.watch.sections import write_sections
from qkv.training.watch.show import Show

BEFORE, AFTER, HEALED = "before", "after the swap", "healed"
_LENGTH = 256
"""Maximum number of positions per row in speed measurements."""
_LOOKS = 5
"""Number of validations during the short training after a swap."""
_RATE = (5e-4, 768)
"""(learning rate, width): maximum learning rate at this width when a published checkpoint is trained after a swap,
inversely proportional to the width.
"""
_SAID_ELSEWHERE = ("bits_per_token", "bits_per_character", "bits_per_byte")

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Swapped:
    """Result of replacing parts of a model: the new run, the origin of each of its weights (``moved``), and the effect
    on its metrics.

    ``figures``: moment -> metric -> value, on held-out data; the moments are "before", "after the swap", and "healed"
    if trained. The first two also have ``parameters`` (number), ``reading`` and ``decoding`` (speeds in tokens/s),
    ``state`` (bytes at ``length`` positions), and ``longest`` (positions whose state fits into ``memory`` bytes beside
    the weights, infinite if unlimited). Speeds, ``state`` and ``longest`` only if the model generates.
    """

    run: Run
    moved: list[Transferred]
    figures: dict[str, dict[str, float]]
    length: int
    memory: int

    @property
    def kept(self) -> float:
        """Fraction of the new model's parameters that were taken from the old model."""
        return sum(one.taken for one in self.moved) / max(1, sum(one.numbers for one in self.moved))

    @property
    def columns(self) -> list[str]:
        """Column titles of the table ``rows``."""
        return ["figure", *self.figures]

    @property
    def rows(self) -> list[list[str]]:
        """Table of the metrics before and after, one row per metric, as text."""
        return _rows(self.figures, self.length, self.memory)


def swap(
    source: Run | str | Path,
    changes: Iterable[str],
    out: str | Path,
    heal: int = 100,
    data: str | None = None,
    on_event: OnEvent | None = None,
    copy: bool = False,
) -> Swapped:
    """Replace parts of the model of a run or published checkpoint, train ``heal`` steps to adapt it, and write the
    result as a run into ``out``.

    changes: overrides such as ``blocks.*.mixer=linear_attention``, see ``qkv.spec.models.surgery.operated``; overrides
    of ``training`` apply to the training afterwards. data: text to train and evaluate on (default: the data of the
    run). copy: as for ``qkv.load``.

    ``qkv.models.edit.transplant`` describes which weights are kept. Raises ``UserError``; Ctrl-C saves, and ``qkv
    train`` resumes.
    """
    if on_event is None:
        with Show() as show:
            return swap(source, changes, out, heal, data, show, copy)
    old = load(source, copy=copy) if isinstance(source, (str, Path)) else source
    recipe, folder = _recipe(old, list(changes), heal, data), Path(out)
    with locked(folder), random_state.seeded(recipe.training.seed), using(ChoiceTable()):
        setup, _ = prepare(recipe, folder, False, on_event)
        moved = transplant(old.model, setup.model)
        for sentence in describe_transfer(moved):
            on_event(Notice(sentence))
        length, memory = min(_LENGTH, setup.recipe.model.context_length), usable_memory() or 1 << 34
        figures = {BEFORE: _figures(old.model.to(setup.device), setup, length, memory)}
        del old  # free its memory for the training
        figures[AFTER] = _figures(setup.model, setup, length, memory)
        healed = _heal(setup, heal, figures, (length, memory), on_event)
    return Swapped(load(folder, copy=copy), moved, healed, length, memory)


def describe_transfer(moved: list[Transferred]) -> list[str]:
    """Return sentences that describe which weights a swap kept, initialised at random, or adapted."""
    total, kept_count = sum(one.numbers for one in moved), sum(one.taken for one in moved)
    sentences = [f"{kept_count:,} of {total:,} parameters keep their weights ({kept_count / max(1, total):.1%})"]
    new = [path for path, how in in_words(moved) if how == NEW]
    if new:
        sentences.append(f"initialised at random: {', '.join(new)}")
    return sentences + [f"{path}: {how}" for path, how in in_words(moved) if how not in (NEW, KEPT)]


def _recipe(old: Run, changes: list[str], heal: int, data: str | None) -> Recipe:
    """Build the recipe of the run after a swap: the old recipe with the parts replaced, the same tokenizer, and
    ``heal`` steps of training.
    """
    if not 0 <= heal <= LARGEST:
        raise UserError(f"heal is {quoted(heal)} steps, but must lie between 0, for no training, and {LARGEST:,}")
    source = data or old.recipe.data.source
    if source == NOT_SAID:
        raise UserError(
            f"{old.folder} does not record its training data; give --data, a text to evaluate and train it on"
        )
    recipe = operated(old.recipe.changed(start=None, model=old.model.spec, training=_training(old, heal)), changes)
    if unrolled(recipe.model) == unrolled(old.model.spec):
        raise UserError(
            "the changes do not alter the model; name another part, such as blocks.*.mixer=linear_attention"
        )
    if recipe.training.adapt.adds_matrices:
        raise UserError(
            "training.adapt: the training after a swap updates all weights; "
            "to add adapters, train another run afterwards whose start is this run's folder"
        )
    start = find_start(str(old.folder))
    other: dict[str, Any] = {"source": data, "validation": None, "test": None, "columns": {}} if data else {}
    if start.tokenizer is not None:
        other |= {"tokenizer": start.tokenizer, "target_tokenizer": start.target_tokenizer}
    data_spec = recipe.data.changed(**other)
    name = recipe.name or old.folder.name
    description = f"{name} with {', '.join(changes)}"
    return recipe.changed(
        data=data_spec, name=f"{name}-swapped", description=description, quick={}, result=None, published=(), typed=()
    )


def _training(old: Run, heal: int) -> Any:
    """Return the training settings after a swap: the old settings, but with a constant learning rate, which allows any
    number of steps, and without settings for single parameter names.
    """
    training = old.recipe.training
    steps = heal or training.steps
    optimizer = training.optimizer
    if old.recipe.data.source == NOT_SAID:
        rate, width = _RATE
        optimizer = optimizer.changed(lr=min(optimizer.lr, rate * width / old.model.spec.width))
    return training.changed(
        steps=steps,
        minutes=None,
        optimizer=optimizer,
        schedule=Constant(warmup=min(100, steps // 10)),
        validation=training.validation.changed(every=max(1, steps // _LOOKS), patience=None),
        adapt=Whole(),
        frozen=(),
        rates={},
    )


def _figures(model: Transformer, setup: Setup, length: int, memory: int) -> dict[str, float]:
    """Measure the metrics, speeds and sizes of ``model`` at one moment of a swap; ``Swapped`` lists them."""
    recipe = setup.recipe
    seen = measure(
        model, setup.task, setup.dataset.rows(VALIDATION, recipe.training.validation.batches), recipe.training.precision
    )
    assert seen is not None
    figures = dict(setup.task.figures(seen, setup.dataset.scale()))
    figures["parameters"] = sum(p.numel() for p in model.parameters())
    counted = cost(model.spec, 1, length, source_length=length if model.spec.encoder else None)
    if counted.writes:
        with evaluating(model):
            figures["reading"], figures["decoding"] = rates(model, random_batch(model, counted).to(setup.device))
        most = longest(model, memory)
        figures |= {"state": model.state_bytes(length), "longest": float("inf") if most is None else most}
    return figures


def _heal(
    setup: Setup, heal: int, figures: dict[str, dict[str, float]], measured: tuple[int, int], tell: OnEvent
) -> dict[str, dict[str, float]]:
    """Save the swapped model as a run, and train it for ``heal`` steps if not 0. Return ``figures``; after a completed
    training they also have the metrics at the moment ``HEALED``.
    """
    folder, task_figures = setup.folder, _of_task(figures[AFTER])
    trainer = Trainer(setup, None, tell)
    best = setup.recipe.training.validation.best
    trainer.now.best_figure = task_figures.get(best)
    trainer.save_best()
    with StopRequest() as stop, RunRecorder(setup, 0) as record:
        trainer.record = record
        record.add(Validated(0, task_figures["loss"], True, 0.0, task_figures))
        trainer.save()
        write_sections(folder, _sections(figures, measured))
        if heal:
            trainer.train(stop, record)
        if heal and not stop:
            figures = {**figures, HEALED: _best_figures(folder)}
            write_sections(folder, _sections(figures, measured))
        status = "finished" if heal and not stop else "stopped"
        record.report(status, "" if status == "finished" else f"'qkv train {folder}' resumes from here", trainer.done)
    if stop.signal:
        raise Interrupted(
            stop.signal, f"stopped by {stop} after step {trainer.now.step}; 'qkv train {folder}' resumes it"
        )
    return figures


def _of_task(figures: Figures) -> dict[str, float]:
    return {name: value for name, value in figures.items() if name not in _OF_MODEL}


def _best_figures(folder: Path) -> dict[str, float]:
    """Return the held-out metrics of a run's best weights, as measured when these weights were saved."""
    run = load(folder)
    row = next(row for row in reversed(run.metrics) if row.get("step") == run.step and "val_loss" in row)
    return {name.removeprefix("val_"): value for name, value in row.items() if name.startswith("val_")}


_OF_MODEL = ("parameters", "reading", "decoding", "state", "longest")


def _rows(figures: Mapping[str, Figures], length: int, memory: int) -> list[list[str]]:
    names = dict.fromkeys(name for of in figures.values() for name in of if name not in _SAID_ELSEWHERE)
    titles = {
        "loss": "held-out loss",
        "reading": "reading, tokens/s",
        "decoding": "decoding, tokens/s",
        "state": f"state after {length:,} positions",
        "longest": f"longest row in {size(memory)}",
    }
    return [
        [titles.get(name, words(name)), *(_format_figure(name, of.get(name)) for of in figures.values())]
        for name in names
    ]


def _format_figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "longest":
        return "any" if value == float("inf") else f"{value:,.0f}"
    if name == "state":
        return size(value)
    return f"{value:,.0f}" if name == "parameters" else short(value) if name in _OF_MODEL else fixed(value)


def _sections(figures: Mapping[str, Figures], measured: tuple[int, int]) -> list[dict[str, Any]]:
    """Build the sections for the run's report: a table of the metrics before and after the swap, and the losses as
    bars.
    """
    rows = _rows(figures, *measured)
    table = {"kind": "examples", "title": "Effect of the swap", "columns": ["figure", *figures], "rows": rows}
    bars = [(moment, of["loss"]) for moment, of in figures.items()]
    return [table, {"kind": "bars", "title": "Held-out loss before and after", "bars": bars, "highlight": AFTER}]
