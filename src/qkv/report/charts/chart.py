"""Line charts as plain SVG, legible in light and dark mode, in print, with screen readers and with colour blindness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from qkv.report.charts import frame
from qkv.report.charts.frame import stroke_class, text, text_width
from qkv.report.charts.scale import AxisScale, drawable, labels
from qkv.report.charts.series import Line, Trace, runs, traces
from qkv.report.figures import fixed, place, short
from qkv.report.markup import Markup, join, number, tag

_COMPACT = 480
"""Width in pixels below which charts have a legend instead of labels at the line ends."""


@dataclass(frozen=True)
class LineChart:
    """Line chart: several lines over common axes.

    ``x_log`` and ``y_log``: logarithmic axes; ``y_zero``: start the vertical axis at 0. ``events``: (x, label), drawn
    as dotted vertical lines. ``width`` and ``height`` are in CSS pixels at full size; the SVG scales to its container.
    """

    title: str
    lines: Sequence[Line]
    x_label: str = ""
    y_label: str = ""
    x_log: bool = False
    y_log: bool = False
    y_zero: bool = False
    events: Sequence[tuple[float, str]] = ()
    description: str = ""
    width: int = 960
    height: int = 360

    def svg(self, standalone: bool = True) -> str:
        """Return the SVG of the chart.

        ``standalone``: include its style sheet; otherwise, the surrounding page must include ``theme.css``.
        """
        return _Drawing(self).svg(standalone)

    def _repr_svg_(self) -> str:
        """SVG for notebooks."""
        return self.svg()

    def compact(self) -> LineChart | None:
        """Return a smaller variant of the chart for narrow screens; None if it is small already."""
        return replace(self, width=360, height=270) if self.width >= _COMPACT else None

    @cached_property
    def traces(self) -> list[Trace]:
        """Series of points to draw, downsampled to the chart's width."""
        return [trace for i, line in enumerate(self.lines) for trace in traces(line, i, 2 * self.width, self.x_log)]

    def data(self) -> dict[str, Any]:
        """Return titles and drawn points as plain data, to embed in the page for its tooltips."""
        lines = [
            {
                "name": t.name,
                "colour": t.colour,
                "x": [_digits(x, 9) for x, _ in t.points],
                "y": [_digits(y, 5) for _, y in t.points],
            }
            for t in self.traces
        ]
        return {"title": self.title, "x": self.x_label, "y": self.y_label, "lines": lines}


def _digits(value: float, digits: int) -> float:
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


