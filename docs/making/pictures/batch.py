"""Walk of one batch through the packages, with the values and shapes of a real forward and backward pass."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from making.pictures.sheet import EM, NARROW, Picture, box, code, line, wrapped, written
from qkv.layers.tap import Recorder
from qkv.models.build import build
from qkv.report.markup import Markup
from qkv.spec.recipe import Recipe
from qkv.tasks.registry import build_task

TEXT = "Once upon a time there was a model that read a text, and then it wrote one. " * 12
ROWS, LENGTH, SHOWN = 2, 8, 8
PAD, LEAD, GAP = 10, 15, 16
LABEL = 118
"""Width of the column of package names."""


@dataclass(frozen=True)
class Station:
    """What a package makes of the batch: one sentence, and values or shapes."""

    package: str
    words: str
    values: tuple[str, ...]


def _recipe(source: Path) -> Recipe:
    branches = ["attention(4, relative=rope)", "gated_feed_forward"]
    return Recipe.parse(
        {
            "name": "walk",
            "data": {"source": str(source), "tokenizer": "words"},
            "model": {"width": 32, "num_layers": 2, "context_length": LENGTH, "blocks": [{"branches": branches}]},
            "training": {"steps": 1, "batch_size": ROWS, "seed": 0},
        }
    )


def _listed(values: torch.Tensor) -> str:
    return " ".join(f"{value:3d}" for value in values[0, :SHOWN].tolist())


def _shape(value: torch.Tensor) -> str:
    return f"({', '.join(map(str, value.shape))})"


def walk() -> list[Station]:
    """Stations of one training batch of a small language model with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "my.txt"
        source.write_text(TEXT, encoding="utf-8")
        task = build_task(_recipe(source).task)
        dataset = task.open(_recipe(source))
        batch = dataset.batch(0)
    tokenizer = dataset.vocabulary.tokenizer
    tap = Recorder("frontend.output", "residual_before", "residual_after", "norm.output", "head.output")
    torch.manual_seed(0)
    model = build(dataset.recipe.model)
    loss = task.summed_loss(model, batch, tap) / batch.num_targets
    loss.backward()
    ids, seen = batch.input.values, dict(tap)
    pieces = "|".join(tokenizer.decode([i]) for i in ids[0, :SHOWN].tolist())
    branches = [path.removesuffix(".residual_before") for path in seen if path.endswith(".residual_before")]
    blocks = [f"{path}  {model.get_submodule(path).body.spec.kind}" for path in branches]
    grown = sum(p.numel() for p in model.parameters() if p.grad is not None)
    return [
        Station("tokenizers", "Text to ids, one for each word or run of spaces.", (pieces, _listed(ids))),
        Station(
            "data",
            f"A batch of {ids.shape[0]} rows of {ids.shape[1]} positions; the target is the next id.",
            (
                f"input   {_shape(ids)}  {_listed(ids[:, :6])} …",
                f"targets {_shape(batch.targets)}  {_listed(batch.targets[:, :6])} …",
            ),
        ),
        Station(
            "frontends",
            "Ids to vectors, with positions, lengths and masks in a context.",
            (f"x {_shape(seen['frontend.output'])}",),
        ),
        Station(
            "models, mixers, layers",
            "Each branch reads the residual stream and adds to it; attention mixes positions.",
            (*blocks, f"x {_shape(seen[branches[-1] + '.residual_after'])}"),
        ),
        Station(
            "models",
            "A final norm, and a head: one logit per token of the vocabulary, where there is a target.",
            (f"norm {_shape(seen['norm.output'])}", f"logits {_shape(seen['head.output'])}"),
        ),
        Station(
            "tasks",
            "The loss: mean negative log-likelihood of the targets.",
            (
                f"{loss.item():.2f} nats a token; ln {seen['head.output'].shape[-1]} = "
                f"{math.log(seen['head.output'].shape[-1]):.2f} is chance",
            ),
        ),
        Station(
            "training",
            "Gradients, clipped, and one update by the optimiser.",
            (f"{grown:,} parameters with a gradient",),
        ),
    ]


def _station(station: Station, width: float, y: float) -> tuple[list[Markup], float]:
    """Drawing of one station, and its height."""
    beside = width > NARROW
    left = LABEL if beside else PAD
    lines = wrapped(station.words, width - left - PAD)
    names = wrapped(station.package, LABEL - 2 * PAD - 12) if beside else [station.package]
    size = 11 if beside else 10
    fit = min([size, *((width - left - PAD) / (EM * max(1, len(v))) for v in station.values)])
    top = y + PAD + (0 if beside else LEAD)
    pieces = [written(PAD, y + PAD + 10 + LEAD * i, name, 12, bold=True, ink="accent") for i, name in enumerate(names)]
    pieces += [written(left, top + 10 + LEAD * i, words) for i, words in enumerate(lines)]
    pieces += [
        code(left, top + 10 + LEAD * (len(lines) + i), value, fit, ink="muted")
        for i, value in enumerate(station.values)
    ]
    height = max(top - y + LEAD * (len(lines) + len(station.values)), PAD + LEAD * len(names)) + PAD - 3
    return [box(0, y, width, height), *pieces], height


def batch(width: int) -> Picture:
    """All stations, from top to bottom."""
    stations, inside, y = walk(), width - 1, 1.0
    pieces: list[Markup] = []
    for n, station in enumerate(stations):
        if n:
            pieces.append(line([(inside / 2, y - GAP + 2), (inside / 2, y - 3)]))
        drawn, height = _station(station, inside, y)
        pieces += drawn
        y += height + GAP
    told = " ".join(f"{s.package}: {s.words} {'; '.join(s.values)}." for s in stations)
    return Picture("One batch", f"From top to bottom. {told}", (width, y - GAP), pieces)
