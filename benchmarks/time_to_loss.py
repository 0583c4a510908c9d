"""Benchmark of training time to a given loss: nanoGPT's character-Shakespeare CPU setting against qkv's recipes.

    QKV_DATA=folder python benchmarks/time_to_loss.py --nanogpt path/to/nanoGPT --seeds 1

nanoGPT: its own model and ``configure_optimizers`` in the loop of its train.py without logging (4 layers, 4 heads,
width 128, context 64, batch 12, 2,000 iterations, cosine from 1e-3 to 1e-4 after 100 of warm-up, beta2 0.99, weight
decay 0.1, clip 1, no dropout).
qkv: ``char_shakespeare_cpu.yaml`` (same sizes and budget) and ``char_shakespeare_fast.yaml`` (free choice) through
``qkv.train``.

Loss: fp32, over the whole validation split (last tenth of the characters), every target exactly once, in windows of the
model's context length, with one function for all. Time: updates only, from drawing the batch to the optimizer step,
without validation, samples, checkpoints and reports. All sides run in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qkv
from gpt_models import nanogpt_module
from qkv.data.corpora.corpus import open_corpus
from qkv.report.table import print_table
from qkv.training.watch.events import Event, Stepped, Validated
from side_by_side import parser, say_where

OURS = {"cpu": "char_shakespeare_cpu", "fast": "char_shakespeare_fast"}
ROWS = 64
POINTS = 9
"""Number of validations of a qkv run, which limits the resolution of its time to a loss."""


@dataclass(frozen=True)
class Trained:
    """One run. ``curve``: (training seconds, loss on the whole split) at each validation, the last one at the end."""

    side: str
    seed: int
    loss: float
    seconds: float
    curve: list[tuple[float, float]]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--nanogpt", type=Path, help="folder of a nanoGPT checkout")
    options.add_argument("--seeds", type=int, default=1, help="number of seeds, from 1")
    options.add_argument("--first-seed", type=int, default=1)
    options.add_argument(
        "--only", nargs="+", choices=["nanogpt", *OURS], default=["nanogpt", *OURS], help="sides to run"
    )
    options.add_argument("--data", default="tinyshakespeare", help="a named data set or a text file")
    options.add_argument("--iterations", type=int, default=2000, help="nanoGPT iterations")
    return options.parse_args()


def whole_split_loss(logits_of: Callable[[Tensor], Tensor], ids: Tensor, context: int) -> float:
    """Mean loss in nats over all targets ids[1:], each once, in windows of ``context``; the last may be shorter."""
    nats, targets = 0.0, len(ids) - 1
    full = targets // context
    windows = [(ids[: full * context].view(full, context), ids[1 : full * context + 1].view(full, context))]
    if targets % context:
        windows.append((ids[None, full * context : -1], ids[None, full * context + 1 :]))
    with torch.no_grad():
        for inputs, wanted in windows:
            for x, y in zip(inputs.split(ROWS), wanted.split(ROWS), strict=True):
                nats += F.cross_entropy(logits_of(x).float().flatten(0, 1), y.flatten(), reduction="sum").item()
    return nats / targets


def train_nanogpt(folder: Path, data: tuple[np.ndarray, np.ndarray], vocab: int, iterations: int, seed: int) -> Trained:
    """Train nanoGPT's model with its optimizer in the loop of its train.py."""
    module, (train, validation) = nanogpt_module(folder), data
    torch.manual_seed(seed)
    context, batch = 64, 12
    with contextlib.redirect_stdout(io.StringIO()):
        model = module.GPT(module.GPTConfig(context, vocab, n_layer=4, n_head=4, n_embd=128, dropout=0.0, bias=False))
        optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    model.train()
    began = time.perf_counter()
    for iteration in range(iterations):
        for group in optimizer.param_groups:
            group["lr"] = nanogpt_rate(iteration, iterations)
        x, y = nanogpt_batch(train, context, batch)
        _, loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seconds = time.perf_counter() - began
    model.eval()
    loss = whole_split_loss(lambda ids: nanogpt_logits(model, module, ids), torch.from_numpy(validation), context)
    return Trained("nanoGPT", seed, loss, seconds, [(seconds, loss)])


def nanogpt_rate(iteration: int, iterations: int) -> float:
    """Learning rate of nanoGPT: linear warm-up of 100 iterations, then cosine from 1e-3 to 1e-4."""
    warm_up, most, least = 100, 1e-3, 1e-4
    if iteration < warm_up:
        return most * (iteration + 1) / (warm_up + 1)
    share = (iteration - warm_up) / max(1, iterations - warm_up)
    return least + 0.5 * (1 + math.cos(math.pi * min(1.0, share))) * (most - least)


