"""Recipes that fine-tune an existing model on a table: learning rate, training length, and inference of the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.data.records.formats import table_of
from qkv.data.records.model import Records, Role
from qkv.data.records.named import TABLES, named_tables
from qkv.data.records.open import open_records
from qkv.data.records.profile import plain
from qkv.spec.adapt import Adapt
from qkv.spec.data import Data
from qkv.spec.errors import UserError
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Task
from qkv.spec.training import AdamW, LinearDecay, Training
from qkv.tasks.registry import build_task
from qkv.training.start import with_start

_RATE = (5e-5, 768)
"""Learning rate for fine-tuning all weights at this width (Devlin et al. 2019); narrower models use a higher one."""
_MOST = 5e-3
_EPOCHS = 10
"""Maximum number of epochs; fine-tuning needs fewer than training from scratch."""
_FEWEST = 100
_SHORT = 500
"""Maximum number of steps of the quick form."""
_CLASSES = 20
"""Maximum number of distinct integers that count as labels; more are values."""


def finetuned(recipe: Recipe, start: str, adapt: str | None, examples: int) -> Recipe:
    """Turn ``recipe``, which trains from scratch, into fine-tuning of the model ``start``, keeping data, batches and
    task.

    ``start``: a run or a published checkpoint; ``adapt``: parameters to train ("whole", "head", "lora(8)");
    ``examples``: number of training examples. Raises ``UserError`` if ``start`` does not exist or does not fit the
    task.
    """
    data = recipe.data.changed(tokenizer=Data.model_fields["tokenizer"].default, target_tokenizer=None)
    training = recipe.training
    part = Training.parse({"adapt": adapt}, "--adapt").adapt if adapt else training.adapt
    wide = recipe.model.wide
    recipe = with_start(recipe.changed(data=data, model=Model(), start=start))
    recipe = recipe.changed(model=recipe.model.changed(wide=wide))
    training = training.changed(
        adapt=part,
        steps=max(_FEWEST, _EPOCHS * max(1, examples // training.batch_size)),
        optimizer=AdamW(lr=_rate(part, recipe.model.width), beta2=0.999, weight_decay=0.01),
        schedule=LinearDecay(warmup=10),
    )
    every = max(10, min(training.steps // 10, examples // training.batch_size // 2))
    training = training.changed(
        schedule=LinearDecay(warmup=training.steps // 10),
        validation=training.validation.changed(every=every),
        checkpoints=training.checkpoints.changed(every=every),
    )
    return recipe.changed(
        training=training,
        description=f"{examples:,} examples, from {start}, adapt: {part.kind}: chosen for this data and this machine.",
        sample=recipe.sample.changed(max_new_tokens=max(1, recipe.model.context_length - 1)),
        quick=short_form(training.steps),
    )


def short_form(steps: int) -> dict[str, Any]:
    """Overrides that make the quick form, a short try, of a recipe whose full form has ``steps`` steps."""
    short = max(1, min(steps // 10, _SHORT))
    return {"training.steps": short, "training.validation.every": max(1, short // 4)}


def _rate(part: Adapt, width: int) -> float:
    rate, at = _RATE
    found = min(_MOST, rate * at / width * part.rate_factor)
    return float(f"{found:.1g}")


def guess_task(data: Mapping[str, Any]) -> str:
    """Infer the kind of task from a table's format, column names and values.

    Questions with answers, words with tags, translations or summaries (by column name), numbers, labels. Raises
    ``UserError`` if ambiguous.
    """
    given = Data.parse(dict(data))
    for kind in ("question_answering", "token_classification"):
        if _opened(given, kind) is not None:
            return kind
    for kind in ("translation", "summarization"):
        if _named(given, _roles(kind)):
            return kind
    labels, numbers = _opened(given, "classification"), _opened(given, "regression")
    if numbers is not None and (labels is None or _are_values(labels)):
        return "regression"
    if labels is not None:
        return "classification"
    raise UserError(
        f"the columns of {given.source!r} do not determine the task; name it, as in: "
        f"qkv train classify --data {given.source} --text … --label …"
    )


def _roles(kind: str) -> tuple[Role, ...]:
    return build_task(Task.kinds()[kind]()).roles  # type: ignore[attr-defined]


def _opened(data: Data, kind: str) -> Records | None:
    """Read the table with the columns of a task of that kind; None if it does not fit."""
    roles = _roles(kind)
    try:
        return open_records(
            data.changed(
                columns={role: data.columns[role] for role in data.columns if role in {r.name for r in roles}}
            ),
            roles,
        )
    except UserError:
        return None


def _named(data: Data, roles: tuple[Role, ...]) -> bool:
    """True if the table has a column named after each role, such as "source" and "target"."""
    table = (
        named_tables(data.source)["train"]
        if data.source in TABLES
        else table_of(data.source, data, roles, "data.source")
    )
    columns = {plain(column) for column in table.columns}
    return all(columns & {plain(name) for name in (role.name, *role.names)} for role in roles)


def _are_values(records: Records) -> bool:
    """True if the labels are numbers on a scale, for regression: fractions, or many distinct values."""
    try:
        values = {float(row["label"]) for row in records.splits["train"]}
    except ValueError:
        return False
    return len(values) > _CLASSES or any(value != int(value) for value in values)
