"""Horizontal bar charts as plain SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qkv.report.charts import frame
from qkv.report.charts.frame import text, text_width
from qkv.report.charts.scale import AxisScale, drawable
from qkv.report.figures import short
from qkv.report.markup import Markup, tag

_ROW, _BAR = 26, 16


@dataclass(frozen=True)
class BarChart:
    """Horizontal bar chart of (name, value) pairs, drawn from 0 in the given order and labelled with the values.

    ``unit``: unit of the values; ``highlight``: name of the bar drawn in colour, the others are grey.
    """

    title: str
    bars: Sequence[tuple[str, float]]
    unit: str = ""
    highlight: str = ""
    description: str = ""
    width: int = 480

    def svg(self, standalone: bool = True) -> str:
        """Return the SVG of the chart.

        ``standalone``: include its style sheet; otherwise, the surrounding page must include ``theme.css``.
        """
        height = 34 + _ROW * max(1, len(self.bars))
        sentences = [self.description] if self.description else []
        sentences += [f"{name}: {short(value, 4)}." for name, value in self.bars]
        body = frame.lines([frame.heading(self.title, self.unit), *self._rows()])
        return frame.svg((self.width, height), self.title, " ".join(sentences) or "No values yet.", body, standalone)

    def _repr_svg_(self) -> str:
        """SVG for notebooks."""
        return self.svg()

    def data(self) -> dict[str, Any]:
        """Return the title, names and values of the bars as plain data, to embed in the report page."""
        return {
            "title": self.title,
            "unit": self.unit,
            "names": [name for name, _ in self.bars],
            "values": [value for _, value in self.bars],
        }

    def compact(self) -> None:
        """Return None: a bar chart needs no variant for narrow screens."""

    def _rows(self) -> Iterator[Markup]:
        scale = AxisScale.over((value for _, value in self.bars), zero=True)
        written = [short(value, 4) for _, value in self.bars]
        left = min(self.width * 0.4, max([0.0, *(text_width(name) for name, _ in self.bars)])) + 10
        room = max([0.0, *(text_width(words) for words in written)]) + 8
        # Labels of negative values are placed to the left of their bars.
        start, end = left + (room if scale.low < 0 else 0), self.width - room
        for i, ((name, value), words) in enumerate(zip(self.bars, written, strict=True)):
            y = 30.0 + _ROW * i
            middle = y + _BAR / 2 + 4
            yield text(left - 10, middle, frame.shortened(name, left - 10), anchor="end", class_="strong")
            zero, tip = (start + scale.place(v) * (end - start) for v in (0.0, value if drawable(value) else 0.0))
            colour = "quiet" if self.highlight not in ("", name) else "s0"
            about = tag("title", f"{name}: {words} {self.unit}".rstrip())
            yield tag(
                "rect",
                about,
                x=min(zero, tip),
                y=y,
                width=max(abs(tip - zero), 0.5),
                height=_BAR,
                rx=2,
                class_=f"bar {colour}",
            )
            beyond = tip - 6 if tip < zero else tip + 6
            yield text(
                beyond,
                middle,
                words,
                anchor="end" if tip < zero else None,
                class_=None if drawable(value) else "gap-mark",
            )
