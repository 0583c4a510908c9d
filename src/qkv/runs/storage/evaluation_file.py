"""File ``evaluation.json`` of a run: the final evaluation of its best weights on the held-out splits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv.report.markup import finite
from qkv.runs.storage.files import clear_errors
from qkv.system.files import write_file
from qkv.tasks.task import Evaluation

EVALUATION = "evaluation.json"


def write_evaluation(folder: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
    """Write the final evaluation of the weights of ``step`` into the run folder atomically. ``evaluations``: evaluation
    by split. Raises ``UserError``.
    """
    content = {"step": step, "splits": {split: asdict(evaluation) for split, evaluation in evaluations.items()}}
    path = folder / EVALUATION
    with clear_errors(str(path)):
        write_file(path, (json.dumps(finite(content), ensure_ascii=False, indent=1, default=float) + "\n").encode())


def read_evaluation(folder: Path, step: int) -> dict[str, Any] | None:
    """Read the stored final evaluation of the weights of ``step`` from a run folder; None if it is missing, unreadable,
    or of other weights.
    """
    try:
        content = json.loads((folder / EVALUATION).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    fits = isinstance(content, dict) and content.get("step") == step and isinstance(content.get("splits"), dict)
    return content if fits else None
