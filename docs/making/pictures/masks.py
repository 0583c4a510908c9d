"""Masks as matrices: the predicates themselves, evaluated on positions."""

from __future__ import annotations

import torch

from making.pictures.sheet import NARROW, Picture, code, written
from qkv.mixers.masks import build_mask
from qkv.ops.masks import Sites
from qkv.report.markup import Markup, number, tag
from qkv.spec.branches import Attention

LENGTH = 12
MASKS = (
    ("full", "encoder"),
    ("causal", "decoder"),
    ("causal & window(4)", "sliding window"),
    ("causal & window(4, sinks=2)", "window and sinks"),
    ("causal | prefix(5)", "prefix decoder"),
    ("causal & strided(3)", "strided"),
    ("causal & (window(4) | strided(4))", "sparse, two patterns"),
    ("causal & blocks(4)", "local blocks"),
)


def visible(expression: str) -> list[list[bool]]:
    """Visible keys (columns) of each query (row)."""
    mask = build_mask(Attention.parse({"mask": expression}).mask)
    positions = torch.arange(LENGTH)[None]
    return Sites(positions, positions).visible(mask, num_heads=1).expand(1, 1, LENGTH, LENGTH)[0, 0].tolist()


def _cells(seen: list[list[bool]], x: float, y: float, cell: float, wanted: bool) -> str:
    """Path of all visible or all hidden cells."""
    size = number(cell - 1)
    places = ((x + j * cell, y + i * cell) for i, row in enumerate(seen) for j, key in enumerate(row) if key == wanted)
    return "".join(f"M{number(a)},{number(b)}h{size}v{size}h-{size}z" for a, b in places)


def _panel(expression: str, name: str, x: float, y: float, cell: float) -> list[Markup]:
    seen = visible(expression)
    size = 10 if len(expression) > 22 else 11
    return [
        written(x, y + 11, name, 12, bold=True),
        code(x, y + 26, expression, min(size, cell * LENGTH / (0.61 * len(expression))), ink="muted"),
        tag("path", d=_cells(seen, x, y + 34, cell, wanted=False), class_="missing"),
        tag("path", d=_cells(seen, x, y + 34, cell, wanted=True), style="fill:var(--s0)"),
    ]


def masks(width: int) -> Picture:
    """All of ``MASKS`` for a row of ``LENGTH`` positions: a query in each line, a key in each column."""
    columns = 2 if width <= NARROW else 4
    pitch = width / columns
    cell = round((pitch - 16) / LENGTH, 1)
    height = 34 + cell * LENGTH + 18
    pieces = []
    for n, (expression, name) in enumerate(MASKS):
        pieces += _panel(expression, name, pitch * (n % columns), height * (n // columns), cell)
    told = "; ".join(
        f"{name}, {expression}: {sum(map(sum, visible(expression)))} of {LENGTH**2} pairs visible"
        for expression, name in MASKS
    )
    rows = -(-len(MASKS) // columns)
    return Picture(
        "Masks",
        f"One line per query, one column per key, visible pairs in colour. {told}.",
        (width, rows * height - 8),
        pieces,
    )
