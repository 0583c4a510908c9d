"""Page of particles on the sphere, and of a model's hidden states over depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qkv.report.charts.chart import LineChart
from qkv.report.charts.scatter import Group, ScatterPlot
from qkv.report.charts.series import Line
from qkv.report.page import Page

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class ParticlesPage:
    """Values of the page.

    sets: first two coordinates of the particles, by time.   energy, clusters: by time.   depth: mean cosine of two
    positions at each depth of a model, by variant; empty without a model.
    """

    title: str
    about: str
    times: Sequence[float]
    energy: Sequence[float]
    clusters: Sequence[float]
    sets: Mapping[float, Points]
    depth: Mapping[str, Sequence[float]] = field(default_factory=dict[str, "Sequence[float]"])

    def html(self) -> str:
        """Return the HTML source of the page."""
        page = Page(self.title)
        page.header(self.about)
        with page.section("Particles"):
            page.charts(
                [
                    ScatterPlot(f"time {time:g}", [Group("particles", points)], 320, 320)
                    for time, points in self.sets.items()
                ]
            )
            page.charts(
                [
                    LineChart("clusters", [Line("clusters", self.times, self.clusters)], "time", width=460, height=280),
                    LineChart("energy", [Line("energy", self.times, self.energy)], "time", width=460, height=280),
                ]
            )
        if self.depth:
            with page.section("Hidden states of the model"):
                page.prose(
                    "Mean cosine of the vectors of two positions along the residual stream: 1 if all tokens are one. "
                    "Without residuals, attention alone contracts the tokens; residuals and feed-forward branches "
                    "counteract it."
                )
                lines = [Line(name, range(len(values)), values) for name, values in self.depth.items()]
                page.chart(LineChart("mean cosine of two positions", lines, "point of the residual stream"))
        return page.html()
