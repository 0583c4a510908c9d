"""Benchmark of growth: time and memory of a training pass of every mixer for 256, 512 … positions.

    python benchmarks/growth.py --results growth.jsonl --write docs/growth.md

One block with the mixer alone, between an embedding and a head of 64 tokens; one row, forward and backward pass. The
exponents are fitted over the longest factor of 16 in length whose passes all take 50 ms. ``--results`` keeps one line
for each finished mixer, so that the same command continues after a kill; ``--write`` replaces the table of a page, and
draws its picture beside it in ``pictures/growth.svg``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv.costs.growth_tables import summary
from qkv.costs.measuring.growth import GrowthCurve, GrowthPoint, growth_curve
from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.report.table import print_table
from qkv.spec.model import Model
from qkv.spec.models.growth import Growth
from side_by_side import parser, say_where, write_table

EXACT = "exact attention"
MIXERS: dict[str, str] = {
    EXACT: "attention(4, bias=false)",
    "window 256": "attention(4, mask=causal & window(256), bias=false)",
    "strided 128": "attention(4, mask=causal & (window(128) | strided(128)), bias=false)",
    "global and local": "global_local_attention(4, window=128)",
    "LSH": "lsh_attention(4)",
    "linear attention": "linear_attention(4)",
    "Performer": "linear_attention(4, features=favor(64))",
    "Linformer": "linformer(4)",
    "HyperAttention": "hyper_attention(4)",
    "latent attention": "latent_attention(4)",
    "GAU": "gau",
    "GAU in chunks": "mixed_chunk_attention",
    "retrieval": "retrieval_attention(4)",
    "continuous memory": "continuous_memory(4)",
    "retention": "retention(4)",
    "Mamba-2": "mamba2(4)",
    "gated delta rule": "gated_delta(4)",
    "GRU": "gru",
    "causal convolution": "causal_convolution(9)",
    "token shift": "token_shift",
    "MONet": "monet",
    "gMLP": "gmlp",
    "causal gMLP": "gmlp(mask=causal)",
    "MLP-Mixer": "token_mlp",
    "random mixing": "random_mixing",
    "pooling": "pooling(9)",
}
DRAWN = (EXACT, "window 256", "LSH", "linear attention", "Performer", "retention", "Mamba-2", "gated delta rule", "GRU")
"""Mixers of the picture; all are in the table."""


def model(branch: str, width: int) -> Model:
    """Model with one branch."""
    return Model.parse(
        {
            "width": width,
            "context_length": 256,
            "frontend": {"kind": "text", "vocab_size": 64, "positions": "none"},
            "blocks": [{"branches": [branch]}],
        }
    )


def read(path: Path | None) -> dict[str, GrowthCurve]:
    """Curves of finished mixers."""
    if path is None or not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {fields["name"]: parsed(fields) for fields in lines}


def parsed(fields: Mapping[str, Any]) -> GrowthCurve:
    """Curve from its line."""
    theory = None if fields["theory"] is None else Growth(*fields["theory"])
    points = tuple(GrowthPoint(*point) for point in fields["points"])
    return GrowthCurve(fields["name"], theory, points, fields["ended"])


def chart(curves: list[GrowthCurve]) -> LineChart:
    """Seconds over positions, on logarithmic axes."""
    shown = [curve for curve in curves if curve.name in DRAWN]
    lines = [Line(c.name, [p.length for p in c.points], [p.seconds for p in c.points], points=True) for c in shown]
    return LineChart("Seconds of a training pass", lines, "positions", "seconds", x_log=True, y_log=True, height=520)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--only", nargs="+", choices=list(MIXERS), default=list(MIXERS), metavar="MIXER")
    options.add_argument("--longest", type=int, default=65536)
    options.add_argument("--limit", type=float, default=20.0, help="longest pass, in seconds")
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--results", type=Path, help="file of finished mixers; default: none is kept")
    options.add_argument("--write", type=Path, help="Markdown file whose table is replaced")
    given = options.parse_args()
    if given.smoke:
        given.longest, given.limit, given.only = 256, 0.0, [EXACT, "linear attention"]
    return given


def main() -> None:
    """Measure, print and write."""
    given = arguments()
    say_where()
    curves = read(given.results)
    for name in given.only:
        if name in curves:
            continue
        curves[name] = growth_curve(
            name,
            model(MIXERS[name], given.width),
            given.longest,
            given.limit,
            lambda point, name=name: print(f"{name}: {point.length:,} positions, {point.seconds:.3g} s", flush=True),
        )
        if given.results:
            with given.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(curves[name])) + "\n")
    shown = [curves[name] for name in MIXERS if name in curves]
    columns, rows = summary(shown)
    print_table("exponents of the number N of positions", columns, rows)
    if given.write:
        write_table(given.write, "growth: benchmarks/growth.py", columns, rows)
        picture = given.write.parent / "pictures" / "growth.svg"
        picture.write_text(chart(shown).svg() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
