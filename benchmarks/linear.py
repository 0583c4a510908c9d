"""Benchmark of linear maps: every implementation against torch's default, GFLOP/s for many rows and GB/s for one row.

    python benchmarks/linear.py
    python benchmarks/linear.py --only native

One row is the decoding case, limited by reading the weights; several weights, together larger than the caches, are used
in turn. The native kernel's products with weights in 32, 16, 8 and 4 bits stand beside a sum over the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qkv.ops.linear import choose
from qkv.ops.native import library, loading
from qkv.ops.quantized import choose as quantized
from qkv.ops.quantized import reference
from qkv.ops.quantized.packed import PackedMatrix
from qkv.report.table import print_table
from side_by_side import Times, in_turns, parser, say_where

SHAPES = ((768, 128, 512), (4096, 384, 1536), (4096, 768, 3072))
ROWS = ((768, 2304), (768, 3072), (768, 50257))
SMOKE_SHAPES, SMOKE_ROWS = ((32, 32, 64),), ((32, 64),)
COLD = 64 << 20
"""Minimum total number of weights in the one-row case."""
PEER = "torch"
NATIVE = (768, 3072)
NATIVE_ROWS = (1, 2, 4, 8)


def product(
    twin: Callable[..., Tensor], x: Tensor, weights: Sequence[Tensor | PackedMatrix], training: bool
) -> Callable[[], object]:
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
    alone = ("oneDNN operator", "split", "native")
    twins = {name: twin for name, twin in choose.TWINS.items() if not training or name not in alone}
    if not library.available():
        twins.pop("native", None)
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


def native(inner: int, outer: int, many: int, repeats: int) -> None:
    """Print GB/s of the native kernel with weights in 32, 16, 8 and 4 bits for a few rows, beside a sum over the same
    bytes, in turns.
    """
    rows: list[tuple[object, ...]] = []
    for bits in (32, 16, 8, 4):
        dense = torch.randn(outer, inner)
        number = many * 32 // bits
        if bits == 32:
            plain = [dense.clone() for _ in range(number)]
            products = {r: product(choose.TWINS["native"], torch.randn(r, inner), plain, False) for r in NATIVE_ROWS}
            total = sum(weight.nbytes for weight in plain)
        else:
            one = reference.pack(dense, bits, 32 if bits == 4 else 0)
            packs = [one._replace(stored=one.stored.clone()) for _ in range(number)]
            products = {r: product(quantized.native, torch.randn(r, inner), packs, False) for r in NATIVE_ROWS}
            total = sum(pack.stored.nbytes + (0 if pack.scale is None else pack.scale.nbytes) for pack in packs)
        summed = torch.ones(total // 4)
        runs = {"sum": summed.sum, **{f"{r} rows": run for r, run in products.items()}}
        times = in_turns(runs, repeats)
        speeds = [total / 1e9 / t.best for t in times.values()]
        rows.append((bits, *(round(speed, 1) for speed in speeds), round(speeds[1] / speeds[0], 2)))
    columns = ["bits", "sum", *(f"{r} rows" for r in NATIVE_ROWS), "one row / sum"]
    print_table(f"\nnative kernel ({loading.flags()[2]}), {inner} → {outer}, GB/s of weights", columns, rows)


def main() -> None:
    """Run many rows in both directions, one row, and the native kernel."""
    options = parser(__doc__ or "")
    options.add_argument("--only", choices=["native"], help="leave out the other tables")
    asked = options.parse_args()
    say_where()
    if library.available():
        inner, outer = SMOKE_ROWS[0] if asked.smoke else NATIVE
        native(inner, outer, 1 if asked.smoke else COLD // (inner * outer), asked.repeats)
    else:
        print(f"native kernel: {library.described()}")
    if asked.only:
        return
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
