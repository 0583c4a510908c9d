"""Small tables, and small recipes that learn from them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.records.model import Records
from qkv.data.vocabulary import Vocabulary
from qkv.models.build import build
from qkv.models.heads.head import build_head
from qkv.models.transformer import Transformer
from qkv.spec.heads import SpanHead
from qkv.spec.recipe import Recipe
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.example_task import ExampleTask
from qkv.tasks.registry import build_task
from qkv.training.watch.events import Event, Stepped

WORDS = ["the", "a", "red", "blue", "cat", "dog", "sat", "ran", "on", "under", "mat", "house", "and", "then", "slept"]
SEES_ALL = ["attention(2, mask=full)", "feed_forward(16)"]
HEADS = {
    "classification": "classification",
    "multilabel": "labels",
    "regression": "regression",
    "token_classification": "tokens",
    "question_answering": "spans",
}


def kind_of(task: str) -> str:
    """``"classification"`` of ``"classification(label_smoothing=0.1)"``."""
    return task.split("(")[0]


def recipe_for(
    task: str,
    source: Path | str = "table.jsonl",
    data: Mapping[str, Any] = {},
    training: Mapping[str, Any] = {},
    **model: Any,
) -> Recipe:
    """A recipe of one small block."""
    if kind_of(task) in HEADS:
        model = {"head": HEADS[kind_of(task)], "blocks": [{"branches": SEES_ALL}], **model}
    model = {"width": 16, "num_layers": 1, "context_length": 32, **model}
    settings = {"steps": 8, "batch_size": 3, "validation": {"every": 4}, "checkpoints": {"every": 3}, **training}
    return Recipe.parse(
        {
            "data": {"source": str(source), "batching": "length_buckets", **data},
            "task": task,
            "model": model,
            "training": settings,
        }
    )


def translating(encoder: bool, task: str = "translation", **options: Any) -> Recipe:
    """A recipe of an encoder–decoder, or of one stack whose mask has a prefix."""
    if encoder:
        stack = {"num_layers": 1, "context_length": 24, "blocks": [{"branches": SEES_ALL}]}
        model = {"blocks": [{"branches": ["attention(2)", "cross_attention(2)", "feed_forward(16)"]}], "encoder": stack}
    else:
        model = {"blocks": [{"branches": ["attention(2, mask='causal | prefix')", "feed_forward(16)"]}]}
    return recipe_for(task, **{**model, **options})


def sentence(draw: random.Random, words: int) -> str:
    """Some words."""
    return " ".join(draw.choices(WORDS, k=words))


def rows_of(task: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows from which each of the tasks can learn something."""
    draw = random.Random(seed)
    make: dict[str, Callable[[str], dict[str, Any]]] = {
        "classification": lambda text: {"text": text, "label": "animal" if "cat" in text or "dog" in text else "none"},
        "multilabel": lambda text: {"text": text, "labels": sorted({"cat", "dog", "the"} & set(text.split()))},
        "regression": lambda text: {"text": text, "value": 10.0 + 3 * text.count("cat") - text.count("the")},
        "token_classification": lambda text: {"words": text.split(), "tags": [_tag(word) for word in text.split()]},
        "question_answering": _question,
        "translation": lambda text: {"source": text, "target": " ".join(reversed(text.split()))},
        "summarization": lambda text: {"source": text, "target": text.split()[0]},
    }
    return [make[task](sentence(draw, draw.randint(2, 9))) for _ in range(count)]


def _tag(word: str) -> str:
    return {"red": "B-thing", "blue": "B-thing", "cat": "I-thing", "dog": "I-thing", "house": "B-place"}.get(word, "O")


def _question(text: str) -> dict[str, Any]:
    answer = text.split()[len(text.split()) // 2]
    return {
        "context": text,
        "question": f"where is {answer}",
        "answers": [{"text": answer, "start": text.index(answer)}],
    }


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """JSON lines, answers in SQuAD's form."""
    path.write_text("".join(json.dumps({**row}) + "\n" for row in rows), encoding="utf-8")
    return path


def dataset_of(
    recipe: Recipe,
    rows: Sequence[dict[str, Any]],
    held_out: Sequence[dict[str, Any]] | None = None,
    vocabulary: Vocabulary | None = None,
) -> tuple[ExampleTask, ExampleDataset]:
    """The task and its dataset of rows that no file holds; the same rows are held out where none are given."""
    records = Records(
        "table", {"train": list(rows), "validation": list(rows if held_out is None else held_out)}, {}, (), "", ()
    )
    task = build_task(recipe.task)
    assert isinstance(task, ExampleTask)
    recipe = task.completed(recipe, records)
    task = build_task(recipe.task)
    assert isinstance(task, ExampleTask)
    vocabulary = vocabulary or task.vocabulary(recipe, records)
    reader = task.reader(recipe, vocabulary)
    examples = {split: task.examples(part, vocabulary, reader) for split, part in records.splits.items()}
    notes = tuple(reader.notes(sum(map(len, records.splits.values()))))
    return task, ExampleDataset(recipe, records, vocabulary, examples, task.collator(recipe, vocabulary), notes)


def model_of(dataset: ExampleDataset, spread: float = 1.0) -> Transformer:
    """A model of random weights, so large that its answers differ."""
    model = build(dataset.recipe.model, 5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 4 * spread)
    return model.requires_grad_(False).eval()


class Oracle(nn.Module):
    """A model that says what it was told to say, whatever it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.says = torch.zeros(0)
        self.head = build_head(SpanHead(), 1, None)  # for its loss alone

    def forward(self, ids: Tensor, **_: Any) -> tuple[Tensor, None]:
        return self.says, None


class Crash(Exception):
    """Ends a run where it stands, as a power cut would."""


def crash_at(step: int) -> Callable[[Event], None]:
    """A listener that ends the run after a step."""

    def tell(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == step:
            raise Crash

    return tell
