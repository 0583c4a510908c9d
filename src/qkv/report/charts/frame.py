"""Functions that all charts use: the SVG element, text widths, label spacing."""

from __future__ import annotations

import unicodedata
from functools import cache
from importlib.resources import files

from qkv.report.markup import Markup, join, tag

COLOURS = 6
"""Number of series colours of the theme; further series reuse them with dashes."""


@cache
def asset(name: str) -> str:
    """Read a style sheet or script from the folder of ``qkv.report``."""
    return files("qkv.report").joinpath(name).read_text(encoding="utf-8")


def svg(
    size: tuple[float, float], title: str, description: str, body: Markup, standalone: bool, **data: object
) -> Markup:
    """Build the SVG element of ``size`` (width, height) around the drawn ``body``; it scales to its container.

    ``standalone``: include the style sheet. ``data``: further attributes. The ARIA label holds title and description
    (with the values), since many screen readers ignore ``desc``.
    """
    width, height = size
    style = tag("style", Markup(asset("theme.css"))) if standalone else None
    paper = tag("rect", width=width, height=height, rx=8, style="fill:var(--paper)") if standalone else None
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        style,
        paper,
        body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        class_="chart",
        role="img",
        aria_label=f"{title}. {description}",
        **data,
    )


def text(x: float, y: float, *content: object, anchor: str | None = None, class_: str | None = None) -> Markup:
    """Build an SVG text element with its baseline at (x, y).

    ``anchor``: part of the text that is placed at x, ``middle`` or ``end``; default: its start.
    """
    return tag("text", *content, x=float(x), y=float(y), text_anchor=anchor, class_=class_)


def heading(title: str, unit: str = "") -> Markup:
    """Build the SVG text with a chart's title and, smaller, its unit."""
    beside = tag("tspan", unit, dx=8, style="font-weight:400;font-size:12px;fill:var(--muted)") if unit else None
    return text(0, 15, title, beside, class_="title")


def text_width(words: str, size: float = 12) -> float:
    """Estimate the width in pixels of ``words`` in a sans-serif font of ``size`` pixels; tends to overestimate."""
    return size * sum(_em(character) for character in words)


def _em(character: str) -> float:
    if character in "iljtfrI.,:;|!'()[] ":
        return 0.36
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    return 0.92 if character in "mwMW@%" else 0.72 if character.isupper() else 0.6


def apart(places: list[float], distance: float, low: float, high: float) -> list[float]:
    """Move the positions ``places`` of labels (pixels, ascending) as little as needed to be ``distance`` apart and, if
    possible, inside [low, high].
    """
    moved = list(places)
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + distance)
    top = high
    for i in reversed(range(len(moved))):
        moved[i] = max(low + i * distance, min(moved[i], top))
        top = moved[i] - distance
    return moved


def shortened(words: str, width: float, size: float = 12) -> str:
    """Truncate ``words`` with … to fit ``width`` pixels at font size ``size``."""
    if text_width(words, size) <= width:
        return words
    while words and text_width(words + "…", size) > width:
        words = words[:-1]
    return words.rstrip() + "…"


def stroke_class(series: int) -> str:
    """Return the CSS classes for the colour and dash pattern of the line with index ``series``."""
    dash = series // COLOURS % 3
    return f"s{series % COLOURS}" + (f" d{dash}" if dash else "")


def lines(pieces: list[Markup]) -> Markup:
    """Join markup pieces with line breaks, so that the SVG source is readable."""
    return join(Markup(piece + "\n") for piece in pieces)
