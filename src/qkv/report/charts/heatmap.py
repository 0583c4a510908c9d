"""Heat maps as plain SVG: attention maps, confusion matrices."""

from __future__ import annotations

import base64
import heapq
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qkv.report.charts import frame
from qkv.report.charts.frame import text, text_width
from qkv.report.charts.scale import AxisScale, drawable
from qkv.report.figures import short
from qkv.report.markup import Markup, tag

_ANCHORS = [
    (16, 22, 58),
    (31, 61, 124),
    (27, 107, 150),
    (38, 152, 152),
    (98, 190, 130),
    (180, 219, 106),
    (253, 241, 122),
]
"""Colour scale from low to high. Lightness is monotonic, so the order survives greyscale print and colour blindness."""

_MOST_TOLD, _LARGEST_TOLD = 100, 10
"""Maximum number of values in the text alternative, and number of largest values listed for larger maps."""
_MOST_CELLS = 400
"""Maximum number of cells drawn as SVG elements; larger maps are one embedded image."""


@dataclass(frozen=True)
class HeatMap:
    """Heat map of ``values[row][column]``, with one coloured cell per value; cells of None and NaN stay blank.

    ``low`` and ``high``: range of the colour scale; None: range of the values. ``rows`` and ``columns``: names of rows
    and columns; may be empty. ``numbers``: print the value in each cell if it fits. ``written``: text to print in each
    cell instead of its value, for example counts in cells whose colours show fractions.
    """

    title: str
    values: Sequence[Sequence[float | None]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    x_label: str = ""
    y_label: str = ""
    low: float | None = None
    high: float | None = None
    numbers: bool = False
    written: Sequence[Sequence[str]] = ()
    description: str = ""
    width: int = 360

    def svg(self, standalone: bool = True) -> str:
        """Return the SVG of the map.

        ``standalone``: include its style sheet; otherwise, the surrounding page must include ``theme.css``.
        """
        return _Drawing(self).svg(standalone)

    def _repr_svg_(self) -> str:
        """SVG for notebooks."""
        return self.svg()

    def data(self) -> dict[str, Any]:
        """Return the title, names and values of the map as plain data, to embed in the report page."""
        fields = {
            "title": self.title,
            "rows": list(self.rows),
            "columns": list(self.columns),
            "values": [list(row) for row in self.values],
        }
        return fields | ({"written": [list(row) for row in self.written]} if self.written else {})

    def compact(self) -> None:
        """Return None: a heat map has no variant for narrow screens."""


def colour(share: float) -> tuple[int, int, int]:
    """Return the RGB colour (0 to 255 each) at position ``share`` of the colour scale, 0 (low) to 1 (high)."""
    place = min(max(share, 0.0), 1.0) * (len(_ANCHORS) - 1)
    i = min(int(place), len(_ANCHORS) - 2)
    return tuple(round(a + (b - a) * (place - i)) for a, b in zip(_ANCHORS[i], _ANCHORS[i + 1], strict=True))  # type: ignore[return-value]


def _name(names: Sequence[str], number: int) -> str:
    """Return the name of the row or column with index ``number``; without a name, return its number, counted from 1."""
    return names[number] if number < len(names) else str(number + 1)


class _Drawing:
    def __init__(self, chart: HeatMap) -> None:
        self.chart = chart
        self.height, self.count = len(chart.values), max([0, *(len(row) for row in chart.values)])
        scale = AxisScale.over(v for row in chart.values for v in row if v is not None)
        self.scale = AxisScale.over(
            [scale.low if chart.low is None else chart.low, scale.high if chart.high is None else chart.high]
        )
        self.left = min(chart.width * 0.3, max([0.0, *(text_width(name) for name in chart.rows)])) + (
            10 if chart.rows else 0
        )
        self.right = chart.width - 62
        names = min(chart.width * 0.25, max([0.0, *(text_width(name) for name in chart.columns)]))
        self.cell = min(64.0, (self.right - self.left) / max(1, self.count))
        self.right = self.left + self.cell * self.count
        self.tilted = bool(names) and names > self.cell - 4
        self.top = (48 if chart.x_label or chart.y_label else 30) + (
            0 if not names else names * 0.9 + 8 if self.tilted else 18
        )
        self.bottom = self.top + self.cell * self.height

    def svg(self, standalone: bool) -> str:
        chart = self.chart
        about = (
            f"{self.height} rows, {self.count} columns, colours from {short(self.scale.low)} to "
            f"{short(self.scale.high)}. {self._describe()}"
        )
        axes = " → ".join(
            label
            for label in (chart.y_label and f"rows: {chart.y_label}", chart.x_label and f"columns: {chart.x_label}")
            if label
        )
        cells = self._cells() if self.height * self.count <= _MOST_CELLS else [self._image()]
        body = [
            frame.heading(chart.title),
            text(0, 34, axes.replace(" → ", " · ")),
            *self._backdrop(),
            *cells,
            *self._names(),
            *self._key(),
        ]
        size = (chart.width, max(self.bottom, self.top + 60) + 8)
        return frame.svg(size, chart.title, f"{chart.description} {about}".strip(), frame.lines(body), standalone)

    def _describe(self) -> str:
        """Build the text alternative of the map: all values of a small map, the largest values of a large map."""
        cells = [
            (i, j, v)
            for i, row in enumerate(self.chart.values)
            for j, v in enumerate(row)
            if v is not None and drawable(v)
        ]
        if len(cells) <= _MOST_TOLD:
            rows = [[self._value(i, j) for k, j, _ in cells if k == i] for i in range(self.height)]
            return " ".join(
                f"{_name(self.chart.rows, i)}: {', '.join(values)}." for i, values in enumerate(rows) if values
            )
        largest = heapq.nlargest(_LARGEST_TOLD, cells, key=lambda cell: cell[2])
        return f"Largest: {'; '.join(f'{_name(self.chart.rows, i)}, {self._value(i, j)}' for i, j, _ in largest)}."

    def _value(self, row: int, column: int) -> str:
        """Return the name of the column and the value of the cell as text."""
        value = self.chart.values[row][column]
        written = (
            self.chart.written[row][column] if self.chart.written else short(value if value is not None else math.nan)
        )
        return f"{_name(self.chart.columns, column)} {written}"

    def _backdrop(self) -> Iterator[Markup]:
        wide, high = self.right - self.left, self.bottom - self.top
        if wide and high:
            yield tag("rect", x=self.left, y=float(self.top), width=wide, height=high, class_="missing")

    def _cells(self) -> Iterator[Markup]:
        for i, row in enumerate(self.chart.values):
            for j, value in enumerate(row):
                if value is None or not drawable(value):
                    continue
                x, y = self.left + j * self.cell, self.top + i * self.cell
                red, green, blue = colour(self.scale.place(value))
                written = self.chart.written[i][j] if self.chart.written else short(value, 3)
                label = f"{written} ({short(value, 3)})" if self.chart.written else short(value, 4)
                about = tag("title", f"{_name(self.chart.rows, i)}, {_name(self.chart.columns, j)}: {label}")
                yield tag(
                    "rect",
                    about,
                    x=x,
                    y=float(y),
                    width=self.cell,
                    height=self.cell,
                    fill=f"#{red:02x}{green:02x}{blue:02x}",
                )
                if (self.chart.numbers or self.chart.written) and text_width(written, 11) < self.cell - 2:
                    ink = "#000" if 0.3 * red + 0.6 * green + 0.1 * blue > 120 else "#fff"
                    at = {
                        "x": x + self.cell / 2,
                        "y": y + self.cell / 2 + 4,
                        "text_anchor": "middle",
                        "style": f"fill:{ink};font-size:11px",
                    }
                    yield tag("text", written, **at)

    def _image(self) -> Markup:
        shares = [
            [self.scale.place(v) if v is not None and drawable(v) else None for v in row] for row in self.chart.values
        ]
        rows = [[*row, *[None] * (self.count - len(row))] for row in shares]
        source = "data:image/png;base64," + base64.b64encode(png(rows)).decode()
        wide, high = self.right - self.left, self.bottom - self.top
        box = {"x": self.left, "y": float(self.top), "width": wide, "height": high}
        return tag("image", href=source, preserveAspectRatio="none", style="image-rendering:pixelated", **box)

    def _names(self) -> Iterator[Markup]:
        stride = max(1, -(-13 // max(1, int(self.cell))))
        for i in range(0, min(len(self.chart.rows), self.height), stride):
            name = frame.shortened(self.chart.rows[i], self.left - 10)
            yield text(self.left - 8, self.top + (i + 0.5) * self.cell + 4, name, anchor="end", class_="strong")
        for j in range(0, min(len(self.chart.columns), self.count), stride):
            x, y = self.left + (j + 0.5) * self.cell, self.top - 7.0
            name = frame.shortened(self.chart.columns[j], self.chart.width * 0.25)
            if self.tilted:
                yield tag("text", name, x=x + 3, y=y, transform=f"rotate(-60 {x + 3:.1f} {y:.1f})", class_="strong")
            else:
                yield text(x, y, name, anchor="middle", class_="strong")

    def _key(self) -> Iterator[Markup]:
        """Draw the legend of the colour scale: a vertical bar beside the map, labelled at both ends."""
        steps, high = 24, max(60.0, min(160.0, self.bottom - self.top))
        x = self.right + 12
        for i in range(steps):
            red, green, blue = colour(1 - i / (steps - 1))
            y = self.top + high * i / steps
            yield tag(
                "rect", x=x, y=float(y), width=10, height=high / steps + 0.4, fill=f"#{red:02x}{green:02x}{blue:02x}"
            )
        yield text(x + 14, self.top + 10, short(self.scale.high))
        yield text(x + 14, self.top + high, short(self.scale.low))


def png(shares: Sequence[Sequence[float | None]]) -> bytes:
    """Encode a matrix of values from 0 to 1 as a PNG image (RFC 2083), one pixel per value.

    The colours are those of the heat map; None is transparent.
    """
    palette = b"".join(bytes(colour(i / 254)) for i in range(255)) + b"\0\0\0"
    pixels = (bytes(255 if s is None else round(min(max(s, 0.0), 1.0) * 254) for s in row) for row in shares)
    header = struct.pack(">IIBBBBB", len(shares[0]), len(shares), 8, 3, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"PLTE", palette), (b"tRNS", b"\xff" * 255 + b"\0")]
    chunks += [(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in pixels), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
