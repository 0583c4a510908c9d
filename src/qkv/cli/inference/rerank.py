"""Command ``qkv rerank``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.inputs import lines_of_input
from qkv.cli.shared.runs import Copy, run_or_published
from qkv.interop.files.places import is_sentence_folder
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.runs.inference.rerank import RankedDocument

EXAMPLES = """\
qkv rerank ms-marco-MiniLM-L6-v2/ "who wrote it" "Alice wrote the book." "The film was long."
qkv rerank Qwen3-Reranker-0.6B/ "who wrote it" --data notes.txt --top 3
qkv rerank all-MiniLM-L6-v2/ "who wrote it" --data notes.csv --column body --json
"""
_QUICK = 256
"""Maximum number of documents that are scored without a display of the progress."""
_SHOWN = 100
"""Maximum number of characters of a document shown in the table."""

_Instruction = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Task description in the prompt of a chat model.")
]


def rerank_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a published model.")],
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The question or search query.")],
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DOCUMENT]...", help="Texts; '-' reads one per line from standard input."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One text per line, or a table: CSV, TSV, JSONL.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="--data: column of the texts; default: guessed.")
    ] = None,
    top: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of documents; default: all.")] = None,
    instruction: _Instruction = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per document.")] = False,
    copy: Copy = False,
) -> None:
    """Order documents by their relevance to a query, with a score for each.

    A cross-encoder scores each pair of query and document. A language model with a chat template is asked whether the
    document answers the query, and the score is the probability of "yes" against "no". Other models compare
    embeddings.
    """
    if bool(documents) == (data is not None):
        raise UserError("give documents to order, or a file with --data, and not both")
    if column is not None and data is None:
        raise UserError("--column needs --data")
    folder = run if is_sentence_folder(run) else run_or_published(run)
    ranking = _ranking(folder, query, _texts(documents or [], data, column), top, instruction, copy)
    if as_json:
        for each in ranking:
            typer.echo(json.dumps(each._asdict(), ensure_ascii=False))
        return
    from qkv.report.table import print_table

    rows = [(f"{each.score:.4f}", each.index + 1, _shortened(each.document)) for each in ranking]
    print_table(query, ["score", "document", "text"], rows)


def _ranking(folder: Path, query: str, texts: list[str], *settings: Any) -> list[RankedDocument]:
    """Order the texts; show the progress on standard error if there are many."""
    from qkv.runs.inference.rerank import rerank

    if len(texts) <= _QUICK:
        return rerank(folder, query, texts, *settings)
    from qkv.report.progress import Progress

    with Progress("rerank", len(texts), "documents") as progress:
        return rerank(folder, query, texts, *settings, on_progress=lambda done, _: progress.update(done))


def _texts(documents: list[str], data: Path | None, column: str | None) -> list[str]:
    """Read the documents from the command line, from standard input or from a file. Raises ``UserError`` for none."""
    if data is not None:
        from qkv.runs.inference.search_items import TextFile

        texts = [text for text, _ in TextFile(data, column)]
    else:
        texts = [line for text in documents for line in (lines_of_input() if text == "-" else [text])]
    if not texts:
        raise UserError(f"{data or 'standard input'} holds no text")
    return texts


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
