"""Benchmark of several scales of one row: models of one level and of three at equal FLOPs on signals with structure at
three scales.

    python benchmarks/scales.py [--seeds 1 2] [--write PAGE]

A signal of 256 steps holds bursts in noise. Its class, one of eight, says three things: the shape of a burst (8 steps),
whether bursts come in pairs or alone (32 steps), and whether they are denser in the first or the second half. Attention
reads the whole row or a window; the model of one level has one block more, so that FLOPs are about equal.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from qkv.costs.cost import cost
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.report.figures import short
from qkv.report.table import print_table
from qkv.spec.model import Model
from side_by_side import parser, say_where, write_table

STEPS, SPAN, NOISE = 256, 8, 0.5
COLUMNS = ("attention", "levels", "blocks", "FLOPs of a row", "accuracy of each seed", "mean")
WINDOW, ROWS = 8, 32
CLASSES = 8


def signals(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Signals (count, STEPS, 1) and their classes (count)."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, CLASSES, count)
    values = NOISE * rng.standard_normal((count, STEPS))
    ramp = np.linspace(-1, 1, SPAN)
    for row, (shape, paired, late) in enumerate(zip(classes & 1, classes >> 1 & 1, classes >> 2, strict=True)):
        dense, sparse = (4, 2) if not late else (2, 4)
        for half, groups in ((0, dense), (1, sparse)):
            places = rng.choice(4, groups, replace=False) * 32 + half * (STEPS // 2)
            for place in places:
                offsets = (2, 12) if paired else (rng.integers(0, 20),)
                for offset in offsets:
                    values[row, place + offset : place + offset + SPAN] += (ramp if shape else -ramp) * 1.5
    return torch.from_numpy(values[..., None]).to(torch.float32), torch.from_numpy(classes)


def spec(window: bool, factors: list[int], blocks: int, width: int) -> Model:
    mask = f"window({WINDOW})" if window else "full"
    data = {
        "width": width,
        "num_layers": blocks,
        "context_length": STEPS // 2,
        "frontend": {
            "kind": "series_patches",
            "features": 1,
            "channels": "mixed",
            "patch": 2,
            "stride": 2,
            "pad_end": False,
            "normalise": "none",
            "positions": "sinusoidal",
        },
        "blocks": [{"branches": [f"attention(2, mask='{mask}', relative=rope)", f"feed_forward({2 * width})"]}],
        "head": {"kind": "classification", "num_classes": CLASSES, "pooling": ["mean", "max"]},
        **({"segmentation": {"kind": "scales", "factors": factors}} if len(factors) > 1 else {}),
    }
    return Model.parse(data)


def accuracy(model_spec: Model, seed: int, steps: int, tested: int) -> float:
    """Train on signals that are drawn anew for every step; return the accuracy on others, in %."""
    torch.manual_seed(seed)
    model = build(model_spec).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        values, classes = signals(ROWS, 1_000_003 * seed + step)
        loss = cross_entropy(model(Signal(values))[0], classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    values, classes = signals(tested, 7)
    with torch.inference_mode():
        found = torch.cat([model.eval()(Signal(part))[0].argmax(-1) for part in values.split(100)])
    return 100 * float((found == classes).double().mean())


def main() -> None:
    parts = parser(__doc__)
    parts.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parts.add_argument("--steps", type=int, default=160)
    parts.add_argument("--write", type=Path, help="page whose table is written")
    options = parts.parse_args()
    say_where()
    steps, tested, width = (3, 100, 16) if options.smoke else (options.steps, 2000, 32)
    seeds, rows = options.seeds[:1] if options.smoke else options.seeds, list[list[str]]()
    for window in (False, True):
        for factors, blocks in (([1], 4), ([1, 4, 16], 3)):
            model_spec, start = spec(window, factors, blocks, width), perf_counter()
            found = [accuracy(model_spec, seed, steps, tested) for seed in seeds]
            print(f"{'window' if window else 'full'}, {factors}: {found}, {perf_counter() - start:.0f} s", flush=True)
            rows.append(
                [
                    f"window of {WINDOW}" if window else "whole row",
                    ", ".join(map(str, factors)),
                    str(blocks),
                    short(cost(model_spec, 1, STEPS // 2).needed_flops),
                    ", ".join(f"{value:.1f}" for value in found),
                    f"{np.mean(found):.1f}",
                ]
            )
    print_table("accuracy on signals with structure at three scales, in %", COLUMNS, rows)
    if options.write:
        write_table(options.write, "scales: scales.py", COLUMNS, rows)


if __name__ == "__main__":
    main()
