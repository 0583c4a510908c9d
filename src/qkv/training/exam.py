"""Final evaluation of a run: the best weights on the held-out splits, stored in ``exam.json``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from qkv.data.corpus import VALIDATION
from qkv.report.markup import finite
from qkv.spec.recipe import Recipe
from qkv.tasks.material import TEST, Material
from qkv.tasks.task import Exam, Task
from qkv.training.evaluation import measure
from qkv.training.files import clear_errors, write_file

EXAM = "exam.json"


def never() -> bool:
    """Default stop condition: False."""
    return False


def examine(
    model: Any, task: Task, material: Material, recipe: Recipe, split: str, batches: int | None = None, stop: Callable[[], bool] = never
) -> Exam | None:
    """Evaluate ``model`` on one split, with the number of targets and the seconds taken; None if ``stop`` became true.

    ``batches``: None evaluates the whole split and the task's further metrics; a number evaluates so many batches,
    evenly spaced.
    """
    began = time.perf_counter()
    seen = measure(model, task, material.rows(split, batches), recipe.training.precision, stop)
    if seen is None:
        return None
    whole = task.examines and batches is None
    exam = task.examine(model, material, split, seen, recipe) if whole else Exam(task.figures(seen, material.scale(split)))
    return None if stop() else replace(exam, figures={**exam.figures, "targets": seen.count, "seconds": time.perf_counter() - began})


def held_out(material: Material) -> tuple[str, ...]:
    """Splits of the final evaluation: validation, and test if present."""
    return tuple(split for split in (VALIDATION, TEST) if split in material.splits)


def write_exam(folder: Path, step: int, exams: Mapping[str, Exam]) -> None:
    """Write the evaluations of the weights of ``step``, by split, into the run folder atomically. Raises
    ``UserError``.
    """
    content = {"step": step, "splits": {split: asdict(exam) for split, exam in exams.items()}}
    path = folder / EXAM
    with clear_errors(str(path)):
        write_file(path, (json.dumps(finite(content), ensure_ascii=False, indent=1, default=float) + "\n").encode())


def read_exam(folder: Path, step: int) -> dict[str, Any] | None:
    """Read the evaluation of the weights of ``step``; None if missing, unreadable, or of other weights."""
    try:
        found = json.loads((folder / EXAM).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    fits = isinstance(found, dict) and found.get("step") == step and isinstance(found.get("splits"), dict)
    return found if fits else None
