"""Two signals in one model, the second defined outside the package: answer questions about a path in the plane.

Each row has a path, a list of points, and a question in words, in which ``<points>`` is the place of the path. The
model reads both in one row and writes its answer: the points take the places of tokens, and decoding goes on after
both.

    where does <points> begin ?   ->   top left

Run it: python examples/two_signals.py
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
from qkv.spec.frontends import Frontend as FrontendSpec
from qkv.spec.model import Stack
from qkv.spec.processors import Processor as ProcessorSpec
from qkv.spec.processors import Role
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements


class Path2D(ProcessorSpec, kind="path"):
    """Points in the plane, as they are."""

    role = Role("points", "signal", ("points", "path"))


class PathMap(FrontendSpec, kind="path_map"):
    """Linear embedding of each point's coordinates."""

    processor = Path2D


@implements(Path2D)
class PathProcessor(Processor):
    """Lists of points [[x, y], …] -> values (B, N, 2), padded with 0."""

    spec: Path2D

    def fitted(self, values: Sequence[Any]) -> Path2D:
        return self.spec

    def encode(self, value: Any) -> np.ndarray:
        return np.array(value, np.float32)

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        values = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in encoded], batch_first=True)
        return Signal(values, lengths_or_none(values, torch.tensor([len(each) for each in encoded])))


@implements(PathMap)
class PathFrontend(Frontend):
    """points (B, N, 2) -> (B, N, D)."""

    def __init__(self, part: PathMap, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack)
        self.map = Linear(2, width)

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return self.map(signal.values)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, length, 2, generator=generator))


CORNERS = {"top left": (-1, 1), "top right": (1, 1), "bottom left": (-1, -1), "bottom right": (1, -1)}


def drawn(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of noisy paths from one corner to another, with a question about an end of the path, and its answer."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        first, last = rng.permutation(list(CORNERS))[:2].tolist()
        t = np.linspace(0, 1, int(rng.integers(4, 9)))[:, None]
        points = (1 - t) * np.array(CORNERS[first]) + t * np.array(CORNERS[last])
        asked, answer = ("begin", first) if rng.random() < 0.5 else ("end", last)
        points = points + 0.1 * rng.standard_normal(points.shape)
        rows.append({"points": points.tolist(), "question": f"where does <points> {asked} ?", "target": answer})
    return rows


recipe = Recipe.parse(
    {
        "name": "two signals",
        "data": {"source": "memory", "inputs": {"points": "path", "question": "word_list(min_frequency=1)"}},
        "task": "translation(label_smoothing=0)",
        "model": {
            "width": 64,
            "num_layers": 2,
            "context_length": 48,
            "frontend": {"kind": "joined", "positions": "none", "inputs": {"points": "path_map"}},
            "blocks": [{"branches": ["attention(4, mask=prefix, relative=rope)", "feed_forward"]}],
        },
        "training": {
            "steps": 300,
            "batch_size": 32,
            "optimizer": {"kind": "adamw", "lr": 3e-3},
            "validation": {"every": 100},
        },
    }
)


def quiet(event: object) -> None:
    """Show no progress."""


def main() -> None:
    """Train the model in two parts, evaluate it, and ask it about new paths."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, rows = Path(scratch) / "run", drawn(1000)
        half, whole = (qkv.override(recipe, [f"training.steps={n}", "training.schedule=constant"]) for n in (150, 300))
        qkv.train(half, folder, data=rows, on_event=quiet)
        run = qkv.train(whole, folder, data=rows, on_event=quiet)  # resumes the run
        print("files:", ", ".join(sorted(path.name for path in folder.iterdir() if path.is_file())))
        print(f"perplexity of an answer's tokens {qkv.evaluate(run)['perplexity']:.2f}")
        loaded, right, asked = qkv.load(folder), 0, drawn(100, seed=1)
        for row, found in zip(asked, qkv.predict(loaded, asked), strict=True):
            right += found["answer"] == row["target"]
        print(f"{right} of {len(asked)} new questions are answered right")


if __name__ == "__main__":
    main()