class _Drawing:
    """Layout of one line chart: scales, margins and SVG elements."""

    def __init__(self, chart: LineChart) -> None:
        self.chart = chart
        self.traces = chart.traces
        self.x = _from_zero(AxisScale.over((x for t in self.traces for x, _ in t.points), chart.x_log))
        self.y = AxisScale.over((y for t in self.traces for _, y in t.points), chart.y_log, pad=0.05, zero=chart.y_zero)
        self.y_ticks = self.y.ticks(max(3, chart.height // 50))
        self.y_labels = labels(self.y_ticks, self.y.log)
        self.ends = self._ends()
        self.legend = len(self.ends) > 0 and len(chart.lines) > 1 and not self._names_fit()
        names = [] if self.legend else [self._end_label(trace) for trace, _ in self.ends]
        self.left = max(text_width(label) for label in self.y_labels) + 10
        self.right = chart.width - max([14.0, *(text_width(name) * 1.08 + 14 for name in names)])
        self.top = 52 + 18 * self._legend_places()[-1][1] if self.legend else 32
        self.bottom = chart.height - (36 if chart.x_label else 22)

    def px(self, x: float) -> float:
        return self.left + self.x.place(x) * (self.right - self.left)

    def py(self, y: float) -> float:
        return self.bottom - self.y.place(y) * (self.bottom - self.top)

    def svg(self, standalone: bool) -> str:
        chart = self.chart
        body = [frame.heading(chart.title, chart.y_label), *self._axes(), *self._events()]
        empty = not any(drawable(y, self.y.log) for t in self.traces for _, y in t.points)
        body += [self._nothing()] if empty else [self._stroke(t) for t in self.traces]
        body += [*self._gaps(), *(self._legend() if self.legend else self._names())]
        plot = " ".join(number(v) for v in (self.left, self.top, self.right - self.left, self.bottom - self.top))
        size = (chart.width, chart.height)
        axes = {"data_x": _axis_text(self.x), "data_y": _axis_text(self.y)}
        return frame.svg(size, chart.title, self._description(), frame.lines(body), standalone, data_plot=plot, **axes)

    def _description(self) -> str:
        """Build the text alternative of the chart: first, last, lowest and highest value of each line."""
        sentences = [self.chart.description] if self.chart.description else []
        for trace in self.traces:
            values = [y for _, y in trace.points if drawable(y)]
            if values and not trace.faint:
                first, last = fixed(values[0]), fixed(values[-1])
                sentences.append(
                    f"{trace.name}: from {first} to {last}, lowest {fixed(min(values))}, highest {fixed(max(values))}."
                )
        return " ".join(sentences) or "No values yet."

    def _nothing(self) -> Markup:
        return text((self.left + self.right) / 2, (self.top + self.bottom) / 2, "no values yet", anchor="middle")

    def _axes(self) -> Iterator[Markup]:
        for tick, label in zip(self.y_ticks, self.y_labels, strict=True):
            y = self.py(tick)
            yield tag("line", x1=self.left, x2=self.right, y1=y, y2=y, class_="grid")
            yield text(self.left - 8, y + 4, label, anchor="end")
        yield tag("line", x1=self.left, x2=self.right, y1=float(self.bottom), y2=float(self.bottom), class_="axis")
        ticks = self.x.ticks(max(2, int((self.right - self.left) / 95)))
        for tick, label in zip(ticks, labels(ticks, self.x.log), strict=True):
            x, half = self.px(tick), text_width(label) / 2
            yield tag("line", x1=x, x2=x, y1=float(self.bottom), y2=self.bottom + 4.0, class_="axis")
            yield text(min(x, self.chart.width - half), self.bottom + 17, label, anchor="middle")
        if self.chart.x_label:
            yield text(self.right, self.bottom + 33, self.chart.x_label, anchor="end")

    def _events(self) -> Iterator[Markup]:
        free = self.left
        for x, words in sorted(self.chart.events):
            if not drawable(x, self.x.log) or not self.x.low <= x <= self.x.high:
                continue
            at = self.px(x)
            about = tag("title", f"{words} ({self.chart.x_label} {place(x)})".replace("( ", "("))
            yield tag("line", about, x1=at, x2=at, y1=float(self.top), y2=float(self.bottom), class_="event")
            wide = text_width(words, 11)
            if at >= free and at + wide + 4 <= self.chart.width:
                yield text(at + 4, self.top + 10, words, class_="note")
                free = at + wide + 12

    def _stroke(self, trace: Trace) -> Markup:
        drawn = [run for fits, run in runs(trace.points, self.y.log) if fits]
        path = "".join(
            "M" + " ".join(f"{number(self.px(x))},{number(self.py(y))}" for x, y in run)
            for run in drawn
            if len(run) > 1
        )
        style = stroke_class(trace.colour)
        stroke = tag("path", d=path, class_=f"line {style}" + (" faint" if trace.faint else "")) if path else None
        dots = [point for run in drawn for point in run if len(run) == 1 or (trace.marked and len(trace.points) <= 60)]
        return join([stroke, *(self._dot(trace, x, y) for x, y in dots)])

    def _dot(self, trace: Trace, x: float, y: float) -> Markup:
        about = tag("title", f"{trace.name}: {fixed(y)} at {self.chart.x_label} {place(x)}")
        return tag(
            "circle", about, cx=self.px(x), cy=self.py(y), r=3.5, class_=f"point s{trace.colour % frame.COLOURS}"
        )

    def _gaps(self) -> Iterator[Markup]:
        """Draw vertical bands at values that cannot be drawn (NaN, infinite, or not positive on a logarithmic axis)."""
        bands = [(run[0], run[-1], t.name) for t in self.traces for fits, run in runs(t.points, self.y.log) if not fits]
        covered = float("-inf")
        for (x, y), (end, _), name in sorted(bands, key=lambda band: band[0][0]):
            start, width = self.px(x) - 1.5, self.px(end) - self.px(x) + 3
            if start < covered + 4:
                continue
            covered = start + width
            what = "≤ 0" if drawable(y) else fixed(y)
            until = f" to {place(end)}" if end > x else ""
            about = tag("title", f"{name}: {what} at {self.chart.x_label} {place(x)}{until}")
            yield tag(
                "rect",
                about,
                x=start,
                y=float(self.top),
                width=width,
                height=float(self.bottom - self.top),
                class_="gap",
            )
            at_end = covered + 4 + text_width(what) > self.right
            yield text(
                start - 4 if at_end else covered + 4,
                self.bottom - 6,
                what,
                anchor="end" if at_end else None,
                class_="gap-mark",
            )

    def _ends(self) -> list[tuple[Trace, tuple[float, float]]]:
        """Return (trace, last drawable point) of each line, from top to bottom, without the faint raw values behind a
        running mean.
        """
        ends = []
        for trace in self.traces:
            drawn = [point for point in trace.points if drawable(point[1], self.y.log)]
            if drawn and not trace.faint:
                ends.append((trace, drawn[-1]))
        return sorted(ends, key=lambda end: -end[1][1])

    def _line_name(self, trace: Trace) -> str:
        return self.chart.lines[trace.colour].name

    def _end_label(self, trace: Trace) -> str:
        value = next(end[1] for t, end in self.ends if t is trace)
        return f"{self._line_name(trace)} {fixed(value)}" if len(self.chart.lines) > 1 else short(value)

    def _names_fit(self) -> bool:
        """Return True if the names fit beside the line ends; otherwise, the chart gets a legend.

        They fit if the margin is wide enough and every line ends near the right edge.
        """
        if self.chart.width < _COMPACT or len(self.ends) * 16 > self.chart.height - 70:
            return False
        return all(
            self.x.place(end[0]) > 0.9 and text_width(self._end_label(trace)) < self.chart.width / 4
            for trace, end in self.ends
        )

    def _names(self) -> Iterator[Markup]:
        places = frame.apart([self.py(end[1]) + 4 for _, end in self.ends], 16, self.top + 4, self.bottom + 4)
        for (trace, _), y in zip(self.ends, places, strict=True):
            label = frame.shortened(self._end_label(trace), self.chart.width / 3)
            yield text(self.right + 9, y, label, class_=f"name s{trace.colour % frame.COLOURS}")

    def _legend_places(self) -> list[tuple[float, int, Trace, str]]:
        """Lay out the legend: return (x in pixels, row, trace, label) of each entry."""
        x, row, places = 0.0, 0, []
        for trace, _ in sorted(self.ends, key=lambda end: end[0].colour):
            label = frame.shortened(self._end_label(trace), self.chart.width - 24)
            if x and x + text_width(label) + 19 > self.chart.width:
                x, row = 0.0, row + 1
            places.append((x, row, trace, label))
            x += text_width(label) + 36
        return places

    def _legend(self) -> Iterator[Markup]:
        for x, row, trace, label in self._legend_places():
            yield tag("path", d=f"M{number(x)},{33 + 18 * row}h14", class_=f"line {stroke_class(trace.colour)}")
            yield text(x + 19, 37 + 18 * row, label, class_="strong")


def _from_zero(scale: AxisScale) -> AxisScale:
    """Extend an axis that starts just above 0, such as an axis of steps, to 0; return other axes unchanged."""
    return AxisScale(0.0, scale.high) if not scale.log and 0 < scale.low < 0.05 * scale.high else scale


def _axis_text(scale: AxisScale) -> str:
    return f"{'log' if scale.log else 'linear'} {scale.low!r} {scale.high!r}"
