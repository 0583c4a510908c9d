"""Benchmark of fp32 products by every exact way: the shapes of training, an encoder, and reading a prompt.

    python benchmarks/products.py
    python benchmarks/products.py --write benchmarks/results/products.md

Beside the paths that qkv chooses from stand weights that MKL and oneDNN lay out in their own order once. A path whose
results are further from float64 than rounding in fp32 explains has its error in place of its rate: oneDNN in torch's
own products rounds to bf16 on processors with AMX, and is never chosen there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import qkv
from qkv.ops.linear import choose, native, onednn, operator
from qkv.report.table import print_table
from qkv.system.processor import processor_name
from side_by_side import Times, in_turns, parser, say_where, with_rows_of, write_table

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
EXACT = 2e-6
"""Largest error of an exact product, relative to the sum of the absolute products."""
COLD, MOST = 12 << 20, 4
"""Weights that are used in turn, as in a model, which fits no cache; most matrices of them for many rows."""


class Case(NamedTuple):
    """Products of a model: rows of x, inner and outer width of the weights, and whether gradients are computed."""

    name: str
    rows: int
    inner: int
    outer: int
    training: bool


CASES = (
    Case("training 10.7M, queries, keys and values", 4096, 384, 1152, True),
    Case("training 10.7M, feed-forward", 4096, 384, 1536, True),
    Case("BERT-base 8 × 128, queries, keys and values", 1024, 768, 2304, False),
    Case("BERT-base 8 × 128, feed-forward", 1024, 768, 3072, False),
    Case("GPT-2 prompt of 512, queries, keys and values", 512, 768, 2304, False),
    Case("GPT-2 prompt of 512, feed-forward", 512, 768, 3072, False),
    Case("GPT-2, 8 rows", 8, 768, 3072, False),
)
SMOKE = (Case("training", 32, 64, 96, True), Case("inference", 32, 64, 96, False))
WAYS = ("MKL", "MKL, packed", "oneDNN", "oneDNN operator", "oneDNN operator, packed", "native")
COLUMNS = ["case", "rows × inner × outer", "vectors", *WAYS, "chosen", "date"]
KEYS = 3


def ways(case: Case, weights: list[Tensor]) -> dict[str, list[Callable[[Tensor], Tensor]]]:
    """Products with each of ``weights`` by every way that runs here."""
    found: dict[str, list[Callable[[Tensor], Tensor]]] = {}

    def add(name: str, product: Product) -> None:
        found[name] = [
            partial(lambda x, weight, product: product(x, weight, None), weight=w, product=product) for w in weights
        ]

    add("MKL", F.linear)
    add("oneDNN", onednn.linear)
    if operator.available():
        add("oneDNN operator", operator.linear)
    if not case.training:
        found |= _packed(case, weights)
        if native.available():
            add("native", native.linear)
    add("chosen", choose.linear)
    return found


def _packed(case: Case, weights: list[Tensor]) -> dict[str, list[Callable[[Tensor], Tensor]]]:
    """Products with weights in an order of the library's own, for this number of rows."""
    found: dict[str, list[Callable[[Tensor], Tensor]]] = {}
    mkl, mkldnn = torch.ops.mkl, torch.ops.mkldnn
    if torch.backends.mkl.is_available() and hasattr(mkl, "_mkl_linear"):
        found["MKL, packed"] = [
            partial(
                lambda x, w, p: mkl._mkl_linear(x, p, w, None, case.rows),
                w=w,
                p=mkl._mkl_reorder_linear_weight(w, case.rows),
            )
            for w in weights
        ]
    if operator.available() and hasattr(mkldnn, "_reorder_linear_weight"):
        found["oneDNN operator, packed"] = [
            partial(lambda x, p: operator.forward(x, p), p=mkldnn._reorder_linear_weight(w, case.rows)) for w in weights
        ]
    return found


def error(product: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> float:
    """Largest difference from float64, relative to the sum of the absolute products."""
    with torch.no_grad():
        expected = x.double() @ weight.double().t()
        whole = x.double().abs() @ weight.double().abs().t()
        return float(((product(x).double() - expected).abs() / whole).max())


def measure(case: Case, repeats: int) -> tuple[dict[str, Times], dict[str, float]]:
    """Seconds for one product by each way, and the largest errors."""
    torch.manual_seed(0)
    many = max(1, COLD // (case.inner * case.outer)) if not case.training else 1
    many = min(many, MOST) if case.rows > 64 else many
    x = torch.randn(case.rows, case.inner)
    weights = [torch.randn(case.outer, case.inner) for _ in range(many)]
    made = ways(case, weights)
    errors = {name: error(products[0], x, weights[0]) for name, products in made.items()}
    for tensor in (x, *weights):
        tensor.requires_grad_(case.training)

    def run(products: list[Callable[[Tensor], Tensor]]) -> None:
        with torch.set_grad_enabled(case.training):
            for product, weight in zip(products, weights, strict=True):
                y = product(x)
                if case.training:
                    torch.autograd.grad(y, (x, weight), y.detach())

    times = in_turns({name: partial(run, products) for name, products in made.items()}, repeats)
    return {name: Times(tuple(s / many for s in t.seconds)) for name, t in times.items()}, errors


def row(case: Case, times: dict[str, Times], errors: dict[str, float]) -> list[str]:
    """Row of the table: GFLOP/s of each way, or its error."""
    work = 2e-9 * case.rows * case.inner * case.outer * (3 if case.training else 1)
    cells = [
        ""
        if name not in times
        else f"{work / times[name].best:,.0f}"
        if errors[name] <= EXACT
        else f"error {errors[name]:.0e}"
        for name in (*WAYS, "chosen")
    ]
    shape = f"{case.rows} × {case.inner} × {case.outer}"
    vectors = torch.backends.cpu.get_cpu_capability()
    return [case.name, shape, vectors, *cells, f"{datetime.now(UTC):%Y-%m-%d %H:%M}"]


def main() -> None:
    """Measure all cases."""
    options = parser(__doc__ or "")
    options.set_defaults(repeats=5)
    options.add_argument("--write", type=Path, help="page whose table gets the rows")
    asked = options.parse_args()
    say_where()
    rows = [row(case, *measure(case, asked.repeats)) for case in (SMOKE if asked.smoke else CASES)]
    print_table("\nfp32 products, GFLOP/s", COLUMNS[:-1], [tuple(each[:-1]) for each in rows])
    if asked.write and not asked.smoke:
        name = "products: benchmarks/products.py"
        where = f"{processor_name()}, {torch.get_num_threads()} of them used"
        below = f"{where}; qkv {qkv.__version__}, torch {torch.__version__}."
        write_table(asked.write, name, COLUMNS, with_rows_of(asked.write, name, rows, KEYS), below)


if __name__ == "__main__":
    main()
