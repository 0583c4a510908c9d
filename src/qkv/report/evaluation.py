"""Evaluation results on a report page: metrics as cards and as a table, details as sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.report.figures import fixed
from qkv.report.page import Page
from qkv.report.sections import add_sections

BESIDE_THE_POINT = ("loss", "perplexity", "targets", "seconds", "bits_per_token", "bits_per_byte", "bits_per_character")
BESIDE_THE_POINT += ("unknown_tokens",)
"""Metrics that are not among the main metrics of a task: losses, counts and times."""
_SHOWN = 3
_KNOWN_AS = {
    "f1": "F1",
    "bleu": "BLEU",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "ngrams": "n-grams",
    "auc": "AUC",
    "wer": "WER",
    "cer": "CER",
}

ERRORS = frozenset({"loss", "perplexity", "rmse", "mae", "bits_per_token", "bits_per_character", "bits_per_byte"}) | {
    "unknown_tokens",
    "calibration_error",
    "mse",
    "crps",
    "rmse_in_units",
    "mae_in_units",
    "calibration_error_before",
    "wer",
    "cer",
    "wer_normalised",
    "cer_normalised",
    "token_error",
}
"""Metrics for which lower is better."""

OF_A_RUN = frozenset({"contestants", "heats"})
"""Kinds of sections that describe the whole run: they are measured on the validation split, but shown with the details
of any split.
"""

Splits = Mapping[str, Mapping[str, Any]]
"""Evaluation results by split; each has ``figures`` (metrics by name), ``sections`` (details for the report) and
``notes``.
"""


def words(figure: str) -> str:
    """Return the display name of the metric ``figure``: "rouge1" becomes "ROUGE-1", "exact_match" "exact match"."""
    return " ".join(_KNOWN_AS.get(word, word) for word in figure.split("_"))


def named(figure: str) -> str:
    """Return the display name of the metric ``figure``, capitalised for a title."""
    return words(figure)[:1].upper() + words(figure)[1:]


def judged(splits: Splits) -> str:
    """Return the name of the split whose metrics are shown first: test if present, else the first split; "" without
    splits.
    """
    return "test" if "test" in splits else next(iter(splits), "")


def headline(splits: Splits) -> list[tuple[str, str, str]]:
    """Return cards (title, value, note) of the task's main metrics; the note gives the values on the other splits."""
    split = judged(splits)
    figures = splits[split]["figures"] if split else {}
    chosen = [(name, value) for name, value in figures.items() if name not in BESIDE_THE_POINT and value is not None]
    return [
        (f"{named(name)}, {split}", fixed(value), _elsewhere(splits, split, name)) for name, value in chosen[:_SHOWN]
    ]


def _elsewhere(splits: Splits, split: str, name: str) -> str:
    """Format the values of the metric ``name`` on all splits except ``split``."""
    values = [(other, evaluation["figures"].get(name)) for other, evaluation in splits.items() if other != split]
    return ", ".join(f"{other} {fixed(value)}" for other, value in values if value is not None)


def chosen_by(figure: str) -> str:
    """Describe in words which value of the metric ``figure`` selected the best weights, such as "lowest validation
    loss".
    """
    return f"{'lowest' if figure in ERRORS else 'highest'} validation {words(figure)}"


def rows(splits: Splits) -> list[list[Any]]:
    """Build the table of all metrics: one row per metric, with its display name and its value on each split."""
    names = list(dict.fromkeys(name for evaluation in splits.values() for name in evaluation["figures"]))
    return [[words(name), *(evaluation["figures"].get(name) for evaluation in splits.values())] for name in names]


def _parts(splits: Splits) -> str:
    return f"the {' and the '.join(splits)} split{'s' * (len(splits) > 1)}"


def add_evaluation(page: Page, splits: Splits, step: int, best: str = "") -> None:
    """Add evaluation results to a report page.

    They are a table of the metrics on all splits, sections on the whole run, and the detail sections of one split.
    ``step``: training step of the evaluated weights; ``best``: metric that selected these weights, "" for none.
    """
    which = f", which had the {chosen_by(best)}," if best else ""
    with page.section("Evaluation"):
        page.prose(f"Weights of step {step:,}{which} evaluated on all of {_parts(splits)}.")
        page.table(["metric", *splits], rows(splits))
        for note in dict.fromkeys(note for evaluation in splits.values() for note in evaluation["notes"]):
            page.prose(note)
    judged_split = judged(splits)
    sections = [section for split in splits if split != judged_split for section in splits[split]["sections"]]
    add_sections(page, [section for section in sections if section.get("kind") in OF_A_RUN])
    add_sections(page, splits[judged_split]["sections"])


def evaluation_report(title: str, lead: str, splits: Splits, step: int, best: str = "") -> str:
    """Build a self-contained HTML report of one evaluation.

    ``lead``: sentence below the title; ``step`` and ``best``: as in ``add_evaluation``.
    """
    page = Page(title)
    page.data["evaluation"] = {split: dict(evaluation["figures"]) for split, evaluation in splits.items()}
    page.header(lead)
    page.cards(headline(splits))
    add_evaluation(page, splits, step, best)
    return page.html()
