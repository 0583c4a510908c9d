"""Benchmark of linear maps: every implementation against torch's default, GFLOP/s for many rows and GB/s for one row.

    python benchmarks/linear.py

One row is the decoding case, limited by reading the weights; several weights, together larger than the caches, are used
in turn.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.ops.linear import choose
from qkv.report.table import print_table
from side_by_side import Times, in_turns, parser, say_where

SHAPES = ((768, 128, 512), (4096, 384, 1536), (4096, 768, 3072))
ROWS = ((768, 2304), (768, 3072), (768, 50257))
SMOKE_SHAPES, SMOKE_ROWS = ((32, 32, 64),), ((32, 64),)
COLD = 64 << 20
"""Minimum total number of weights in the one-row case."""
PEER = "torch"


def product(twin: Callable[..., Tensor], x: Tensor, weights: list[Tensor], training: bool) -> Callable[[], object]:
    """Function that applies every weight once, with gradients if ``training``."""

    def run() -> None:
        with torch.set_grad_enabled(training):
            for weight in weights:
                y = twin(x, weight, None)
                if training:
                    torch.autograd.grad(y, (x, weight), y.detach())

    return run


def measure(rows: int, inner: int, outer: int, training: bool, repeats: int) -> dict[str, Times]:
    """Time every twin that supports the direction, and qkv's choice, in turns."""
    many = max(1, COLD // (inner * outer)) if rows == 1 and inner * outer > 1 << 16 else 1
    x = torch.randn(rows, inner, requires_grad=training)
    weights = [torch.randn(outer, inner, requires_grad=training) for _ in range(many)]
    # Inference only.
    twins = {
        name: twin for name, twin in choose.TWINS.items() if not training or name not in ("oneDNN operator", "split")
    }
    if rows != 1:
        twins.pop("split", None)
    runs = {name: product(twin, x, weights, training) for name, twin in {**twins, "chosen": choose.linear}.items()}
    times = in_turns(runs, repeats)
    return {name: Times(tuple(s / many for s in t.seconds)) for name, t in times.items()}


def show(title: str, columns: list[str], amounts: list[float], found: list[dict[str, Times]]) -> None:
    """Print a table of sides by shapes, in ``amounts`` per second, then the ratio of qkv's choice / torch's default."""
    names = dict.fromkeys(name for times in found for name in times)
    rows = []
    for name in names:
        pairs = zip(amounts, found, strict=True)
        rows.append(
            (name, *(round(amount / times[name].best / 1e9, 1) if name in times else None for amount, times in pairs))
        )
    spread = max(t.spread for times in found for t in times.values())
    print_table(f"\n{title} (best; largest spread {spread:.0%})", ["side", *columns], rows)
    ratios = [f"{column}: {t[PEER].best / t['chosen'].best:.2f}" for column, t in zip(columns, found, strict=True)]
    print(f"ratio chosen / {PEER}   " + ", ".join(ratios))


def main() -> None:
    """Run many rows in both directions, then one row."""
    options = parser(__doc__ or "")
    asked = options.parse_args()
    say_where()
    shapes, single = (SMOKE_SHAPES, SMOKE_ROWS) if asked.smoke else (SHAPES, ROWS)
    columns = [" × ".join(map(str, shape)) for shape in shapes]
    for training in (False, True):
        found = [measure(*shape, training, asked.repeats) for shape in shapes]
        amounts = [2.0 * rows * inner * outer * (3 if training else 1) for rows, inner, outer in shapes]
        show(f"linear, fp32, {'forward and backward' if training else 'forward'}, GFLOP/s", columns, amounts, found)
    found = [measure(1, inner, outer, False, asked.repeats) for inner, outer in single]
    amounts = [4.0 * inner * outer for inner, outer in single]
    show("linear, fp32, one row, GB/s of weights", [f"{inner} → {outer}" for inner, outer in single], amounts, found)


if __name__ == "__main__":
    main()
