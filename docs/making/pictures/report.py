"""Tour of a report: the page of a real run, redrawn in one picture with its parts numbered.

The picture shows what the page holds: headings, cards, charts, text and tables are taken from its HTML.
"""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from importlib import resources
from pathlib import Path

import qkv
from making.pictures.sheet import EM, NARROW, WIDE, Picture, box, code, heading, wrapped, written
from qkv.report.charts.frame import text_width
from qkv.report.markup import Markup, tag

SHORT = (
    "description=A short run on the language reference that comes with Python.",
    "data.tokenizer=characters",
    "model.width=64",
    "model.num_layers=2",
    "model.context_length=64",
    "model.blocks.0.branches.0.num_heads=2",
    "training.steps=150",
    "training.minutes=null",
    "training.schedule.warmup=10",
    "training.validation.every=30",
    "sample.max_new_tokens=160",
)
"""Changes of the recipe of ``qkv demo``: a run of some seconds."""
TAGS = re.compile(r"<[^>]*>")
LEFT = 30
"""Margin for the numbers."""


def train(folder: Path) -> Path:
    """Train the run in ``folder`` and return its report."""
    with resources.as_file(resources.files("qkv.cli") / "demo.yaml") as path, contextlib.redirect_stderr(io.StringIO()):
        run = qkv.train(qkv.read_recipe(path, list(SHORT)), out=folder)
    return Path(run.folder) / "report.html"


def _all(pattern: str, html: str) -> list[str]:
    return re.findall(pattern, html, re.DOTALL)


def _plain(html: str) -> str:
    return unescape(TAGS.sub("", html))


def headings(html: str) -> list[str]:
    """Headings of the report's sections."""
    return [_plain(found) for found in _all("<h2>(.*?)</h2>", html)]


def _section(html: str, name: str) -> str:
    return (_all(f"<section><h2>{name}</h2>(.*?)</section>", html) or [""])[0]


