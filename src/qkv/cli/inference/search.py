"""Command ``qkv search``."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.inputs import lines_of_input
from qkv.cli.shared.runs import run_or_published
from qkv.interop.files.places import is_sentence_folder
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.runs.inference.search import Hit

EXAMPLES = """\
qkv search all-MiniLM-L6-v2/ questions.txt "how tall is it"
qkv search runs/my reviews.csv --column review "a waste of time" "well acted"
qkv search e5-small/ notes.txt --prompt query --text-prompt passage "where are the keys"
qkv search runs/pairs photos/ "a red bird"
cat queries.txt | qkv search all-MiniLM-L6-v2/ notes.txt - --top 3 --json
"""


def search_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a published model.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="One text per line, a table (CSV, TSV, JSONL), a folder.")
    ],
    queries: Annotated[
        list[str], typer.Argument(metavar="QUERY...", help="Queries; '-' reads one per line from standard input.")
    ],
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Number of texts per query.")] = 5,
    column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the texts in a table; default: guessed.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of one of the model's prompts, for the queries.")
    ] = None,
    text_prompt: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of one of the model's prompts, for the texts.")
    ] = None,
    pooling: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Pooling, as for 'qkv embed'; default: the model's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per query.")] = False,
) -> None:
    """Find the texts of a file that are nearest to a query, by the cosine similarity of their embeddings.

    A run that matches two inputs ('qkv train match') finds images or sounds by words: FILE is a folder or a table.

    The search is exact: all texts are compared. Their vectors are cached in the cache folder, and computed again if the
    file or the model changes.
    """
    folder = run if is_sentence_folder(run) else run_or_published(run)
    if not file.exists():
        raise UserError(f"there is no file {str(file)!r} to search")
    questions = [line for text in queries for line in (lines_of_input() if text == "-" else [text])]
    if not questions:
        raise UserError("no query is given: standard input is empty")
    options: dict[str, Any] = {"poolings": tuple(pooling)} if pooling else {}
    results = _search(folder, file, questions, top, column, prompt, text_prompt, options)
    if as_json:
        for query, hits in zip(questions, results, strict=True):
            typer.echo(json.dumps({"query": query, "hits": [hit._asdict() for hit in hits]}, ensure_ascii=False))
        return
    from qkv.report.table import print_table

    for i, (query, hits) in enumerate(zip(questions, results, strict=True)):
        typer.echo("\n" * (i > 0), nl=False)
        print_table(query, ["similarity", "line", "text"], hits_rows(hits))


def hits_rows(hits: Sequence[Hit]) -> list[tuple[float, int, str]]:
    """Build the table rows for the results of one query."""
    return [(round(hit.score, 4), hit.line, hit.text) for hit in hits]


def _search(folder: Path, file: Path, queries: list[str], top: int, *settings: Any) -> list[list[Hit]]:
    """Search for all queries; show progress on standard error while the index is built."""
    from qkv.report.progress import Progress
    from qkv.runs.inference.search import search

    column, prompt, text_prompt, options = settings
    bars: list[Progress] = []

    def on_progress(done: int, total: int) -> None:
        if not bars:
            bars.append(Progress("index", total, "texts"))
            bars[0].__enter__()
        bars[0].update(done)

    try:
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            results = search(folder, file, queries, top, column, prompt, text_prompt, on_progress, **options)
    finally:
        for progress in bars:
            progress.__exit__(None, None, None)
    for note in notes:
        typer.echo(f"note: {note.message}", err=True)
    return results
