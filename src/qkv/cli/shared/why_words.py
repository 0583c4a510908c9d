"""``qkv predict --why``: effect of each word on the answer, as tables and as an HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from qkv.runs.run import Run

_MOST = 40
"""Maximum number of words printed for an input; if it has more, the words with the largest changes are printed."""


def tell_why(run: Run, rows: Sequence[dict[str, Any]], as_json: bool, report: Path | None) -> None:
    """Print the answers for ``rows`` and the effect of each word on them; write the page ``report`` if given."""
    from qkv.api.functions import explain

    answers = explain(run, *rows)
    for row, answer in zip(rows, answers, strict=True):
        if answer.get("note"):
            typer.echo(f"note: {answer['note']}", err=True)
        if as_json:
            typer.echo(json.dumps({**row, **answer}, ensure_ascii=False))
        else:
            _print(answer)
    if report is not None:
        _write(report, str(run.folder), answers)


def _print(answer: Mapping[str, Any]) -> None:
    from qkv.report.table import print_table

    words = answer["words"]
    if len(words) > _MOST:
        words = sorted(words, key=lambda word: -abs(word["change"]))[:_MOST]
    print_table(_title(answer), ["word", _column(answer)], [(word["word"], word["change"]) for word in words])


def _title(answer: Mapping[str, Any]) -> str:
    label = answer.get("explained", answer["answer"])
    chances = answer.get("probabilities")
    return f"{label}, probability {chances[label]:.3f}" if chances else str(label)


def _column(answer: Mapping[str, Any]) -> str:
    return f"change of {'log-probability' if answer.get('probabilities') else 'value'} without it"


def _write(path: Path, title: str, answers: Sequence[Mapping[str, Any]]) -> None:
    from qkv.report.page import Page
    from qkv.report.sections import add_sections
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    page = Page(f"Words that mattered: {title}")
    page.header(
        "Each word is left out in turn. Blue: without the word, the answer is less probable, or the number lower; red: "
        "more probable, or higher."
    )
    add_sections(
        page,
        [
            {
                "kind": "effects",
                "title": _title(answer),
                "column": _column(answer),
                "words": [[word["word"], word["change"]] for word in answer["words"]],
            }
            for answer in answers
        ],
    )
    with clear_errors(str(path)):
        write_file(path, page.html().encode())
