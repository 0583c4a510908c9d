"""Examination of a run: all checks, on what it recorded, on its data, and on its model with held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from qkv.data.corpora.corpus import VALIDATION
from qkv.data.vocabulary import Vocabulary
from qkv.lens.health.curves import (
    check_data_seen,
    check_divergence,
    check_forecast,
    check_learning,
    check_overfitting,
    check_spikes,
    check_warmup,
)
from qkv.lens.health.data_checks import check_duplicates, check_leaks, check_padding
from qkv.lens.health.evidence import Evidence
from qkv.lens.health.labels import check_labels
from qkv.lens.health.layers import (
    check_activations,
    check_attention,
    check_gradients,
    check_heads,
    check_logits,
    check_still_layers,
    check_units,
    check_update_ratio,
)
from qkv.lens.health.neighbours import check_neighbours
from qkv.lens.health.page import Health
from qkv.lens.health.probe import probe
from qkv.lens.health.records import read_records
from qkv.lens.health.verdict import ORDER, Verdict
from qkv.runs.metrics import rows_of
from qkv.runs.reference import open_reference
from qkv.runs.run import Run, task_of
from qkv.runs.storage.folder import FAILURE
from qkv.runs.storage.load import load
from qkv.spec.files.yaml_io import read_recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset
from qkv.tasks.registry import task_of_recipe

Check = Callable[[Evidence], Verdict | None]
ON_RECORDS: tuple[Check, ...] = (
    check_learning,
    check_divergence,
    check_warmup,
    check_spikes,
    check_overfitting,
    check_forecast,
    check_update_ratio,
    check_still_layers,
    check_gradients,
    check_activations,
    check_attention,
    check_heads,
    check_units,
)
"""Checks that can do with what a run records."""
CHECKS: tuple[Check, ...] = (
    *ON_RECORDS,
    check_logits,
    check_data_seen,
    check_duplicates,
    check_leaks,
    check_labels,
    check_padding,
    check_neighbours,
)
"""All checks. Each returns None if the run lacks what it reads."""
_BATCHES = 4
"""Number of held-out batches on which the inside of the model is measured."""


def gather(folder: Path) -> tuple[Evidence, list[str]]:
    """Read the evidence of the run in ``folder``; also return sentences on what could not be read.

    Raises ``UserError`` if ``folder`` is no run.
    """
    recipe, notes = read_recipe(folder), list[str]()
    run, dataset = _open_run(folder, notes), None
    task = task_of_recipe(recipe) if run is None else task_of(run)
    try:
        dataset = task.open(recipe, Vocabulary.load(folder))
    except UserError as error:
        notes.append(f"the data of the run cannot be opened, so it is not checked: {error}")
    inside = _inside(run, dataset) if run is not None and dataset is not None else {}
    return Evidence(folder, recipe, rows_of(folder), read_records(folder), inside, run, task, dataset), notes


def _open_run(folder: Path, notes: list[str]) -> Run | None:
    try:
        return load(folder)
    except UserError as error:
        notes.append(f"the model of the run cannot be loaded, so it is not checked: {error}")
        return None


def _inside(run: Run, dataset: Dataset) -> dict[str, float]:
    task = task_of(run)
    open_reference(task, run.model, run.recipe)
    batches = [batch.to(run.model.device) for batch in islice(dataset.rows(VALIDATION, _BATCHES), _BATCHES)]
    return probe(run.model, task, batches, run.recipe.training.precision) if batches else {}


def examine(folder: Path) -> Health:
    """Examine the run in ``folder`` by all checks. Raises ``UserError`` if ``folder`` is no run."""
    evidence, notes = gather(folder)
    verdicts = [*_failure(folder), *judge(evidence)]
    if verdicts and not any("loss" in row for row in evidence.rows):
        verdicts.append(_nothing_trained(folder))
    if not verdicts:
        raise UserError(f"{folder} holds no record of a training; qkv health examines runs that qkv train has written")
    return Health(folder, tuple(sorted(verdicts, key=lambda verdict: ORDER.index(verdict.severity))), tuple(notes))


def judge(evidence: Evidence, checks: Sequence[Check] = CHECKS) -> list[Verdict]:
    """Return the verdicts of the ``checks`` that can read what they need."""
    return [verdict for check in checks if (verdict := check(evidence)) is not None]


def _nothing_trained(folder: Path) -> Verdict:
    sentence = "no step was recorded: the training ended before its first step, so the weights are those of the start"
    return Verdict("steps", "alarm", sentence, cure=f"qkv train {folder}")


def _failure(folder: Path) -> list[Verdict]:
    """Return the verdict on a run that ended with an error, such as a loss that is not finite."""
    path = folder / FAILURE
    if not path.is_file():
        return []
    sentence = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
    return [Verdict("failure", "alarm", f"training ended with an error: {sentence}", cure=f"qkv train {folder}")]
