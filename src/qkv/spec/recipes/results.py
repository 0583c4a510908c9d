"""Specs of a recipe's results: recorded by ``qkv record``, published by others, or entered by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StringConstraints

from qkv.spec.base import Seq, Spec

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Figure(Spec):
    """Value of a metric: mean and spread over the seeds of a result."""

    mean: float
    spread: float | None = Field(default=None, description="maximum minus minimum over the seeds; omitted for one seed")
    by_seed: Seq[float] = Field(default=(), description="values in the order of the seeds; omitted for one seed")


class Result(Spec):
    """Result of a recipe's finished runs, written by ``qkv record`` only."""

    form: Literal["full", "quick"] = "full"
    recipe: Digest = Field(description="SHA-256 of the keys that affect the result; if it differs, the result is stale")
    data: Digest = Field(description="SHA-256 of the training data")
    seeds: Seq[int]
    steps: Seq[int] = Field(description="training steps, by seed")
    best_steps: Seq[int] = Field(description="step of the best weights, which the run stores, by seed")
    minutes: float = Field(
        gt=0, description="training time with validations, without final evaluation; mean over the seeds"
    )
    figures: dict[str, dict[str, Figure]] = Field(description="metrics by split and name")
    notes: Seq[str] = ()
    machine: Seq[str] = Field(description="processor, device and threads of the runs")
    versions: dict[str, str]
    date: str = Field(description="date of the last run")

    def figure(self, path: str) -> Figure | None:
        """Return the metric at a path such as ``"test.accuracy"``; None if it was not measured."""
        split, _, name = path.partition(".")
        return self.figures.get(split, {}).get(name)


class Published(Spec):
    """Published result, or result of a simpler method, to compare with."""

    value: float
    source: str
    figure: str = Field(default="", description="metric to compare it with, such as test.accuracy")


class Typed(Spec):
    """Result entered by hand: of a variant, or from before ``qkv record``."""

    metric: str
    value: float
    spread: float | None = None
    seeds: Seq[int] = ()
    minutes: float | None = None
    machine: str = ""
    date: str = ""
    note: str = ""
    figure: str = Field(default="", description="metric that replaces it once recorded, such as test.accuracy")


class Reached(NamedTuple):
    """Result of a recipe, for a row of a table.

    figures: (path, value, spread or None) of each metric.   typed: True if entered by hand, not recorded.
    """

    figures: tuple[tuple[str, float, float | None], ...]
    minutes: float | None
    seeds: tuple[int, ...]
    date: str
    typed: bool


def reached(paths: Sequence[str], result: Result | None, typed: Sequence[Typed]) -> Reached | None:
    """Collect the metrics ``paths`` from the full form's ``result``, else from ``typed``; None without any."""
    result = result if result and result.form == "full" else None
    by_hand = {entry.figure: entry for entry in typed if entry.figure}
    metrics: list[tuple[str, float, float | None]] = []
    for path in paths:
        figure = result.figure(path) if result else None
        if figure:
            metrics.append((path, figure.mean, figure.spread))
        elif path in by_hand:
            metrics.append((path, by_hand[path].value, by_hand[path].spread))
    if result:
        return Reached(tuple(metrics), result.minutes, tuple(result.seeds), result.date, typed=False)
    first = next(iter(by_hand.values()), None)
    return first and Reached(tuple(metrics), first.minutes, tuple(first.seeds), first.date, typed=True)
