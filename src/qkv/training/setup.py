"""Preparation of training from a recipe and a folder, for new and for resumed runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.data.vocabulary import Vocabulary
from qkv.models.adapt import adapt, learned_sentence
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.ops.precision import runs_in
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.spec.yaml_io import read_recipe, write_spec
from qkv.tasks.material import Material
from qkv.tasks.registry import build_task
from qkv.tasks.task import Task
from qkv.training.checkpoint import Checkpoint, Checkpoints, load_weights
from qkv.training.events import Notice, OnEvent
from qkv.training.files import clear_errors, remove_partial
from qkv.training.identity import MADE_WITH, check_same_recipe, edited, recipe_digest
from qkv.training.start import start_weights, with_start
from qkv.training.surroundings import Surroundings
from qkv.training.vectors import start_vectors

try:
    import fcntl
except ImportError:  # not Unix: two processes in one folder are not detected
    fcntl = None

SPEC = "spec.yaml"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Setup:
    """Run that is ready to train. ``recipe`` has all sizes that the data determines filled in."""

    folder: Path
    recipe: Recipe
    material: Material
    task: Task
    model: Transformer
    device: torch.device
    checkpoints: Checkpoints
    surroundings: Surroundings


def best_device() -> torch.device:
    """Accelerator if available, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create and lock ``folder``. Raises UserError if it is not writable, or another process trains in it."""
    with clear_errors(f"the run folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY) if fcntl else None
    try:
        if fcntl and handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another process is training in {folder}; wait for it, or name another folder") from None
            except OSError:  # a file system without locks
                pass
        yield
    finally:
        if handle is not None:
            os.close(handle)  # frees the lock, as the end of the process would


def prepare(recipe: Recipe, folder: Path, resume: bool, tell: OnEvent) -> tuple[Setup, Checkpoint | None]:
    """Open the data, check that ``recipe`` matches a run already in ``folder``, and build the model.

    Returns the checkpoint to resume from, its weights already in the model; None for a new run. Raises UserError if
    recipe, data or checkpoint do not fit together; the folder is then unchanged.
    """
    with clear_errors(f"the run folder {folder}"):
        remove_partial(folder)
    known = _known(folder, resume)
    recipe = with_start(recipe, known)
    material = build_task(recipe.task).open(recipe, Vocabulary.load(folder) if known else None)
    recipe = material.recipe
    task = build_task(recipe.task)  # with the settings that the data determines
    checkpoints = Checkpoints(folder / "resume", recipe.training.checkpoints.keep)
    checkpoint = checkpoints.load(lambda text: tell(Notice(text))) if known else None
    if known:
        check_same_recipe(known, recipe, checkpoint.step if checkpoint else 0, folder)
    training = recipe.training
    device = best_device()
    model = build(recipe.model, training.seed)
    if not checkpoint:
        for note in (*start_weights(model, recipe), *start_vectors(model, recipe.model, material.vocabulary)):
            tell(Notice(note))
    adapt(model, training)  # adapters wrap existing weights
    if checkpoint and known:
        _check_facts(checkpoint.state, known, material, folder)
        check_kept(folder, had_best(checkpoint, known, []))
        load_weights(model, checkpoint.tensors["weights"], folder / "resume")
    elif learned := learned_sentence(model, training):
        tell(Notice(learned))
    surroundings = Surroundings(checkpoints.folder, device)
    different = surroundings.adopt()
    if different:
        tell(Notice(different))
    model.to(device)
    if training.precision != runs_in(training.precision, device):
        tell(Notice(f"products run in fp32, not bf16, which is slower on this {device.type}; qkv why shows both times"))
    for note in () if known else material.notes:
        tell(Notice(note))
    setup = Setup(folder, recipe, material, task, model, device, checkpoints, surroundings)
    _write_identity(setup, known)
    return setup, checkpoint


def _known(folder: Path, resume: bool) -> Recipe | None:
    """Recipe of the run in ``folder``, if there is one."""
    if not (folder / SPEC).exists():
        if (folder / WEIGHTS).exists():
            raise UserError(
                f"{folder} holds a {WEIGHTS} and no {SPEC}: weights from another program, or a damaged run; name another folder"
            )
        return None
    if not resume:
        raise UserError(f"{folder} already holds a run; name another folder, or resume it")
    return read_recipe(folder)


def _check_facts(state: dict[str, Any], known: Recipe, material: Material, folder: Path) -> None:
    if state["recipe"] != recipe_digest(known):
        raise UserError(f"{folder / SPEC} was changed after training began: it is not the recipe that the checkpoint was made with")
    found = edited(state.get(MADE_WITH), None, folder)
    if found:
        raise UserError(f"{found}; put it back, or name another folder")
    if state["corpus"] != material.digest():
        raise UserError(
            f"the ids of {material.name!r} are not those that the run in {folder} was trained on: the data or a file of the vocabulary "
            "was changed; put it back, or name another folder"
        )


def had_best(checkpoint: Checkpoint | None, recipe: Recipe, rows: Sequence[Mapping[str, Any]]) -> bool:
    """True if the newest checkpoint of a run, or its metrics, show that its best weights were saved."""
    if checkpoint and checkpoint.state.get("standing", {}).get("best_figure") is not None:
        return True
    figures = [row.get(f"val_{recipe.training.validation.best}") for row in rows]
    return any(figure is not None and math.isfinite(figure) for figure in figures)


def check_kept(folder: Path, had: bool) -> None:
    """Raise UserError if the best weights of the run in ``folder`` were saved (``had``) but are missing."""
    path = folder / WEIGHTS
    if had and not path.exists():
        raise UserError(
            f"{path} is missing, and the run had kept its best weights there; put it back, or take those of the newest checkpoint in its "
            f"place with 'qkv accept {folder}', in Python load(…, accept_changes=True)"
        )


def _write_identity(setup: Setup, known: Recipe | None) -> None:
    """Write the files that make a folder a run's. The spec comes last: if it exists, the others do."""
    if known == setup.recipe:
        return
    with clear_errors(f"the run folder {setup.folder}"):
        if not known:
            setup.material.vocabulary.save(setup.folder)
        write_spec(setup.folder / SPEC, setup.recipe)
