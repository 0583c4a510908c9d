"""Advice after a run on a table: one sentence on what would help next, with the command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, cast

from qkv.cli.shared.verbs import VERBS

if TYPE_CHECKING:
    from qkv.runs.run import Run
    from qkv.spec.recipe import Recipe

_FITTED = 0.8
"""Maximum ratio of training loss to validation loss at which the model counts as fitted to the training rows."""
_LONGER = 3
"""Ratio of the advised time budget, or number of steps, to that of the run."""


def advice(run: Run) -> str:
    """Return a sentence on what would improve the run most, with the command; "" if the run has no validation or its
    task no verb.

    If all validation rows are predicted right, no improvement can be measured. If the last validation was the best,
    training was too short. If the model does not fit the training rows, and these are not changed at random, it is too
    weak. Otherwise, more rows or a pretrained encoder help.
    """
    verb = next((name for name, verb in VERBS.items() if verb.task == run.recipe.task.kind), None)
    validated = [row for row in run.metrics if "val_loss" in row]
    if verb is None or not validated or " | " in run.recipe.data.source:
        return ""
    rows = _perfect_rows(run)
    if rows:
        some = f"all {rows} validation rows are" if rows > 1 else "the one validation row is"
        return f"{some} predicted right, so only more validation rows could show whether another model is better"
    recipe, options = run.recipe, _options(run.recipe, verb)
    start = f" --from {shlex.quote(recipe.start.checkpoint)}" if recipe.start.checkpoint else ""
    minutes, lasting = recipe.training.minutes, run.step == validated[-1]["step"]
    if minutes is None and lasting:
        return f"the last validation was the best, so more steps help: {_longer(run)}"
    if minutes is not None:
        folder = shlex.quote(f"{run.folder}-longer")
        command = f"qkv train {verb}{start}{options} --minutes {_LONGER * minutes:g} --out {folder}"
        if lasting:
            return f"the last validation was the best, so more time helps: {command}"
        varies = recipe.data.processor is not None and recipe.data.processor.varies
        if not varies and _weak(run.metrics, validated, _least_loss(run)):
            return _stronger(run, f"qkv train {verb}{start}{options}", command)
    if recipe.start.checkpoint is None and VERBS[verb].tunes and recipe.data.processor is None:
        command = f"qkv train {verb} --from NAME{options}"
        return f"validation stopped improving: more rows help, or a published encoder, such as a BERT: {command}"
    return "validation stopped improving: more rows help most"


def _stronger(run: Run, line: str, longer: str) -> str:
    """Return advice for a model that does not fit the training rows. line: command of the run; longer: with more time,
    in which a training without a start tries larger models.
    """
    sentence = "the model does not even fit the training rows, so it is too weak, and more rows would not help"
    if not run.recipe.start.checkpoint:
        return f"{sentence}; with more time, larger models are tried: {longer}"
    if run.recipe.training.adapt.kind == "whole":
        return f"{sentence}; a larger model to start from would"
    return f"{sentence}; training all weights may: {line} --adapt whole --out {shlex.quote(f'{run.folder}-whole')}"


def _longer(run: Run) -> str:
    """Build the command that trains the recipe of ``run`` for more steps, in another folder."""
    spec, folder = shlex.quote(str(run.folder / "spec.yaml")), shlex.quote(f"{run.folder}-longer")
    return f"qkv train {spec} training.steps={_LONGER * run.recipe.training.steps} --out {folder}"


def _perfect_rows(run: Run) -> int:
    """Return the number of validation rows if all of them are predicted right, else 0."""
    figures = (run.evaluation or {}).get("splits", {}).get("validation", {}).get("figures", {})
    return int(figures.get("targets", 0)) if figures.get("accuracy") == 100 else 0


def _least_loss(run: Run) -> float:
    """Return the smallest training loss that label smoothing allows; 0 without smoothing."""
    from qkv.models.heads.cross_entropy import smoothed_entropy

    smoothing = getattr(run.recipe.task, "label_smoothing", 0.0)
    return smoothed_entropy(len(run.vocabulary.labels or ()), smoothing) if smoothing else 0.0


def _weak(rows: Sequence[Mapping[str, Any]], validated: Sequence[Mapping[str, Any]], least: float) -> bool:
    """Return whether the mean training loss at the end, minus ``least``, exceeds 0.8 of the least validation loss."""
    losses = [row["loss"] for row in rows if row.get("loss") is not None]
    some = losses[-max(1, len(losses) // 10) :]
    return bool(some) and sum(some) / len(some) - least > _FITTED * min(row["val_loss"] for row in validated)


def _options(recipe: Recipe, verb: str) -> str:
    """Build the command-line options for the recipe's files, columns and settings."""
    data = recipe.data
    files = {"data": data.source, "validation": data.validation, "test": data.test}
    columns = {name: data.columns.get(role) for name, role in VERBS[verb].columns.items()}
    fields = recipe.to_dict()
    settings = {name: reduce(getitem, path.split("."), fields) for name, path in VERBS[verb].settings.items()}
    options = {**files, **columns, **settings}
    return "".join(
        f" --{name} {shlex.quote(write_option(value))}" for name, value in options.items() if value is not None
    )


def write_option(value: Any) -> str:
    """Write a value as an option: a part by its kind and fields, such as kto(beta=0.1)."""
    if not isinstance(value, dict):
        return str(value)
    part = cast("dict[str, Any]", value)
    fields = ", ".join(f"{name}={each}" for name, each in part.items() if name != "kind")
    return f"{part['kind']}({fields})" if fields else str(part["kind"])
