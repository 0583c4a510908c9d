"""Scores over distance under relative positions: those of a real attention branch, observed by a tap."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from making.pictures.sheet import NARROW
from qkv.layers.context import Context
from qkv.layers.tap import Recorder
from qkv.mixers.registry import build_branch
from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.spec.branches import Attention

LENGTH, HEAD = 129, 64
ROPES = {
    "base 10,000": "rope",
    "base 500,000": "rope(base=500000)",
    "base 10,000, linear scaling by 4": {"kind": "rope", "scaling": {"kind": "linear", "factor": 4}},
}
SLOPES = (1, 2, 4, 8)
"""Heads that are drawn, of eight."""


@torch.no_grad()
def scores(relative: object, heads: int) -> Tensor:
    """Scores (H, N) over the distance 0 … N - 1 of a query from keys of equal content, in float64.

    All weights are 0, so that queries and keys are their bias: ones, of squared length √Dk after scaling; or 0 for
    positions that are added to scores, so that nothing else is seen.
    """
    part = Attention.parse({"num_heads": heads, "head_dim": HEAD, "relative": relative, "bias": True})
    branch = build_branch(part, HEAD).double()
    for name, weight in branch.named_parameters():
        rotated = part.relative.kind == "rope" and name.endswith("bias")
        weight.fill_(HEAD**-0.25 if rotated else 0.0)
    branch.assign_name("branch")
    tap = Recorder("scores")
    context = Context(torch.arange(LENGTH)[None], tap=tap)
    branch(torch.zeros(1, LENGTH, HEAD, dtype=torch.float64), context)
    return tap["branch.scores"][0, :, -1].flip(-1)


def _chart(title: str, unit: str, lines: list[Line], description: str, width: int) -> LineChart:
    chart = LineChart(title, lines, "distance of the key", unit, description=description, width=width, height=300)
    return replace(chart, height=290) if width <= NARROW else chart


def rope(width: int) -> LineChart:
    """Score of an equal query and key over their distance under RoPE."""
    lines = [Line(name, range(LENGTH), scores(part, 1)[0].tolist()) for name, part in ROPES.items()]
    told = "The score falls with distance and oscillates; a larger base or scaled frequencies make it fall more slowly."
    return _chart("RoPE", "score of a query and an equal key", lines, told, width)


def alibi(width: int) -> LineChart:
    """Term that ALiBi adds to the scores of some heads, over distance."""
    found = scores("alibi", 8)
    lines = [Line(f"head {head} of 8", range(LENGTH), found[head - 1].tolist()) for head in SLOPES]
    told = "Straight lines through 0; the first head falls fastest, so that heads see from a few positions to far back."
    return _chart("ALiBi", "added to the score", lines, told, width)
