"""Final evaluation of a run: load its best weights, combine them with the wide path if there is one, and measure the
metrics on the held-out splits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from qkv.data.corpora.corpus import TEST, VALIDATION
from qkv.layers.linear.lora import merged
from qkv.runs.evaluation import evaluate_split, held_out
from qkv.runs.inference.calibration import calibrate, write_temperature
from qkv.runs.storage.before_refit import NOTE, drop_wide, keep_wide, restore_wide
from qkv.runs.storage.checkpoint import load_weights, save_weights
from qkv.runs.storage.evaluation_file import write_evaluation
from qkv.runs.storage.files import read_metadata, read_tensors
from qkv.runs.storage.folder import WEIGHTS
from qkv.system.errors import UserError
from qkv.tasks.task import Evaluation
from qkv.training.interrupt import StopNow, StopRequest
from qkv.training.race import heats
from qkv.training.race.contestants import Contestant, section, tested_section
from qkv.training.setup import Setup
from qkv.training.watch.events import Evaluated, Notice, OnEvent
from qkv.training.wide.paths import join, refit_wide


def best_weights(folder: Path) -> tuple[dict[str, Tensor], int]:
    """Read (tensors, step) of a run's best weights."""
    tensors, metadata = read_tensors(folder / WEIGHTS)
    return tensors, int(metadata.get("step", 0))


def evaluate_best(setup: Setup, tell: OnEvent, stop: StopRequest) -> bool:
    """Load the best weights into the model, evaluate them on each held-out split, and write the result.

    A run with a wide path first chooses a contestant. The validation split is evaluated first; the wide path is then
    fitted again to the training and validation rows, before the test split is evaluated. Returns False if stopped.
    Errors are reported as notices.
    """
    model, task, evaluations = setup.model, setup.task, dict[str, Evaluation]()
    tensors, step = best_weights(setup.folder)
    load_weights(model, tensors, setup.folder / WEIGHTS, task.wide)
    contestants = _joined(setup, tell, stop)
    if contestants is None:
        return False
    for split in held_out(setup.dataset):
        tell(Notice(f"evaluating the weights of step {step:,} on the {split} split"))
        try:
            with stop.at_once(), merged(model):
                if not evaluations and calibrate(model, task, setup.dataset, setup.recipe):
                    setup.world.lead(lambda: write_temperature(setup.folder, step, task.temperature))
                evaluation = evaluate_split(model, task, setup.dataset, setup.recipe, split, stop=lambda: bool(stop))
        except StopNow:
            return False
        except UserError as error:
            tell(Notice(f"the final evaluation failed: {error}; run the same command again to repeat it"))
            return True
        if evaluation is None:
            return False
        refitted = split == VALIDATION and _refit(setup, tell)
        evaluation = replace(evaluation, notes=[*evaluation.notes, *([NOTE] if refitted else [])])
        evaluations[split] = _with_contests(evaluation, setup, split, contestants)
        tell(Evaluated(step, split, evaluation.figures))
    setup.world.lead(lambda: write_evaluation(setup.folder, step, evaluations))
    return True


def _refit(setup: Setup, tell: OnEvent) -> bool:
    """Fit the wide path, if the run uses one, to the training and validation rows, and save it with the best weights.
    The previous wide path is stored in a separate file. Returns True if the path was fitted again.
    """
    wide = setup.task.wide
    if wide is None:
        return False
    setup.world.lead(lambda: keep_wide(wide, setup.folder))
    notes = refit_wide(setup.model.device, setup.task, setup.dataset)
    if notes:
        setup.world.lead(lambda: _save(setup))
    else:
        setup.world.lead(lambda: drop_wide(setup.folder))
    for note in notes:
        tell(Notice(note))
    return bool(notes)


def _save(setup: Setup) -> None:
    """Overwrite the stored best weights with the current ones of model and wide path; keep their metadata."""
    metadata = read_metadata(setup.folder / WEIGHTS)
    metadata.pop("sha256", None)
    save_weights(setup.folder / WEIGHTS, setup.model, metadata, setup.task.wide)


def _with_contests(evaluation: Evaluation, setup: Setup, split: str, contestants: list[Contestant]) -> Evaluation:
    """Return the ``evaluation`` of a split, with the tables of heats and contestants put before its other
    sections.
    """
    tables = []
    if split == VALIDATION:
        tables = heats.section(setup.folder, setup.task.metric)
        tables += [section(contestants, setup.task.metric)] if contestants else []
    if split == TEST:
        tables = tested_section(contestants)
    return replace(evaluation, sections=[*tables, *evaluation.sections])


def _joined(setup: Setup, tell: OnEvent, stop: StopRequest) -> list[Contestant] | None:
    """Choose a contestant for a run with a wide path: factors of the deep and the wide path. Save them with the best
    weights, and return all contestants, the chosen one first. Returns an empty list without a wide path, None if
    stopped.
    """
    if setup.task.wide is None:
        return []
    restore_wide(setup.task.wide, setup.folder)  # needed if an earlier process was stopped after the refit
    precision = setup.recipe.training.precision
    name = heats.winner(setup.folder)
    contestants = join(setup.model, setup.task, setup.dataset, precision, lambda: bool(stop), name)
    if contestants is not None:
        setup.world.lead(lambda: _save(setup))
        tell(Notice(f"chosen on the validation split: {contestants[0].name}"))
    return contestants
