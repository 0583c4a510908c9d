"""Search a file for the texts most similar to a query, by the cosine of their embeddings."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.data.corpora.text import TextSource
from qkv.data.records.columns.guess import choose
from qkv.data.records.formats import ENDINGS, table_of
from qkv.data.records.model import BadRow, Role
from qkv.data.records.table import lines
from qkv.interop.sentence import EmbeddingSettings
from qkv.runs.inference.embed import embed_opened, opened
from qkv.runs.inference.search_index import (
    VERSION,
    index_path,
    model_digest,
    nearest_rows,
    read_index,
    unit,
    write_index,
)
from qkv.runs.run import Run
from qkv.spec.data import Data
from qkv.system.errors import UserError
from qkv.system.torch_settings import with_usual_settings

_AT_ONCE = 512
"""Number of texts embedded at once: limits the memory, and is the step size of the progress."""
_SCORES = 1 << 22
"""Number of scores computed at once."""
_TEXT = Role("text", "text", ("sentence", "content", "body", "review", "question", "title"))
OnProgress = Callable[[int, int], object]


class Hit(NamedTuple):
    """Search result: cosine similarity to the query, text, and its line in the file, counted from 1."""

    score: float
    text: str
    line: int


@with_usual_settings
def search(
    source: Run | str | Path,
    file: str | Path,
    queries: str | Sequence[str],
    top: int = 5,
    column: str | None = None,
    prompt: str | None = None,
    text_prompt: str | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> list[list[Hit]]:
    """Find the ``top`` texts of ``file`` most similar to each of ``queries``, best first: exact search by cosine
    similarity.

    ``source``: a run, a published checkpoint or a sentence-transformers folder. ``file``: one text per line, or a table
    (CSV, TSV, JSONL) with the texts in ``column`` (default: guessed); empty texts are skipped. ``prompt`` and
    ``text_prompt``: names of the model's prompts for queries and for texts. ``options``: as for ``qkv.embed``.
    ``on_progress``: called with (number of texts embedded so far, number of all texts) while the index is built.

    The vectors of the file are stored in the cache folder, and computed again if the file, the model or the settings
    change. Memory use does not grow with the size of the file. Raises ``UserError``.
    """
    texts_of_queries = [queries] if isinstance(queries, str) else list(queries)
    if top < 1 or not texts_of_queries:
        raise UserError(f"top is {top} and the number of queries is {len(texts_of_queries)}; both must be at least 1")
    texts = TextFile(Path(file).expanduser(), column)
    run, settings = opened(source)
    query_vectors = unit(embed_opened(run, settings, texts_of_queries, prompt, **options))
    vectors = _index(run, settings, texts, text_prompt, options, query_vectors.shape[1], on_progress)
    scores, rows = nearest_rows(vectors, query_vectors, top, max(1, min(1 << 14, _SCORES // len(texts_of_queries))))
    hits = texts.at({int(row) for row in rows.flatten()})
    return [
        [Hit(float(score), *hits[int(row)]) for score, row in zip(some, places, strict=True)]
        for some, places in zip(scores, rows, strict=True)
    ]


class TextFile:
    """Texts of a file with their line numbers; each iteration reads the file again."""

    def __init__(self, path: Path, column: str | None):
        if not path.is_file():
            raise UserError(f"there is no file {str(path)!r} to search")
        self.path, self.source = path, TextSource.of_file(path, str(path))
        ending = ENDINGS.get(path.name.lower().removesuffix(".gz").rpartition(".")[2])
        self.column, self.table = column, None
        if ending in ("csv", "tsv", "jsonl", "json"):
            columns = {"text": column} if column else {}
            data = Data(source=str(path), columns=columns)
            self.table = table_of(str(path), data, (_TEXT,), "the file to search")
            self.column = choose(self.table, (_TEXT,), columns, "search").columns["text"]
        elif column is not None:
            raise UserError(f"{str(path)!r} is read as one text per line and has no columns; omit column={column!r}")

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for text, line in self._all():
            if text.strip():
                yield text.strip(), line

    def _all(self) -> Iterator[tuple[str, int]]:
        if self.table is None or self.column is None:
            yield from ((text, number) for number, text in enumerate(lines(self.source), 1))
            return
        for row in self.table.parse():
            if not isinstance(row, BadRow) and isinstance(row.values.get(self.column), str):
                yield row.values[self.column], row.line

    def at(self, rows: set[int]) -> dict[int, tuple[str, int]]:
        """Return number -> (text, line) of the texts with the numbers in ``rows``, counted from 0."""
        return {number: text for number, text in enumerate(self) if number in rows}


def _index(
    run: Run,
    pooling: EmbeddingSettings | None,
    texts: TextFile,
    prompt: str | None,
    options: dict[str, Any],
    width: int,
    on_progress: OnProgress | None,
) -> np.ndarray:
    """Return the vectors of all texts (texts, D), memory-mapped from the index. The index is built if it is missing or
    outdated.
    """
    settings = {"column": texts.column, "prompt": prompt, **{name: repr(value) for name, value in options.items()}}
    path = index_path({"file": str(texts.path.resolve()), "run": str(run.folder.resolve()), "settings": settings})
    content = [VERSION, texts.source.digest(), model_digest(run), repr(pooling), width, settings]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    index = read_index(path, key)
    if index is not None:
        return index
    count = sum(1 for _ in texts)
    if not count:
        raise UserError(f"{str(texts.path)!r} holds no text to search")
    write_index(path, key, count, width, _vectors(run, pooling, texts, prompt, options, count, on_progress))
    written = read_index(path, key)
    if written is None:
        raise UserError(f"{str(texts.path)!r} changed while its index was built; search again")
    return written


def _vectors(
    run: Run,
    pooling: EmbeddingSettings | None,
    texts: TextFile,
    prompt: str | None,
    options: dict[str, Any],
    count: int,
    on_progress: OnProgress | None,
) -> Iterator[np.ndarray]:
    """Embed the texts; yield the vectors (n, D) of ``_AT_ONCE`` texts at a time."""
    done, cut, remaining = 0, False, iter(texts)
    while some := [text for text, _ in islice(remaining, _AT_ONCE)]:
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            yield embed_opened(run, pooling, some, prompt, **options)
        done, cut = done + len(some), cut or bool(notes)
        if on_progress is not None:
            on_progress(done, count)
    if cut:
        sentence = f"some texts of {texts.path} exceed the model's maximum length and are truncated"
        warnings.warn(sentence, stacklevel=2)
