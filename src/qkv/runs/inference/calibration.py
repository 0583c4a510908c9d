"""Calibration of a run's probabilities: a temperature fitted after training, stored as ``calibration.json``, and the
calibration error.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv.data.corpora.corpus import VALIDATION
from qkv.models.evaluating import evaluating
from qkv.ops.linear.precision import autocast
from qkv.runs.storage.files import clear_errors
from qkv.spec.recipe import Recipe
from qkv.system.files import write_file
from qkv.tasks.dataset import Dataset
from qkv.tasks.metrics.calibration import Scored, calibration, fit_temperature
from qkv.tasks.task import Evaluation, Task

CALIBRATION = "calibration.json"
_MOST_LOGITS = 2_000_000
"""Maximum number of rows times classes for which probabilities are compared with true classes; a larger split is
sampled evenly.
"""


def scored(model: Any, task: Task, dataset: Dataset, split: str, recipe: Recipe) -> Scored | None:
    """Compute the logits and true classes of a split; None if the task does not predict a single label, or the split is
    empty.
    """
    outputs: list[tuple[np.ndarray, np.ndarray]] = []
    classes, batch_size = max(1, len(dataset.vocabulary.labels)), recipe.training.batch_size
    batches = max(1, _MOST_LOGITS // (classes * batch_size))
    with evaluating(model), torch.no_grad(), autocast(recipe.training.precision, model.device):
        for batch in dataset.rows(split, batches):
            logits = task.class_logits(model, batch.to(model.device))
            if logits is None:
                return None
            outputs.append((logits.double().cpu().numpy(), batch.targets.cpu().numpy()))
    if not outputs:
        return None
    logits, truth = zip(*outputs, strict=True)
    return Scored(np.concatenate(logits), np.concatenate(truth))


def calibrate(model: Any, task: Task, dataset: Dataset, recipe: Recipe) -> bool:
    """Fit the temperature of the model's probabilities on the validation split, and set it in ``task``.

    Returns False, without fitting, for a task that does not predict a single label. Raises ``UserError``.
    """
    task.temperature = 1.0
    outputs = scored(model, task, dataset, VALIDATION, recipe)
    if outputs is None:
        return False
    task.temperature = fit_temperature(outputs)
    return True


def write_temperature(folder: Path, step: int, temperature: float) -> None:
    """Write the temperature of the weights of ``step`` into the run's folder. Raises ``UserError`` on disk errors."""
    path = folder / CALIBRATION
    with clear_errors(str(path)):
        write_file(path, (json.dumps({"step": step, "temperature": temperature}) + "\n").encode())


def read_temperature(folder: Path, step: int) -> float:
    """Read the temperature stored in a run's folder for the weights of ``step``; 1 if it is missing or unreadable."""
    try:
        content = json.loads((folder / CALIBRATION).read_bytes())
        value = float(content["temperature"]) if content["step"] == step else 1.0
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 1.0
    return value if math.isfinite(value) and value > 0 else 1.0


def with_calibration(
    evaluation: Evaluation, model: Any, task: Task, dataset: Dataset, split: str, recipe: Recipe
) -> Evaluation:
    """Return a copy of ``evaluation`` with the calibration error and the reliability diagram; unchanged for tasks that
    do not predict a single label.
    """
    outputs = scored(model, task, dataset, split, recipe)
    if outputs is None:
        return evaluation
    figures, section = calibration(outputs, task.temperature)
    return replace(evaluation, figures={**evaluation.figures, **figures}, sections=[*evaluation.sections, section])
