"""Benchmark of tokens as particles: when random particles cluster, by temperature and dimension, beside the theorem.

    python benchmarks/particles.py --write docs/theory.md

The published phase diagram (Geshkovski et al. 2023) shows, for 32 particles, the share of pairs whose inner product is
at least 1 - 10^-3 over time and β, with the curve on which the equation of high dimension reaches the same value. The
table holds the time at which half of the pairs have, and that of the curve.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from qkv.report.table import print_table
from qkv.theory.particles import (
    CLOSE,
    count_clusters,
    inner_product_in_high_dimension,
    random_particles,
    share_of_close_pairs,
    trajectory,
)
from side_by_side import parser, say_where, write_table

COUNT = 32
EVERY = 0.25
"""Time between two measurements."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--rows", type=int, default=64, help="random sets of particles for each β and dimension")
    options.add_argument("--times", type=int, default=121, help=f"measurements, {EVERY} apart")
    options.add_argument("--dims", type=int, nargs="+", default=[2, 8, 32, 128])
    options.add_argument("--betas", type=float, nargs="+", default=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    options.add_argument("--write", type=Path, help="Markdown file whose table is replaced")
    given = options.parse_args()
    if given.smoke:
        given.rows, given.times, given.dims, given.betas = 2, 5, [2, 8], [0.0, 1.0]
    return given


def reached(shares: list[float], level: float) -> str:
    """Time at which a share reaches a level, or the last time as a lower bound."""
    first = next((i for i, share in enumerate(shares) if share >= level), None)
    return f"> {(len(shares) - 1) * EVERY:g}" if first is None else f"{first * EVERY:.2f}"


def main() -> None:
    """Simulate, print and write."""
    given = arguments()
    say_where()
    betas = torch.tensor(given.betas, dtype=torch.float64)
    curve = inner_product_in_high_dimension(betas, COUNT, given.times, EVERY)
    rows = []
    for column, beta in enumerate(given.betas):
        cells, clusters = [f"{beta:g}"], ""
        for dim in given.dims:
            sets = trajectory(random_particles(COUNT, dim, given.rows, seed=dim), beta, given.times, EVERY)
            shares = list[float]()
            for x in sets:
                shares.append(float(share_of_close_pairs(x).mean()))
                clusters = clusters if dim != given.dims[0] else f"{float(count_clusters(x).double().mean()):.1f}"
            cells.append(reached(shares, 0.5))
        theorem = reached(curve[:, column].tolist(), 1 - CLOSE)
        rows.append([*cells, theorem, clusters])
    columns = ["β", *(f"d = {dim}" for dim in given.dims), "theorem, d → ∞", f"clusters left, d = {given.dims[0]}"]
    print_table("time at which half of the pairs are one", columns, rows)
    if given.write:
        note = f"{COUNT} particles, {given.rows} random sets each, until time {(given.times - 1) * EVERY:g}."
        write_table(given.write, "particles: benchmarks/particles.py", columns, rows, note)


if __name__ == "__main__":
    main()
