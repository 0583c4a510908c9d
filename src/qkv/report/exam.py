"""How an exam looks on a page: its figures as cards and a table, what people look at as sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.report.figures import fixed
from qkv.report.page import Page
from qkv.report.sections import add_sections

BESIDE_THE_POINT = ("loss", "perplexity", "targets", "seconds", "bits_per_token", "bits_per_byte", "bits_per_character")
"""Figures that are not what the task is judged by."""
_SHOWN = 3
_KNOWN_AS = {"f1": "F1", "bleu": "BLEU", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}

Splits = Mapping[str, Mapping[str, Any]]
"""By split ``figures``, ``sections`` and ``notes``."""


def words(figure: str) -> str:
    """The name of a figure as people read it."""
    return " ".join(_KNOWN_AS.get(word, word) for word in figure.split("_"))


def named(figure: str) -> str:
    """The name of a figure as a title."""
    return words(figure)[:1].upper() + words(figure)[1:]


def judged(splits: Splits) -> str:
    """The split whose figures count: test, if there is one."""
    return "test" if "test" in splits else next(iter(splits), "")


def headline(splits: Splits) -> list[tuple[str, str, str]]:
    """Cards for the figures that the task is judged by."""
    split = judged(splits)
    figures = splits[split]["figures"] if split else {}
    chosen = [(name, value) for name, value in figures.items() if name not in BESIDE_THE_POINT and value is not None]
    return [(named(name), fixed(value), f"on the {split} part") for name, value in chosen[:_SHOWN]]


def rows(splits: Splits) -> list[list[Any]]:
    """A row a figure: its name, then its value on each split."""
    names = list(dict.fromkeys(name for exam in splits.values() for name in exam["figures"]))
    return [[words(name), *(exam["figures"].get(name) for exam in splits.values())] for name in names]


def _parts(splits: Splits) -> str:
    return f"the {' and the '.join(splits)} part{'s' * (len(splits) > 1)}"


def add_exam(page: Page, splits: Splits, step: int) -> None:
    """The figures of all splits as a table, and the sections of the one that counts."""
    with page.section("Exam"):
        page.prose(f"The weights of step {step:,}, which had the lowest validation loss, on all of {_parts(splits)}.")
        page.table(["figure", *splits], rows(splits))
        for note in dict.fromkeys(note for exam in splits.values() for note in exam["notes"]):
            page.prose(note)
    add_sections(page, splits[judged(splits)]["sections"])


def exam_report(title: str, lead: str, splits: Splits, step: int) -> str:
    """One self-contained page about an exam alone."""
    page = Page(title)
    page.data["exam"] = {split: dict(exam["figures"]) for split, exam in splits.items()}
    page.header(lead)
    page.cards(headline(splits))
    add_exam(page, splits, step)
    return page.html()
