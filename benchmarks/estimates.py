"""Benchmark of estimates of softmax attention: error and time of the Performer's features and of HyperAttention.

    python benchmarks/estimates.py --write docs/claims.md

Queries, keys and values are given: independent Gaussian vectors, so that each query reads many keys a little, or 32
directions of length 4 with noise, so that each reads the keys of its own. The error is |O' - O| / |v|, O' the estimate
of the outputs O of exact attention, and all |·| roots of mean squares. Beside it, |O - mean v| / |v| is the error of an
estimate that knows no more than the mean of all values. The Performer's error is over draws of its directions. Times
are of a forward pass; exact attention is qkv's choice among its implementations.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.costs.measuring.growth import fitted
from qkv.layers.context import Context
from qkv.mixers.linear.feature_maps import Favor
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.linear_attention.full import full
from qkv.ops.masks import Full, Sites
from qkv.ops.sparse import hyper_attention as ops
from qkv.report.figures import short
from qkv.report.table import print_table
from qkv.spec.mixers import linear_attention as spec
from side_by_side import in_turns, parser, say_where, write_table

HEADS, DIM, CLUSTERS = 4, 32, 32
BLOCK, LEAF, BITS = 256, 256, 8


class Given(NamedTuple):
    """Queries, keys and values (1, H, N, Dk)."""

    q: Tensor
    k: Tensor
    v: Tensor


def gaussian(count: int, deviation: float = 1.0) -> Given:
    """Independent Gaussian vectors; ``deviation``: of the features of queries and keys."""
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, HEADS, count, DIM, generator=draw) for _ in range(3))
    return Given(deviation * q, deviation * k, v)


def clusters(count: int) -> Given:
    """Vectors of ``CLUSTERS`` groups; keys of the own group have e^(16 / √Dk) ≈ 17 times the weight of others."""
    given, draw = gaussian(count), torch.Generator().manual_seed(2)
    centres, values = (torch.randn(HEADS, CLUSTERS, DIM, generator=draw) for _ in range(2))
    centres = 4 * torch.nn.functional.normalize(centres, dim=-1)
    member = torch.randint(CLUSTERS, (count,), generator=draw)
    q, k = (centres[:, member] + 0.1 * x for x in (given.q, given.k))
    return Given(q, k, values[:, member] + 0.1 * given.v)


GROUPED = "32 clusters"
SPREAD: dict[str, Callable[[int], Given]] = {
    f"Gaussian, deviation {deviation:g}": partial(gaussian, deviation=deviation) for deviation in (0.25, 0.5, 1.0)
}


def exact(given: Given) -> Tensor:
    """Outputs of exact attention to all keys."""
    positions = torch.arange(given.q.shape[2])[None]
    problem = AttentionProblem(Full(), Sites(positions, positions, aligned=True), DIM**-0.5)
    return attention(*given, problem)


def performer(given: Given, features: int, orthogonal: bool, seed: int = 0) -> Tensor:
    """Outputs of the Performer with directions of one draw."""
    phi = Favor(spec.Favor(num_features=features, orthogonal=orthogonal, seed=seed), HEADS, DIM)
    context = Context(torch.arange(given.q.shape[2])[None])
    return full(phi(given.q, context, True), phi(given.k, context, False), given.v)


def hyper(given: Given, samples: int) -> Tensor:
    """Outputs of HyperAttention."""
    count = given.q.shape[2]
    how = ops.Estimation(DIM**-0.5, BLOCK, min(samples, count), by_value=False, leaf=LEAF)
    return ops.full(*given, None, ops.chance(0, (HEADS, DIM, BITS), count, given.q), how)


def error(estimates: Sequence[Tensor], outputs: Tensor, given: Given) -> float:
    """Root of the mean over estimates of |O' - O|² / |v|²."""
    squares = [(found - outputs).square().mean() for found in estimates]
    return math.sqrt(float(torch.stack(squares).mean() / given.v.square().mean()))


def of_mean(outputs: Tensor, given: Given) -> str:
    """Error of the mean of all values."""
    return short(error([given.v.mean(2, keepdim=True)], outputs, given))


def of_features(count: int, numbers: Sequence[int], draws: int) -> tuple[list[str], list[list[str]]]:
    """Table of the Performer's error by number of features, and the exponent of each row."""
    rows = []
    for name, make in {**SPREAD, GROUPED: clusters}.items():
        given = make(count)
        outputs = exact(given)
        for orthogonal in (True, False):
            found = [
                error([performer(given, number, orthogonal, seed) for seed in range(draws)], outputs, given)
                for number in numbers
            ]
            slope = fitted(numbers, found)
            kind = "orthogonal" if orthogonal else "independent"
            rows.append(
                [name, kind, of_mean(outputs, given), *map(short, found), f"{slope.value:.2f} ± {slope.half:.2f}"]
            )
    columns = ["vectors", "directions", "mean of the values"]
    return [*columns, *(f"{number:,} features" for number in numbers), "exponent"], rows


def of_lengths(lengths: Sequence[int], samples: Sequence[int], repeats: int) -> tuple[list[str], list[list[str]]]:
    """Table of HyperAttention's error and time, and of exact attention's time, by length."""
    rows = []
    for name, make in {"Gaussian, deviation 1": gaussian, GROUPED: clusters}.items():
        for count in lengths:
            given = make(count)
            outputs = exact(given)
            errors = [short(error([hyper(given, number)], outputs, given)) for number in samples]
            sides: dict[str, Callable[[], Any]] = {"exact": lambda given=given: exact(given)}
            sides |= {str(n): lambda given=given, n=n: hyper(given, n) for n in samples}
            best = {side: times.best for side, times in in_turns(sides, repeats).items()}
            faster = [f"{best['exact'] / best[str(n)]:.2f} ×" for n in samples]
            rows.append(
                [name, f"{count:,}", of_mean(outputs, given), *errors, f"{1000 * best['exact']:.3g} ms", *faster]
            )
    columns = [
        "vectors",
        "positions",
        "mean of the values",
        *(f"error, {n} samples" for n in samples),
        "exact attention",
    ]
    return [*columns, *(f"speed, {n} samples" for n in samples)], rows


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--features", type=int, nargs="+", default=[16, 64, 256, 1024, 4096])
    options.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384, 32768])
    options.add_argument("--samples", type=int, nargs="+", default=[64, 256, 1024])
    options.add_argument("--draws", type=int, default=20, help="draws of the Performer's directions")
    options.add_argument("--positions", type=int, default=512, help="positions of the Performer's rows")
    options.add_argument("--write", type=Path, help="Markdown file whose tables are replaced")
    given = options.parse_args()
    if given.smoke:
        given.features, given.lengths, given.samples, given.draws, given.positions = [16, 32, 64], [512], [64], 2, 64
    return given


@torch.no_grad()
def main() -> None:
    """Measure, print and write."""
    given = arguments()
    say_where()
    found = {
        "performer": of_features(given.positions, given.features, given.draws),
        "hyper": of_lengths(given.lengths, given.samples, given.repeats),
    }
    for name, (columns, rows) in found.items():
        print_table(f"\n{name}", columns, rows)
        if given.write:
            write_table(given.write, f"{name}: benchmarks/estimates.py", columns, rows)


if __name__ == "__main__":
    main()