def nanogpt_batch(data: np.ndarray, context: int, batch: int) -> tuple[Tensor, Tensor]:
    """(random crops, the same crops shifted by one character)."""
    starts = torch.randint(len(data) - context, (batch,)).tolist()
    x = torch.stack([torch.from_numpy(data[i : i + context]) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + context]) for i in starts])
    return x, y


def nanogpt_logits(model: nn.Module, module: ModuleType, ids: Tensor) -> Tensor:
    """Logits of all positions, which nanoGPT's forward returns only if it is given targets."""
    assert isinstance(model, module.GPT)
    return model(ids, ids)[0]


class Clock:
    """Event handler that sums the seconds of updates and records validation losses."""

    def __init__(self) -> None:
        self.seconds, self.tokens = 0.0, 0
        self.curve: list[tuple[float, float]] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self.seconds += (event.tokens - self.tokens) / event.tokens_per_second
            self.tokens = event.tokens
        elif isinstance(event, Validated):
            self.curve.append((self.seconds, event.loss))


def train_qkv(side: str, source: str, validation: np.ndarray, seed: int, smoke: bool) -> Trained:
    """Train a recipe with ``qkv.train``."""
    changes = [f"training.seed={seed}", f"data.source={source}", "training.validation.batches=null"]
    if smoke:
        changes += ["training.steps=4", "training.schedule.warmup=1", "sample.max_new_tokens=4"]
    recipe, clock = qkv.read_recipe(OURS[side], changes), Clock()
    recipe = qkv.override(recipe, [f"training.validation.every={max(1, recipe.training.steps // POINTS)}"])
    with tempfile.TemporaryDirectory() as folder:
        run = qkv.train(recipe, out=Path(folder) / "run", on_event=clock)
    model = run.model.eval()
    loss = whole_split_loss(lambda ids: model(ids)[0], torch.from_numpy(validation), recipe.model.context_length)
    return Trained(f"qkv {side}", seed, loss, clock.seconds, clock.curve)


def characters(source: str) -> tuple[np.ndarray, np.ndarray, int]:
    """(train ids, validation ids, vocabulary size), split at 90 % of the text as in nanoGPT's prepare.py."""
    corpus = open_corpus(qkv.Recipe.parse({"data": source}).data)
    train, validation = (np.asarray(ids, dtype=np.int64) for ids in (corpus.train, corpus.validation))
    share = len(train) / (len(train) + len(validation))
    assert abs(share - 0.9) < 1e-3, f"the corpus was split at {share:.4f}"
    return train, validation, corpus.tokenizer.vocab_size


def first_below(curve: list[tuple[float, float]], loss: float) -> float | None:
    """Training seconds at the first validation with a loss of at most ``loss``."""
    return next((seconds for seconds, found in curve if found <= loss), None)


def show(runs: list[Trained]) -> None:
    """Print the table, and when each qkv run reached nanoGPT's final loss of the same seed."""
    rows = [(run.side, run.seed, round(run.loss, 4), round(run.seconds, 1)) for run in runs]
    print_table(
        "\nloss over the whole validation split, seconds of training", ["side", "seed", "final loss", "seconds"], rows
    )
    for peer in (run for run in runs if run.side == "nanoGPT"):
        for run in (run for run in runs if run.seed == peer.seed and run is not peer):
            reached = first_below(run.curve, peer.loss)
            if reached is None:
                print(f"seed {run.seed}: {run.side} does not reach nanoGPT's {peer.loss:.4f}")
            else:
                ratio = f"{peer.seconds / reached:.2f} times faster"
                print(
                    f"seed {run.seed}: {run.side} is at or below nanoGPT's {peer.loss:.4f} after {reached:.1f} s "
                    f"of {peer.seconds:.1f} s, {ratio}"
                )


def main() -> None:
    """Run every side once per seed, in turns."""
    asked = arguments()
    say_where()
    if "nanogpt" in asked.only and not asked.nanogpt:
        print("left out: nanoGPT; name a checkout with --nanogpt")
    train, validation, vocab = characters(asked.data)
    print(f"data       {asked.data}, {len(train):,} training characters, {len(validation) - 1:,} held-out targets")
    runs: list[Trained] = []
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        if "nanogpt" in asked.only and asked.nanogpt:
            runs.append(
                train_nanogpt(asked.nanogpt, (train, validation), vocab, 4 if asked.smoke else asked.iterations, seed)
            )
        for side in (side for side in OURS if side in asked.only):
            runs.append(train_qkv(side, asked.data, validation, seed, asked.smoke))
    show(runs)


if __name__ == "__main__":
    main()
