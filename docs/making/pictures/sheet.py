"""Common parts of the pictures: sizes, boxes, arrows and lines of text, in the theme of the reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qkv.report.charts import frame
from qkv.report.markup import Markup, tag

WIDE, NARROW = 736, 350
"""Width of a picture on a page and on a phone, in CSS pixels."""
MONOSPACED = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
EM = 0.605
"""Width of a monospaced character relative to its height."""


@dataclass(frozen=True)
class Picture:
    """An SVG picture; ``description`` is its text alternative for screen readers."""

    title: str
    description: str
    size: tuple[float, float]
    pieces: Sequence[Markup]

    def svg(self) -> str:
        """SVG file with a style of its own, light and dark."""
        width, height = self.size
        inside = tag("g", frame.lines(list(self.pieces)), transform="translate(12 10)")
        return frame.svg((width + 24, height + 20), self.title, self.description, inside, standalone=True) + "\n"


def heading(words: str, x: float = 0, y: float = 15) -> Markup:
    """Title of a picture or of a panel."""
    return frame.text(x, y, words, class_="title")


def written(
    x: float, y: float, words: object, size: float = 12, anchor: str | None = None, ink: str = "ink", bold: bool = False
) -> Markup:
    """Text in the ink, muted or accent colour of the theme."""
    style = f"fill:var(--{ink});font-size:{size:g}px" + (";font-weight:600" if bold else "")
    return tag("text", words, x=float(x), y=float(y), text_anchor=anchor, style=style)


def code(x: float, y: float, words: object, size: float = 11, anchor: str | None = None, ink: str = "ink") -> Markup:
    """Monospaced text; its spaces are kept."""
    style = f"{MONOSPACED};fill:var(--{ink});font-size:{size:g}px;white-space:pre"
    return tag("text", words, x=float(x), y=float(y), text_anchor=anchor, style=style)


def box(x: float, y: float, width: float, height: float, colour: str = "hairline", fill: str = "panel") -> Markup:
    """Rounded box."""
    style = f"fill:var(--{fill});stroke:var(--{colour});stroke-width:1.25"
    return tag("rect", x=float(x), y=float(y), width=float(width), height=float(height), rx=6, style=style)


def line(points: Iterable[tuple[float, float]], arrow: bool = True, colour: str = "muted") -> Markup:
    """Line through ``points``, with an arrow head at its end."""
    places = list(points)
    path = "M" + "L".join(f"{x:g},{y:g}" for x, y in places)
    if arrow:
        (x0, y0), (x1, y1) = places[-2:]
        length = max(abs(x1 - x0), abs(y1 - y0)) or 1
        dx, dy = (x1 - x0) / length * 5, (y1 - y0) / length * 5
        path += f"M{x1 - dx - dy:g},{y1 - dy + dx:g}L{x1:g},{y1:g}L{x1 - dx + dy:g},{y1 - dy - dx:g}"
    return tag("path", d=path, style=f"fill:none;stroke:var(--{colour});stroke-width:1.5;stroke-linejoin:round")


def wrapped(words: str, width: float, size: float = 12) -> list[str]:
    """``words`` broken into lines of at most ``width`` pixels."""
    lines: list[str] = []
    for word in words.split():
        if lines and frame.text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
