"""Search a file for the texts most similar to a query, by the cosine of their embeddings."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

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
from qkv.runs.inference.search_items import TextFile, ValueFile, items_of
from qkv.runs.run import Run, task_of
from qkv.system.errors import UserError
from qkv.system.torch_settings import with_usual_settings
from qkv.tasks.multimodal.matching import MatchingTask

_AT_ONCE = 512
"""Number of texts embedded at once: limits the memory, and is the step size of the progress."""
_SCORES = 1 << 22
"""Number of scores computed at once."""
Embed = Callable[[list[Any]], np.ndarray]
"""Values -> their vectors (n, D)."""
OnProgress = Callable[[int, int], object]


class Hit(NamedTuple):
    """Search result: cosine similarity to the query, text or name of the value, and its line, counted from 1."""

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

    ``source``: a run, a published checkpoint or a sentence-transformers folder; a run that matches two inputs searches
    a folder or a table of images or sounds by texts, or texts by a file of the other input. ``file``: one text per
    line, or a table (CSV, TSV, JSONL) with the texts in ``column`` (default: guessed); empty texts are skipped.
    ``prompt`` and ``text_prompt``: names of the model's prompts for queries and for texts. ``options``: as for
    ``qkv.embed``.
    ``on_progress``: called with (number of texts embedded so far, number of all texts) while the index is built.

    The vectors of the file are stored in the cache folder, and computed again if the file, the model or the settings
    change. Memory use does not grow with the size of the file. Raises ``UserError``.
    """
    texts_of_queries = [queries] if isinstance(queries, str) else list(queries)
    if top < 1 or not texts_of_queries:
        raise UserError(f"top is {top} and the number of queries is {len(texts_of_queries)}; both must be at least 1")
    run, settings = opened(source)
    task, path = task_of(run), Path(file).expanduser()
    if task.couples_rows:
        if prompt is not None or text_prompt is not None or options:
            raise UserError(
                f"{run.folder} matches inputs, and has neither prompts nor poolings to choose; leave them out"
            )
        name, items = items_of(run, path, column)
        other = next(each for each in run.recipe.data.inputs if each != name)
        embed = partial(_matched, run, cast("MatchingTask", task))
        query_vectors = embed(other, texts_of_queries)
        vectors = _index(run, items, {"input": name}, query_vectors.shape[1], partial(embed, name), on_progress)
    else:
        items = TextFile(path, column)
        query_vectors = unit(embed_opened(run, settings, texts_of_queries, prompt, **options))
        how = {"prompt": text_prompt, "pooling": repr(settings), **{key: repr(each) for key, each in options.items()}}
        embed_texts = partial(embed_opened, run, settings, prompt=text_prompt, **options)
        vectors = _index(run, items, how, query_vectors.shape[1], embed_texts, on_progress)
    scores, rows = nearest_rows(vectors, query_vectors, top, max(1, min(1 << 14, _SCORES // len(texts_of_queries))))
    hits = items.at({int(row) for row in rows.flatten()})
    return [
        [Hit(float(score), *hits[int(row)]) for score, row in zip(some, places, strict=True)]
        for some, places in zip(scores, rows, strict=True)
    ]


def _matched(run: Run, task: MatchingTask, name: str, values: Sequence[Any]) -> np.ndarray:
    """Compute the vectors (n, P) of values of an input of a run that matches."""
    return task.vectors(run.model, run.vocabulary, run.recipe, name, values).numpy()


def _index(
    run: Run,
    items: TextFile | ValueFile,
    how: dict[str, Any],
    width: int,
    embed: Embed,
    on_progress: OnProgress | None,
) -> np.ndarray:
    """Return the vectors of all items (items, D), memory-mapped from the index. The index is built if it is missing or
    outdated. ``how``: settings of ``embed``.
    """
    settings = {"column": items.column, **how}
    path = index_path({"file": str(items.path.resolve()), "run": str(run.folder.resolve()), "settings": settings})
    content = [VERSION, items.digest, model_digest(run), width, settings]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    index = read_index(path, key)
    if index is not None:
        return index
    count = sum(1 for _ in items)
    if not count:
        raise UserError(f"{str(items.path)!r} holds nothing to search")
    write_index(path, key, count, width, _vectors(items, embed, count, on_progress))
    written = read_index(path, key)
    if written is None:
        raise UserError(f"{str(items.path)!r} changed while its index was built; search again")
    return written


def _vectors(
    items: TextFile | ValueFile, embed: Embed, count: int, on_progress: OnProgress | None
) -> Iterator[np.ndarray]:
    """Embed the items; yield the vectors (n, D) of ``_AT_ONCE`` items at a time."""
    done, cut, remaining = 0, False, iter(items)
    while some := [item for item, _ in islice(remaining, _AT_ONCE)]:
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            yield embed(some)
        done, cut = done + len(some), cut or bool(notes)
        if on_progress is not None:
            on_progress(done, count)
    if cut:
        sentence = f"some texts of {items.path} exceed the model's maximum length and are truncated"
        warnings.warn(sentence, stacklevel=2)
