"""Bytes of decoding state over length, for every causal mixer, by its own ``state_bytes``."""

from __future__ import annotations

import qkv.spec.files.yaml_io  # noqa: F401 - registers every spec
from making.pictures.sheet import NARROW
from qkv.mixers.registry import build_branch
from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.spec.branches import Branch

WIDTH = 512
LENGTHS = [2**n for n in range(15)]
VARIANTS = {
    "attention": "attention(8)",
    "2 key/value heads": "attention(8, num_kv_heads=2)",
    "1 key/value head": "attention(8, num_kv_heads=1)",
    "window of 256": "attention(8, mask='causal & window(256)')",
}
"""Forms of attention whose state differs; all other mixers have their default settings."""


def bytes_over_length(branch: object) -> tuple[int, ...]:
    """State of one row after each of ``LENGTHS`` positions in a model ``WIDTH`` wide."""
    built = build_branch(Branch.parse(branch), WIDTH)
    return tuple(built.state_bytes(n) for n in LENGTHS)


def _causal_mixers() -> list[str]:
    """Kinds that qkv itself brings."""
    kinds = {kind: part() for kind, part in Branch.kinds().items() if part.__module__.startswith("qkv.")}
    return [
        kind
        for kind, part in sorted(kinds.items())  # in an order that does not depend on imports
        if part.mixes and part.causal and not part.reads_memory and kind != "attention"
    ]


def curves() -> dict[tuple[int, ...], list[str]]:
    """Names by curve, since several mixers have the same."""
    found: dict[tuple[int, ...], list[str]] = {}
    for name, branch in {**VARIANTS, **{kind: kind for kind in _causal_mixers()}}.items():
        found.setdefault(bytes_over_length(branch), []).append(name)
    return found


def states(width: int) -> LineChart:
    """One line for each different curve."""
    lines = []
    for values, names in sorted(curves().items(), key=lambda item: -item[0][-1]):
        first, *others = names
        name = f"{first} (also {', '.join(others)})" if others and width > NARROW else first
        lines.append(Line(name, LENGTHS, [value or None for value in values]))
    told = (
        "Keys and values grow with every position, a window stops growing, "
        "recurrent states and convolutions are constant."
    )
    unit = f"bytes a layer {WIDTH} wide, logarithmic"
    height = 400 if width <= NARROW else 420
    return LineChart(
        "State", lines, "positions, logarithmic", unit, True, True, description=told, width=width, height=height
    )
