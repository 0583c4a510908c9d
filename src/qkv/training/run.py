"""A trained run: read back from its folder, and measured on held-out text."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qkv.data.batches import Batches
from qkv.data.corpus import TRAIN, VALIDATION, open_corpus
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.errors import UserError, nearest
from qkv.spec.recipe import Recipe
from qkv.spec.yaml_io import read_recipe
from qkv.tasks.registry import build_task
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.checkpoint import Checkpoints, load_weights
from qkv.training.evaluation import measure, scale_of
from qkv.training.files import read_tensors
from qkv.training.record import rows_of
from qkv.training.setup import SPEC, WEIGHTS


@dataclass(frozen=True)
class Run:
    """What a run folder holds. ``model`` has the weights of ``step``, after which the held-out loss was lowest."""

    folder: Path
    recipe: Recipe
    model: Transformer
    tokenizer: Tokenizer
    metrics: list[dict[str, Any]]
    step: int

    @property
    def val_loss(self) -> float | None:
        """The held-out loss of ``model`` as training measured it, in nats a token; None if it was not measured."""
        return next((row["val_loss"] for row in reversed(self.metrics) if row.get("step") == self.step and "val_loss" in row), None)


def load(folder: str | Path) -> Run:
    """The run in ``folder``. Before the first validation of a run in progress, the weights are those of its newest checkpoint.

    Raises UserError if the folder is no run, or a file in it is missing, torn, edited or belongs to another model.
    """
    folder = Path(folder)
    if not (folder / SPEC).is_file():
        raise UserError(f"{folder} is not a run folder: it holds no {SPEC}")
    recipe = read_recipe(folder)
    tokenizer = Tokenizer.load(folder)
    model = build(recipe.model, recipe.training.seed)
    path = folder / WEIGHTS
    if path.exists():
        tensors, metadata = read_tensors(path)
        step = int(metadata.get("step", 0))
    else:
        checkpoint = Checkpoints(folder / "resume").load(lambda _: None)
        if checkpoint is None:
            raise UserError(f"the run in {folder} has no weights yet: {path} is missing, and no checkpoint was saved")
        tensors, step = checkpoint.tensors["weights"], checkpoint.step
    load_weights(model, tensors, path)
    return Run(folder, recipe, model.eval(), tokenizer, rows_of(folder), step)


def evaluate(run: Run, split: str = VALIDATION, batches: int | None = None) -> dict[str, float]:
    """Figures of ``run`` over one split of its text: loss, perplexity, bits per token, character and byte, tokens, seconds.

    ``batches`` None covers every target of the split once; a number takes so many batches, evenly spread.
    """
    if split not in (TRAIN, VALIDATION):
        raise UserError(f"there is no split {split!r}; {nearest(split, (TRAIN, VALIDATION))}")
    recipe, began = run.recipe, time.perf_counter()
    corpus = open_corpus(recipe.data, run.tokenizer)
    corpus = replace(corpus, splits={**corpus.splits, VALIDATION: corpus.splits[split]})
    task = build_task(recipe.task)
    rows = Batches(corpus, recipe.data.batching, recipe.training.batch_size, recipe.model.context_length, recipe.training.seed)
    found = measure(run.model, task, rows.validation(batches), recipe.training.precision)
    assert found is not None
    nats, count = found
    figures = task.metrics(nats, count, scale_of(corpus.splits[VALIDATION].counts))
    return figures | {"tokens": count, "seconds": time.perf_counter() - began}
