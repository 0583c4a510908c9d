"""A front end defined outside the package: classify sequences of points in the plane by the shape that they trace.

A front end embeds the model's input. With this one the model is trained, resumed, evaluated, used for prediction, and
its cost is estimated before it is built. No text is involved.

    points (B, N, 2) ── a linear map ── x (B, N, D) ── blocks ── pooling ── one of three shapes

Run it: python examples/your_own_signal.py
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qkv
from qkv.data.batch import Batch
from qkv.data.vocabulary import Vocabulary
from qkv.frontends.frontend import Frontend
from qkv.layers.context import Context
from qkv.layers.linear import Linear
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.spec.frontends import Frontend as FrontendSpec
from qkv.spec.model import Stack
from qkv.spec.processors import Scaler
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Task as TaskSpec
from qkv.tasks.generated import Draw, GeneratedTask
from qkv.tasks.task import Observed, Scale, Totals


# 1. The spec: options with limits.
class Points(FrontendSpec, kind="points"):
    """Linear embedding of a point's coordinates."""

    axes: int = 2


# 2. The module: x from a signal. Positions, padding and state are handled elsewhere.
@implements(Points)
class PointFrontend(Frontend):
    """points (B, N, axes) -> (B, N, D)."""

    part: Points

    def __init__(self, part: Points, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack)
        self.map = Linear(part.axes, width)

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return self.map(signal.values)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, length, self.part.axes, generator=generator))


# 3. The task. Its vocabulary holds the scaler that converts raw points to model inputs.
class Shapes(TaskSpec, kind="shapes"):
    """Classification of points by the shape that they trace."""

    reads = "nothing"
    head = "classification"
    noise: float = 0.1


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


@implements(Shapes)
class ShapesTask(GeneratedTask):
    """-log p(shape | points)."""

    loss_unit = "nats a shape"
    asks = ("points",)

    def longest(self, recipe: Recipe) -> int:
        return 24

    def vocabulary(self) -> Vocabulary:
        return Vocabulary.without_text(SHAPES, points=Scaler(mean=(0.0, 0.0), deviation=(0.7, 0.7)))

    def drawing(self, recipe: Recipe, vocabulary: Vocabulary) -> Draw:
        def draw(rng: np.random.Generator) -> Batch:
            labels = rng.integers(3, size=recipe.training.batch_size)
            drawn = [
                outline(SHAPES[i], np.sort(rng.random(24))) + self.spec.noise * rng.standard_normal((24, 2))
                for i in labels
            ]
            return Batch.of(self.read(np.stack(drawn), vocabulary), torch.from_numpy(labels))

        return draw

    def read(self, given: np.ndarray, vocabulary: Vocabulary) -> Signal:
        """Scale raw points (B, N, 2)."""
        scaler = vocabulary.processors["points"]
        assert isinstance(scaler, Scaler)
        return Signal(torch.from_numpy((given - np.array(scaler.mean)) / np.array(scaler.deviation)).float())

    def summed_loss(self, model: nn.Module, batch: Batch, tap: Tap | None = None) -> Tensor:
        return F.cross_entropy(model(batch.input, tap=tap)[0], batch.targets, reduction="sum")

    def observe(self, model: nn.Module, batch: Batch) -> Observed:
        logits = model(batch.input)[0]
        right = (logits.argmax(-1) == batch.targets).tolist()
        return Observed(F.cross_entropy(logits, batch.targets, reduction="sum"), len(right), right)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return {"loss": seen.loss / seen.count, "accuracy": sum(seen.outcomes) / seen.count}

    def predict(self, model: nn.Module, vocabulary: Vocabulary, recipe: Recipe, rows: list[dict]) -> list[dict]:
        with torch.inference_mode():
            chances = [model(self.read(np.array([row["points"]]), vocabulary))[0][0].softmax(-1) for row in rows]
        return [{"answer": vocabulary.labels[int(c.argmax())], "probability": float(c.max())} for c in chances]


recipe = Recipe.parse(
    {
        "name": "shapes",
        "task": "shapes",
        "model": {
            "width": 32,
            "num_layers": 2,
            "context_length": 32,
            "frontend": "points",
            "blocks": [{"branches": ["attention(4, mask=full, relative=rope)", "feed_forward"]}],
            "head": "classification(pooling=mean)",
        },
        "training": {
            "steps": 60,
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
        folder = Path(scratch) / "run"
        half, whole = (qkv.override(recipe, [f"training.steps={n}", "training.schedule=constant"]) for n in (30, 60))
        qkv.train(half, folder, on_event=quiet)
        run = qkv.train(whole, folder, on_event=quiet)  # resumes the run
        print("files:", ", ".join(sorted(path.name for path in folder.iterdir() if path.is_file())))
        steps = len([row for row in run.metrics if row.get("loss") is not None])
        print(f"{steps} steps, accuracy {qkv.evaluate(run)['accuracy']:.2f}")
        loaded = qkv.load(folder)
        for shape in SHAPES:
            (answer,) = qkv.predict(loaded, {"points": outline(shape, np.linspace(0, 1, 24)).tolist()})
            print(f"{shape}: {answer['answer']} ({answer['probability']:.2f})")


if __name__ == "__main__":
    main()
