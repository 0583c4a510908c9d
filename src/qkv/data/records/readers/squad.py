"""SQuAD v1.1 and v2 (Rajpurkar et al. 2016, 2018): articles, paragraphs and their questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from qkv.data.corpora.text import TextSource
from qkv.data.records.model import BadRow
from qkv.data.records.table import Row, Table
from qkv.system.errors import UserError

COLUMNS = ("id", "title", "context", "question", "answers")


def squad(*texts: TextSource) -> Table:
    """Read SQuAD files as one table with one row per question, grouped by article. Files are read as a whole.

    ``answers``: the file's list of ``{"text", "answer_start"}``, empty for the impossible questions of v2, whose
    plausible answers are not used. The line of a row is the line of the question's id. Raises ``UserError`` if a file
    is not SQuAD.
    """
    name = " + ".join(text.name for text in texts)
    digest = "".join(text.digest() for text in texts)
    return Table(name, COLUMNS, lambda: _questions(texts), digest, extra=("id", "question", "context"))


def _questions(texts: Sequence[TextSource]) -> Iterator[Row | BadRow]:
    for text in texts:
        content = "".join(text.blocks())
        try:
            data = json.loads(content)["data"]
            paragraphs = [
                (f"{text.name}:{i}", article, part) for i, article in enumerate(data) for part in article["paragraphs"]
            ]
            yield from _of_paragraphs(text.name, content, paragraphs)
        except json.JSONDecodeError as error:
            raise UserError(f"{text.name}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{text.name} is not SQuAD: {type(error).__name__} at {error}; "
                "it needs data[].paragraphs[] with context and qas[]"
            ) from None


def _of_paragraphs(
    file: str, content: str, paragraphs: list[tuple[str, dict[str, Any], dict[str, Any]]]
) -> Iterator[Row | BadRow]:
    line, seen = 1, 0
    for group, article, paragraph in paragraphs:
        for question in paragraph["qas"]:
            name = str(question.get("id", ""))
            at = content.find(json.dumps(name), seen) if name else -1
            if at >= 0:
                line, seen = line + content.count("\n", seen, at), at
            answers = [] if question.get("is_impossible") else question.get("answers")
            values = (name, article.get("title"), paragraph["context"], question.get("question"), answers)
            yield Row(line, dict(zip(COLUMNS, values, strict=True)), group, file)
