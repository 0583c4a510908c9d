"""Page of the equations of one forward pass, each with its own numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from qkv.report.figures import plain
from qkv.report.page import Page


@dataclass(frozen=True)
class EquationStep:
    """One equation of a forward pass, with the numbers of one position.

    place: part of the model, such as "layer 0 · attention".   formula: the equation.   lines: its values, one name and
    text each.   columns, rows: values over tokens, empty if there are none.   note: what is left out of them.
    error: largest difference between the result, computed again from the values above it, and the model's own.
    layer: number of the layer; None before and after the layers.   head: number of the head; None for other steps.
    """

    place: str
    title: str
    formula: str
    lines: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    note: str = ""
    error: float = 0.0
    layer: int | None = None
    head: int | None = None


def equations_page(
    title: str,
    tokens: Sequence[str],
    position: int,
    steps: Sequence[EquationStep],
    answers: Sequence[tuple[str, float]],
) -> Page:
    """Build the page: a section for each part of the model, in the order of computation, and a block for each step."""
    page = Page(title)
    page.header(f"{' '.join(tokens)} — the numbers of token {position}, {tokens[position]}.")
    page.cards([(label, f"{chance:.3f}", "probability") for label, chance in answers])
    page.prose(
        "Every number is read from the model at the place of its equation, and rounded. Vectors of more features are "
        "shown by their first ones."
    )
    for place, group in groupby(steps, key=lambda step: step.place):
        with page.section(place):
            for step in group:
                _add(page, step)
    return page


def _add(page: Page, step: EquationStep) -> None:
    first = step.layer in (None, 0) and step.head in (None, 0)
    with page.details(step.title, step.formula, open_=first):
        page.code(step.formula)
        if step.lines:
            page.table([], step.lines)
        if step.rows:
            page.table(step.columns, step.rows)
        if step.note:
            page.prose(step.note)


def equation_lines(
    steps: Sequence[EquationStep], every: bool
) -> Iterator[str | tuple[Sequence[str], Sequence[Sequence[object]]]]:
    """Yield the lines and tables of a terminal: texts, and (columns, rows).

    every: all steps; otherwise after the first layer only the residuals, and of several heads the first.
    """
    before = ""
    for step in steps:
        hidden = (step.layer not in (None, 0) and step.title != "residual") or step.head not in (None, 0)
        if hidden and not every:
            continue
        if step.place != before:
            yield f"\n{step.place}"
        before = step.place
        yield f"  {step.title}:  {step.formula}"
        yield from (f"    {name:<14} {text}" for name, text in step.lines)
        if step.rows:
            yield step.columns, step.rows
        if step.note:
            yield f"    ({step.note})"


def error_sentence(error: float) -> str:
    """Return the sentence on the largest difference between a result computed again and the model's own."""
    return f"every result was computed again from the values above it; the largest difference is {plain(error, 2)}"
