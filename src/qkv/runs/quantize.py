"""Quantise a run: write a new run folder with weights in fewer bits, and measure the effect on the held-out metrics."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.data.corpora.corpus import VALIDATION
from qkv.models.edit.quantize import quantize as quantize_model
from qkv.report.evaluation import words
from qkv.report.figures import fixed, size
from qkv.report.page import Page
from qkv.report.sections import add_sections
from qkv.runs.evaluation import evaluate
from qkv.runs.inference.calibration import CALIBRATION
from qkv.runs.run import Run
from qkv.runs.storage.checkpoint import save_weights, weights
from qkv.runs.storage.files import clear_errors
from qkv.runs.storage.folder import SPEC, locked
from qkv.runs.storage.identity import MADE_WITH, made_with, write_parts
from qkv.runs.storage.load import load, load_stored
from qkv.runs.storage.published import NOT_SAID
from qkv.spec.files.yaml_io import write_spec
from qkv.spec.models.adapt import Whole
from qkv.spec.models.quantization import Quantization
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError, quoted
from qkv.system.files import write_file

BEFORE, AFTER = "before", "after"
_BYTES = "bytes"
_NOT_SHOWN = ("seconds", "targets")
_KEPT = (CALIBRATION, "pretrained")
"""Files and folders that are copied to the quantised run, besides vocabulary, spec and weights."""


@dataclass(frozen=True)
class QuantizedRun:
    """Result of quantising a run: the new ``run``, and its ``figures`` "before" and "after". Each has the metrics of
    the task on held-out data, if there is any, and ``bytes`` of the weights. ``notes``: sentences on the measurement.
    """

    run: Run
    figures: dict[str, dict[str, float]]
    notes: Sequence[str] = ()

    @property
    def columns(self) -> list[str]:
        """Column titles of the table ``rows``."""
        return ["figure", BEFORE, AFTER, "change"]

    @property
    def rows(self) -> list[list[str]]:
        """Rows of a table as text: name, value before, value after, change; one row per metric."""
        before, after = self.figures[BEFORE], self.figures[AFTER]
        return [_row(name, before[name], after[name]) for name in before if name in after]


def quantize(
    source: Run | str | Path,
    out: str | Path,
    bits: int = 8,
    group: int | None = None,
    data: str | None = None,
    batches: int | None = None,
    copy: bool = False,
) -> QuantizedRun:
    """Write the run or published checkpoint ``source`` with weights in 16, 8 or 4 ``bits`` to the new folder ``out``.

    group: number of weights per scale, see ``Quantization``. data: file to evaluate both on (default: the run's
    validation data; a checkpoint without data is not evaluated). batches: number of evenly spaced batches; None: all.
    copy: as for ``load``. If ``source`` is a ``Run``, its weights in memory are not changed. Raises ``UserError``.
    """
    part = Quantization.parse({"bits": bits, "group": group}, "quantize")
    place = source.folder if isinstance(source, Run) else source
    old = load_stored(place, copy=copy)
    if old.recipe.quantized is not None:
        raise UserError(
            f"{old.folder} is already quantised to {old.recipe.quantized.bits} bits; quantise the original run"
        )
    if batches is not None and batches < 1:
        raise UserError(f"batches: {quoted(batches)} given; give at least 1, or omit it to use all data")
    folder = _new(Path(out))
    before, notes = _figures(load(place, copy=copy), data, batches)
    write_quantized(old, part, folder)
    quantized = load(folder, copy=copy)
    after, more = _figures(quantized, data, batches)
    done = QuantizedRun(quantized, {BEFORE: before, AFTER: after}, tuple(dict.fromkeys((*notes, *more))))
    with clear_errors(str(folder)):
        write_file(folder / "report.html", _report(done).encode())
    return done


def write_quantized(run: Run, part: Quantization, folder: Path) -> None:
    """Quantise the model of ``run`` in place, and write it as a run to the new folder ``folder``."""
    quantize_model(run.model, part)
    with locked(folder), clear_errors(str(folder)):
        _write(run, _recipe(run.recipe, part), folder)


def _new(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; name another folder for the quantised run")
    return folder


def _recipe(recipe: Recipe, part: Quantization) -> Recipe:
    """Return the recipe of the quantised run, without adapters, which are merged into its weights."""
    training = recipe.training.changed(adapt=Whole(), frozen=(), rates={})
    return recipe.changed(quantized=part, training=training, result=None, published=(), typed=())


def _write(run: Run, recipe: Recipe, folder: Path) -> None:
    run.vocabulary.save(folder)
    for name in _KEPT:
        if (run.folder / name).is_dir():
            shutil.copytree(run.folder / name, folder / name)
        elif (run.folder / name).is_file():
            shutil.copyfile(run.folder / name, folder / name)
    metadata = {"step": run.step, MADE_WITH: made_with(recipe, folder)}
    save_weights(folder / "model.safetensors", run.model, metadata, run.wide)
    write_parts(recipe, folder)
    write_spec(folder / SPEC, recipe)


def _figures(run: Run, data: str | None, batches: int | None) -> tuple[dict[str, float], Sequence[str]]:
    """Measure (metrics of ``run`` on held-out data, if there is any, and bytes of its weights; notes on the
    metrics).
    """
    figures: Mapping[str, Any] = {}
    notes: Sequence[str] = ()
    if data is not None or run.recipe.data.source != NOT_SAID:
        evaluation = evaluate(run, VALIDATION, batches, data)
        figures, notes = evaluation.figures, evaluation.notes
    metrics = {name: value for name, value in figures.items() if name not in _NOT_SHOWN}
    return {**metrics, _BYTES: float(sum(tensor.nbytes for tensor in weights(run.model, run.wide).values()))}, notes


def _row(name: str, before: float, after: float) -> list[str]:
    if name == _BYTES:
        return ["weights", size(before), size(after), f"{after / before:.3f} ×"]
    change = f"{after / before - 1:+.3%}" if before else ""
    return [words(name), fixed(before), fixed(after), change]


def _report(result: QuantizedRun) -> str:
    part = result.run.recipe.quantized
    assert part is not None
    page = Page(str(result.run.folder))
    page.data["quantization"] = result.figures
    scales = f", one scale per {part.size} weights" if part.size else ", one scale per row" if part.bits < 16 else ""
    page.header(f"Weights of linear layers in {part.bits} bits{scales}.")
    table = {"kind": "examples", "title": "Effect of the quantisation", "columns": result.columns, "rows": result.rows}
    add_sections(page, [table])
    for note in result.notes:
        page.note(note)
    return page.html()
