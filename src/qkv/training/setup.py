"""Preparation of training from a recipe and a folder, for new and for resumed runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.data.reading import release
from qkv.data.vocabulary import Vocabulary
from qkv.models.build import build
from qkv.models.edit.adapt import adapt, learned_sentence, narrow_frozen
from qkv.models.transformer import Transformer
from qkv.models.wide import build_wide
from qkv.ops.linear.precision import runs_in
from qkv.ops.selection.choices import table
from qkv.runs.reference import open_reference
from qkv.runs.start import start_weights, with_start
from qkv.runs.storage.checkpoint import Checkpoint, CheckpointStore, load_weights
from qkv.runs.storage.files import clear_errors, remove_partial
from qkv.runs.storage.folder import SPEC, WEIGHTS, check_kept, had_best
from qkv.runs.storage.identity import MADE_WITH, deciding, difference, edited, recipe_digest, write_parts
from qkv.spec.files.yaml_io import read_recipe, write_spec
from qkv.spec.recipe import Recipe
from qkv.spec.training import Training
from qkv.system.device import training_device
from qkv.system.errors import UserError
from qkv.system.optional import turned_off
from qkv.system.world import ALONE, World
from qkv.tasks.dataset import Dataset
from qkv.tasks.registry import task_of_recipe
from qkv.tasks.task import Task
from qkv.training import clock
from qkv.training.environment import Environment
from qkv.training.optim.schedules import same_so_far
from qkv.training.vectors import start_vectors
from qkv.training.watch.events import Notice, OnEvent
from qkv.training.wide.paths import fit_wide


@dataclass(frozen=True)
class Setup:
    """Everything that training needs: recipe, opened data, task with the wide path, model, checkpoints. ``recipe``
    includes all sizes that follow from the data.
    """

    folder: Path
    recipe: Recipe
    dataset: Dataset
    task: Task
    model: Transformer
    device: torch.device
    checkpoints: CheckpointStore
    environment: Environment
    world: World = ALONE
    wide_seconds: float = 0.0
    """Seconds that fitting the wide path took; fitting it again at the end takes about as long."""


def _single_precision(training: Training, device: torch.device) -> str:
    """Return a sentence if products run in fp32 although the recipe permits bf16; empty otherwise."""
    if training.precision == runs_in(training.precision, device):
        return ""
    off = turned_off("bf16")
    reason = f"which {off} turns off" if off else f"which is slower on this {device.type}; 'qkv why' shows both times"
    return f"products run in fp32, not bf16, {reason}"


def prepare(
    recipe: Recipe, folder: Path, resume: bool, tell: OnEvent, world: World = ALONE
) -> tuple[Setup, Checkpoint | None]:
    """Open the data, check that ``recipe`` matches a run already in ``folder``, and build the model. ``resume``: False
    if ``folder`` must not hold a run yet; ``world``: the processes that train the run.

    Returns (setup, checkpoint to resume from). The model already has the weights of the checkpoint; the checkpoint of a
    new run is None. Raises UserError if recipe, data or checkpoint do not fit together; the folder is then unchanged.
    """
    previous = world.lead(lambda: _read_existing(folder, resume))
    recipe = with_start(recipe, previous)
    dataset = task_of_recipe(recipe).open(recipe, Vocabulary.load(folder) if previous else None)
    release()  # the dataset keeps the rows that it needs
    recipe = _with_columns(dataset.recipe, previous)
    task = task_of_recipe(recipe)  # with the settings that the data determines
    checkpoints = CheckpointStore(folder / "resume", recipe.training.checkpoints.keep, world)
    checkpoint = checkpoints.load(lambda text: tell(Notice(text))) if previous else None
    if previous:
        check_same_recipe(previous, recipe, checkpoint.step if checkpoint else 0, folder)
    training, device = recipe.training, training_device()
    written = recipe.start if recipe.start.checkpoint is None else None  # weights of a checkpoint are copied below
    model = build(recipe.model, training.seed, written)
    task.wide = recipe.wide and build_wide(recipe.wide, model.head.num_outputs)
    seconds = 0.0 if checkpoint else _start(model, task, dataset, tell)
    learned = _adapt(model, recipe)
    if checkpoint and previous:
        _check_facts(checkpoint.state, previous, dataset, folder)
        check_kept(folder, had_best(checkpoint, previous, []))
        load_weights(model, checkpoint.tensors["weights"], folder / "resume", task.wide)
    elif learned:
        tell(Notice(learned))
    open_reference(task, model, recipe)
    environment = Environment(checkpoints.folder, device, table(), world)
    different = environment.adopt()
    model.to(device)
    if task.wide is not None:
        task.wide.to(device)
    for note in (different, _single_precision(training, device), *(() if previous else dataset.notes)):
        if note:
            tell(Notice(note))
    setup = Setup(folder, recipe, dataset, task, model, device, checkpoints, environment, world, seconds)
    world.lead(lambda: _write_identity(setup, previous))
    return setup, checkpoint


def _adapt(model: Transformer, recipe: Recipe) -> str:
    """Add adapters around existing weights, quantise those that stay frozen beside them if ``recipe`` says so, and
    return a message with the number of trainable parameters; "" if all are trainable.
    """
    adapt(model, recipe.training)
    learned = learned_sentence(model, recipe.training)
    narrow_frozen(model, recipe.training, recipe.quantized)
    return learned


def _start(model: Transformer, task: Task, dataset: Dataset, tell: OnEvent) -> float:
    """Initialise the model from ``recipe.start`` and from pretrained word vectors, and fit the wide path beside it;
    return the seconds of this fit.
    """
    started = (*start_weights(model, dataset.recipe), *start_vectors(model, dataset.recipe.model, dataset.vocabulary))
    began = clock.seconds()
    fitted = fit_wide(model, task, dataset)
    seconds = clock.seconds() - began
    for note in (*started, *fitted):
        tell(Notice(note))
    return seconds


def _with_columns(recipe: Recipe, previous: Recipe | None) -> Recipe:
    """Return ``recipe``, without its guessed columns if the existing run ``previous`` stores none, as in runs of
    earlier versions.
    """
    if previous is None or previous.data.columns:
        return recipe
    return recipe.changed(data=recipe.data.changed(columns={}))


def _read_existing(folder: Path, resume: bool) -> Recipe | None:
    """Remove partly written files and read the recipe of the run in ``folder``; None if there is no run. Raises
    ``UserError`` if there is a run and ``resume`` is False.
    """
    with clear_errors(f"the run folder {folder}"):
        remove_partial(folder)
    if not (folder / SPEC).exists():
        if (folder / WEIGHTS).exists():
            raise UserError(
                f"{folder} holds a {WEIGHTS} and no {SPEC}: weights from another program, or a damaged run; "
                "name another folder"
            )
        return None
    if not resume:
        raise UserError(f"{folder} already holds a run; name another folder, or resume it")
    return read_recipe(folder)


def _check_facts(state: dict[str, Any], previous: Recipe, dataset: Dataset, folder: Path) -> None:
    if state["recipe"] != recipe_digest(previous):
        raise UserError(
            f"{folder / SPEC} was changed after training began: the checkpoint was made with another recipe"
        )
    change = edited(state.get(MADE_WITH), None, folder)
    if change:
        raise UserError(f"{change}; restore it, or name another folder")
    if state["corpus"] != dataset.digest():
        raise UserError(
            f"the token ids of {dataset.name!r} differ from those that the run in {folder} was trained on: "
            "the data or a file of the vocabulary was changed; restore it, or name another folder"
        )


def check_same_recipe(old: Recipe, new: Recipe, done: int, folder: object) -> None:
    """Raise UserError if training ``new`` in ``folder``, whose run has the recipe ``old``, would give other weights;
    name the first setting that differs.

    The number of steps may change if the ``done`` updates would have had the same learning rates.
    """
    before, after = deciding(old), deciding(new)
    steps, target = before["training"].pop("steps"), after["training"].pop("steps")
    change = difference(before, after)
    if change:
        raise UserError(
            f"{folder} holds a run of another recipe: {change}; name another folder, or use the recipe of that run"
        )
    if target != steps and old.training.minutes is not None:
        raise UserError(
            f"training.steps is {target}, but the run in {folder} was planned with at most {steps} steps; "
            "omit the key, or name another folder"
        )
    if target != steps and (
        target < done or not same_so_far(old.training.schedule, done, steps, target, old.model.width)
    ):
        kind = old.training.schedule.kind
        reason = (
            f"{done} steps are done"
            if target < done
            else f"its first {done} steps would have had other learning rates under the schedule {kind!r}"
        )
        raise UserError(
            f"training.steps: the run in {folder} has {steps} steps and cannot be continued to {target}, "
            f"because {reason}"
        )


def _write_identity(setup: Setup, previous: Recipe | None) -> None:
    """Write the recipe and the vocabulary, which identify a run folder. The recipe is written last: if it exists, the
    other files exist too.
    """
    with clear_errors(f"the run folder {setup.folder}"):
        write_parts(setup.recipe, setup.folder)
        if previous == setup.recipe:
            return
        if not previous:
            setup.dataset.vocabulary.save(setup.folder)
        write_spec(setup.folder / SPEC, setup.recipe)