@dataclass
class Sheet:
    """Drawing of a report from top to bottom: ``pieces`` so far, ``y`` below them, names of the numbered parts."""

    width: float
    pieces: list[Markup] = field(default_factory=list)
    y: float = 0
    parts: list[str] = field(default_factory=list)

    def add(self, height: float, *pieces: Markup) -> None:
        """Add pieces that take ``height``."""
        self.pieces += pieces
        self.y += height

    def part(self, name: str) -> None:
        """Number of a part, in the margin."""
        self.parts.append(name)
        middle = {"cx": 10.0, "cy": self.y + 11}
        self.pieces += [
            tag("circle", r=10.0, style="fill:var(--accent)", **middle),
            tag(
                "text",
                str(len(self.parts)),
                x=10.0,
                y=self.y + 15,
                text_anchor="middle",
                style="fill:var(--paper);font-weight:600",
            ),
        ]

    def titled(self, name: str) -> None:
        """Numbered part with its heading."""
        self.part(name)
        self.add(30, written(LEFT, self.y + 16, name, 16, bold=True))

    @property
    def room(self) -> float:
        """Width beside the margin."""
        return self.width - LEFT

    def header(self, html: str) -> None:
        """Title, status and description."""
        self.part("Header")
        title, pill = (
            _plain(_all(pattern, html)[0]) for pattern in ("<h1>(.*?)</h1>", '<span class="pill[^"]*">(.*?)</span>')
        )
        end = LEFT + text_width(title, 20) + 14
        self.add(
            34,
            written(LEFT, self.y + 18, title, 20, bold=True),
            written(end, self.y + 17, pill, 12, ink="good", bold=True),
        )
        for words in wrapped(_plain(_all("</div><p>(.*?)</p></header>", html)[0]), self.room):
            self.add(17, written(LEFT, self.y + 4, words, ink="muted"))
        self.y += 8

    def cards(self, html: str) -> None:
        """Cards of the main figures."""
        self.part("Main figures")
        across = 2 if self.width <= NARROW else 4
        pitch = (self.room + 8) / across
        found = _all(r'<div class="card"><dt>(.*?)</dt><dd class="value">(.*?)</dd><dd class="beside">(.*?)</dd>', html)
        for n, (name, value, beside) in enumerate(found):
            x, y = LEFT + pitch * (n % across), self.y + 66 * (n // across)
            self.pieces += [
                box(x, y, pitch - 8, 58, fill="panel"),
                written(x + 8, y + 16, _plain(name), 11, ink="muted"),
                written(x + 8, y + 35, _plain(value), 16, bold=True),
                written(x + 8, y + 50, _plain(beside), 10, ink="muted"),
            ]
        self.y += 66 * -(-len(found) // across) + 10

    def charts(self, html: str) -> None:
        """Loss over the whole width, the other charts side by side."""
        section, narrow = _section(html, "Learning curves"), self.width <= NARROW
        self.titled("Learning curves")
        first = _all(rf'<div class="{"narrow" if narrow else "wide"}">(<svg.*?</svg>)', section)[0]
        self.add(*self._chart(first, LEFT, self.y, self.room))
        across = 1 if narrow else 2
        pitch = (self.room + 16) / across
        small = _all(r"<figure data-chart=\"\d+\">(<svg.*?</svg>)", section)[: 1 if narrow else 2]
        drawn = [self._chart(svg, LEFT + pitch * i, self.y + 8, pitch - 16) for i, svg in enumerate(small)]
        self.part("Learning rate, gradient norm, speed")
        self.add(max(height for height, _ in drawn) + 16, *(piece for _, piece in drawn))

    def _chart(self, svg: str, x: float, y: float, width: float) -> tuple[float, Markup]:
        """Height and markup of a chart of the page, placed and scaled."""
        wide, high = (float(size) for size in _all('viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg)[0:1][0])
        inside = re.sub(
            r"<title>.*?</title>|<desc>.*?</desc>", "", svg[svg.index(">") + 1 : -len("</svg>")], flags=re.DOTALL
        )
        height = high * width / wide
        place = {"x": float(x), "y": float(y), "width": float(width), "height": float(height)}
        return height + 8, tag("svg", Markup(inside), viewBox=f"0 0 {wide:g} {high:g}", class_="chart", **place)

    def sample(self, html: str) -> None:
        """Generated text."""
        self.titled("Generated text")
        text = _plain(_all('<div class="sample">(.*?)</div>', _section(html, "Generated text"))[0])
        count = int((self.room - 20) / (11 * EM))
        lines = [piece for words in text.strip().split("\n") for piece in textwrap.wrap(words, count) or [""]][:6]
        self.pieces.append(box(LEFT, self.y, self.room, 15 * len(lines) + 16))
        self.pieces += [code(LEFT + 10, self.y + 20 + 15 * i, words) for i, words in enumerate(lines)]
        self.y += 15 * len(lines) + 30

    def table(self, html: str, name: str) -> None:
        """Table of two columns."""
        self.titled(name)
        for cells in _all("<tr><td>(.*?)</td><td[^>]*>(.*?)</td></tr>", _section(html, name))[:6]:
            left, right = map(_plain, cells)
            self.add(
                18,
                written(LEFT, self.y + 10, left, ink="muted"),
                written(LEFT + self.room, self.y + 10, right, anchor="end"),
            )
        self.y += 14

    def commands(self, html: str) -> None:
        """Commands to use the run."""
        self.titled("Next steps")
        text = _plain(_all("<pre><code>(.*?)</code></pre>", _section(html, "Next steps"))[0])
        for words in text.splitlines():
            self.add(16, code(LEFT, self.y + 10, words, ink="muted" if words.startswith("#") else "ink"))
        self.y += 14

    def others(self, html: str) -> None:
        """Headings of the sections that remain."""
        rest = [name for name in headings(html) if name not in self.parts]
        self.part(", ".join(rest))
        for name in rest:
            self.add(24, heading(name, LEFT, self.y + 16))


def drawn(html: str, width: int) -> Picture:
    """Picture of a report ``width`` pixels wide."""
    sheet = Sheet(width)
    sheet.header(html)
    sheet.cards(html)
    sheet.charts(html)
    sheet.sample(html)
    sheet.table(html, "Cost")
    sheet.commands(html)
    sheet.others(html)
    told = " ".join(f"{n}: {name}." for n, name in enumerate(sheet.parts, 1))
    return Picture("Report of a run", f"Parts from top to bottom. {told}", (width, sheet.y + 4), sheet.pieces)


def pictures(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, content) of the pictures and of the report itself; ``folder``: where the run is trained."""
    html = train(folder / "demo").read_text(encoding="utf-8").replace(str(folder / "demo"), "runs/demo")
    yield "report.svg", drawn(html, WIDE).svg()
    yield "report.narrow.svg", drawn(html, NARROW).svg()
    yield "report-example.html", html
