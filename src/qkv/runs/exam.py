"""Final evaluation of a run: the best weights on the held-out splits, stored in ``exam.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv.report.markup import finite
from qkv.runs.files import clear_errors, write_file
from qkv.tasks.task import Exam

EXAM = "exam.json"


def write_exam(folder: Path, step: int, exams: Mapping[str, Exam]) -> None:
    """Write the final evaluation of the weights of ``step``, by split, into the run folder atomically. Raises
    ``UserError``.
    """
    content = {"step": step, "splits": {split: asdict(exam) for split, exam in exams.items()}}
    path = folder / EXAM
    with clear_errors(str(path)):
        write_file(path, (json.dumps(finite(content), ensure_ascii=False, indent=1, default=float) + "\n").encode())


def read_exam(folder: Path, step: int) -> dict[str, Any] | None:
    """Read the stored final evaluation of the weights of ``step`` from a run folder; None if missing, unreadable, or of
    other weights.
    """
    try:
        found = json.loads((folder / EXAM).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    fits = isinstance(found, dict) and found.get("step") == step and isinstance(found.get("splits"), dict)
    return found if fits else None
