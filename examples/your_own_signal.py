"""A signal defined outside the package: classify sequences of points in the plane by the shape that they trace.

A processor converts raw values to a signal, and a front end embeds it. With these two, the tasks of the package train,
resume, evaluate and predict, and the model's cost is estimated before it is built. No text is involved.

    points (N, 2) ── scaled ── (B, N, 2) ── a linear map ── x (B, N, D) ── blocks ── pooling ── one of three shapes

Run it: python examples/your_own_signal.py
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import qkv
from qkv.data.batching.padding import lengths_or_none
from qkv.data.processors.processor import Processor
from qkv.frontends.frontend import Frontend
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.layers.signal import Signal
from qkv.spec.base import Seq
from qkv.spec.frontends import Frontend as FrontendSpec
from qkv.spec.model import Stack
from qkv.spec.processors import Processor as ProcessorSpec
from qkv.spec.processors import Role
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements


# 1. The specs: options with limits. What the data determines is None in a recipe, and stored with the run.
class Points(ProcessorSpec, kind="points"):
    """Points in the plane, (p - mean) / deviation with one deviation for both axes."""

    role = Role("points", "signal", ("points", "path"))

    mean: Seq[float] | None = None
    deviation: float | None = None


class PointMap(FrontendSpec, kind="point_map"):
    """Linear embedding of a point's coordinates."""

    processor = Points


# 2. The processor: a raw value of a table's column -> an array -> the signal of several rows.
@implements(Points)
class PointProcessor(Processor):
    """Lists of points [[x, y], …] -> values (B, N, 2), padded with 0."""

    spec: Points

    def fitted(self, values: Sequence[Any]) -> Points:
        points = np.concatenate([np.array(value, float) for value in values])
        return Points(mean=tuple(points.mean(0).tolist()), deviation=float(points.std()))

    def encode(self, value: Any) -> np.ndarray:
        return (np.array(value, np.float32) - np.array(self.spec.mean, np.float32)) / np.float32(self.spec.deviation)

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        values = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in encoded], batch_first=True)
        return Signal(values, lengths_or_none(values, torch.tensor([len(each) for each in encoded])))


# 3. The front end: x from a signal. Positions, padding and state are handled elsewhere.
@implements(PointMap)
class PointFrontend(Frontend):
    """points (B, N, 2) -> (B, N, D)."""

    def __init__(self, part: PointMap, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack)
        self.map = Linear(2, width)

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return self.map(signal.values)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, length, 2, generator=generator))


# 4. Data: rows of any table, in memory or in a file.
SHAPES = ("circle", "line", "square")


def outline(shape: str, t: np.ndarray) -> np.ndarray:
    """Points (N, 2) of a shape at the parameters t in [0, 1]."""
    if shape == "circle":
        return np.stack((np.cos(2 * np.pi * t), np.sin(2 * np.pi * t)), -1)
    if shape == "line":
        return np.stack((2 * t - 1, 1 - 2 * t), -1)
    side, along = np.floor(4 * t) % 4, 2 * (4 * t % 1) - 1
    corners = [
        np.stack(pair, -1) for pair in ((along, -np.ones_like(t)), (np.ones_like(t), along), (-along, np.ones_like(t)))
    ]
    return np.select([(side == i)[:, None] for i in range(3)], corners, np.stack((-np.ones_like(t), -along), -1))


def drawn(count: int, noise: float = 0.05) -> list[dict[str, Any]]:
    """Rows of noisy outlines of 12 to 24 points."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(count):
        shape = SHAPES[number % 3]
        points = outline(shape, np.sort(rng.random(rng.integers(12, 25))))
        rows.append({"points": (points + noise * rng.standard_normal(points.shape)).tolist(), "label": shape})
    return rows


recipe = Recipe.parse(
    {
        "name": "shapes",
        "data": {"source": "memory", "processor": "points"},
        "task": "classification",
        "model": {
            "width": 32,
            "num_layers": 2,
            "context_length": 32,
            "frontend": "point_map",
            "blocks": [{"branches": ["attention(4, mask=full, relative=rope)", "feed_forward"]}],
            "head": "classification(pooling=mean)",
        },
        "training": {
            "steps": 120,
            "batch_size": 32,
            "optimizer": {"kind": "adamw", "lr": 3e-3},
            "validation": {"every": 30},
        },
    }
)


def quiet(event: object) -> None:
    """Show no progress."""


def main() -> None:
    """Count the cost of the model, train it, resume it, evaluate it, and predict with it."""
    counted = qkv.cost(qkv.override(recipe, ["model.head.num_classes=3"]).model, batch_size=32, length=24)
    print(f"{counted.parameters:,} parameters, {counted.forward_flops / 1e6:.1f} MFLOPs for 32 rows of 24 points")
    with tempfile.TemporaryDirectory() as scratch:
        folder, rows = Path(scratch) / "run", drawn(600)
        half, whole = (qkv.override(recipe, [f"training.steps={n}", "training.schedule=constant"]) for n in (60, 120))
        qkv.train(half, folder, data=rows, on_event=quiet)
        run = qkv.train(whole, folder, data=rows, on_event=quiet)  # resumes the run
        print("files:", ", ".join(sorted(path.name for path in folder.iterdir() if path.is_file())))
        steps = len([row for row in run.metrics if row.get("loss") is not None])
        print(f"{steps} steps, accuracy {qkv.evaluate(run)['accuracy']:.1f} %")
        loaded = qkv.load(folder)
        for shape in SHAPES:
            (answer,) = qkv.predict(loaded, {"points": outline(shape, np.linspace(0, 1, 24)).tolist()})
            print(f"{shape}: {answer['answer']} ({answer['probability']:.2f})")


if __name__ == "__main__":
    main()
