"""A short running text, and small recipes that learn from it or from nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.tasks.dataset import Dataset
from qkv.tasks.registry import build_task
from qkv.tasks.task import Task

TEXT = (
    "The cat sat on the mat. The dogs ran after a red ball, and the king of the old house slept! Was it late? It was. "
    * 40
)
NOWHERE = {"kind": "text", "positions": "none"}
SEES_ALL = {
    "frontend": NOWHERE,
    "blocks": [{"branches": ["attention(2, mask=full, relative=rope)", "feed_forward(16)"]}],
}
CAUSAL = {"blocks": [{"branches": ["attention(2)", "feed_forward(16)"]}]}
PREFIX = {"blocks": [{"branches": ["attention(2, mask='causal | prefix')", "feed_forward(16)"]}]}
PAIR = {
    "blocks": [{"branches": ["attention(2)", "cross_attention(2)", "feed_forward(16)"]}],
    "encoder": {**SEES_ALL, "context_length": 32},
}
VECTORS = {"frontend": NOWHERE, "blocks": [], "norm": "none", "head": "language_model(tied=false)"}
BYTE_PAIRS = "bpe(300)"


def recipe_of(
    task: str | dict[str, Any], model: Mapping[str, Any], folder: Path | None = None, tokenizer: Any = BYTE_PAIRS
) -> Recipe:
    """A small recipe; with a ``folder`` it reads ``TEXT``, written there."""
    read = {}
    if folder is not None:
        (folder / "text.txt").write_text(TEXT)
        read = {"data": {"source": str(folder / "text.txt"), "tokenizer": tokenizer}}
    training = {"steps": 4, "batch_size": 3, "schedule": "constant", "validation": {"every": 2, "batches": 1}}
    return Recipe.parse(
        {**read, "task": task, "model": {"width": 16, "context_length": 32, **model}, "training": training}
    )


def opened(recipe: Recipe) -> tuple[Task, Dataset, Transformer]:
    """Task, dataset and an untrained model in float64, with weights large enough to tell one text from another."""
    task = build_task(recipe.task)
    dataset = task.open(recipe)
    model = build(dataset.recipe.model.changed(init_std=0.3), 1).double()
    return task, dataset, model
