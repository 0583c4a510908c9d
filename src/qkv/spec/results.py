"""Figures beside a recipe: what ``qkv record`` wrote of its runs, what others published, and what was typed by hand."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Field, StringConstraints

from qkv.spec.base import Seq, Spec

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Figure(Spec):
    """One figure over the seeds of a result."""

    mean: float
    spread: float | None = Field(default=None, description="largest minus smallest over the seeds; left out for one seed")
    by_seed: Seq[float] = Field(default=(), description="in the order of the seeds; left out for one seed")


class Result(Spec):
    """Result of finished runs of a recipe. Written by ``qkv record``, never typed."""

    form: Literal["full", "quick"] = "full"
    recipe: Digest = Field(description="SHA-256 of what decides the figures; another one in the file makes the result stale")
    data: Digest = Field(description="SHA-256 of the data that was trained on")
    seeds: Seq[int]
    steps: Seq[int] = Field(description="updates, by seed")
    best_steps: Seq[int] = Field(description="the update after which the weights were kept, by seed")
    minutes: float = Field(gt=0, description="of training, validations included, the exam not; mean over the seeds")
    figures: dict[str, dict[str, Figure]] = Field(description="by split and name")
    notes: Seq[str] = ()
    machine: Seq[str] = Field(description="processor, device and threads of the runs")
    versions: dict[str, str]
    date: str = Field(description="of the last run")

    def figure(self, path: str) -> Figure | None:
        """The figure ``"test.accuracy"``; None if it was not measured."""
        split, _, name = path.partition(".")
        return self.figures.get(split, {}).get(name)


class Published(Spec):
    """A figure of others, or of a simpler method, to compare with."""

    value: float
    source: str
    figure: str = Field(default="", description="what it stands beside, such as test.accuracy")


class Typed(Spec):
    """A figure that was typed by hand: of a variant, or from before ``qkv record``."""

    metric: str
    value: float
    spread: float | None = None
    seeds: Seq[int] = ()
    minutes: float | None = None
    machine: str = ""
    date: str = ""
    note: str = ""
    figure: str = Field(default="", description="the figure of a result that takes its place once recorded, such as test.accuracy")


def with_present_names(data: Any) -> Any:
    """A recipe's plain data with the key ``results`` of earlier versions as ``typed`` and ``published``."""
    if not isinstance(data, dict) or "results" not in data or "typed" in data:
        return cast("Any", data)
    fields = dict(cast("dict[str, Any]", data))
    entries: Any = fields.pop("results")
    if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, dict) for entry in cast("list[Any]", entries)):
        return cast("Any", data)
    known = [dict(entry) for entry in cast("list[dict[str, Any]]", entries)]
    beside = [(entry.pop("published", None), entry.pop("source", "")) for entry in known]
    published = [{"value": value, "source": source} for value, source in beside if value is not None]
    return {**fields, "typed": known, "published": [*fields.get("published", ()), *published]}
