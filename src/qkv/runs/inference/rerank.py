"""Reranking: order documents by their relevance to a query.

    cross-encoder      score = f(head(query, document)), f: the sigmoid or the identity
    language model     score = p(yes) / (p(yes) + p(no)) after the question whether the document answers the query
    embedding model    score = cosine of the embeddings of query and document

A cross-encoder is a model with one output for a pair of texts (Nogueira and Cho 2019). A published one applies the
sigmoid, unless its ``config.json`` names another activation, as in the sentence-transformers library. A language model
is asked in the form of its chat template, with the question of Qwen3-Reranker (Zhang et al. 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from qkv.generation.decode.score import score_prompts, softmax
from qkv.interop.sentence import EmbeddingSettings, pair_activation
from qkv.runs.inference.embed import embed_opened, opened
from qkv.runs.run import Run, task_of
from qkv.system.errors import UserError
from qkv.system.torch_settings import with_usual_settings
from qkv.tasks.labels.pooled import PooledTask
from qkv.tokenizers.chat_template import ChatTemplate, find_template

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""Default instruction for a language model."""
_QUESTION = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_OPTIONS = ("yes", "no")
_AT_ONCE = 8
"""Number of documents that a language model reads in one batch."""
_BETWEEN_REPORTS = 256
"""Number of documents that are scored between two reports of progress."""
_OF_DOCUMENTS = ("document", "passage", "corpus")
"""Names that embedding models give to the prompt of documents."""

Scorer = Callable[[str, Sequence[str]], list[float]]


class RankedDocument(NamedTuple):
    """Document with its relevance to the query; ``index``: its place in the list of documents."""

    index: int
    score: float
    document: str


@with_usual_settings
def rerank(
    run: Run | str | Path,
    query: str,
    documents: Sequence[str],
    top: int | None = None,
    instruction: str | None = None,
    copy: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[RankedDocument]:
    """Score ``documents`` by their relevance to ``query``; return them with the best first.

    ``run``: a run, its folder or a published checkpoint: a cross-encoder (one output for a pair of texts), a language
    model with a chat template, or any model that embeds texts. ``top``: number of documents to return; None: all.
    ``instruction``: the task in a sentence, for a language model. ``copy``: as for ``load``. ``on_progress``: called
    with (number of documents scored so far, number of all). Raises ``UserError``.
    """
    score = scorer_of(*opened(run, copy), instruction)
    check_texts(query, documents, top)
    scores = list[float]()
    for begin in range(0, len(documents), _BETWEEN_REPORTS):
        scores += score(query, documents[begin : begin + _BETWEEN_REPORTS])
        if on_progress is not None:
            on_progress(len(scores), len(documents))
    return ranked(documents, scores, top)


def check_texts(query: str, documents: Sequence[str], top: int | None) -> None:
    """Raise ``UserError`` for an empty query, an empty document or a number of results below 1."""
    if isinstance(documents, str):
        raise UserError("documents: a single text is given, but a list of texts is required; put it in brackets")
    if not query.strip():
        raise UserError("the query is empty")
    empty = next((i for i, document in enumerate(documents) if not document.strip()), None)
    if empty is not None:
        raise UserError(f"document {empty} is empty")
    if top is not None and top < 1:
        raise UserError(f"top: {top} given, but it should be at least 1")


def ranked(documents: Sequence[str], scores: Sequence[float], top: int | None) -> list[RankedDocument]:
    """Sort documents by score, highest first; equal scores keep the order of the documents."""
    order = sorted(range(len(documents)), key=lambda i: -scores[i])
    return [RankedDocument(i, scores[i], documents[i]) for i in order[:top]]


def scorer_of(run: Run, settings: EmbeddingSettings | None, instruction: str | None = None) -> Scorer:
    """Return the function (query, documents) -> scores for the kind of model. ``settings``: those of a
    sentence-transformers folder. Raises ``UserError`` for a model that scores no documents.
    """
    kind = scorer_kind(run, settings)
    if instruction is not None and kind != "language model":
        raise UserError(f"an instruction is given, but {run.folder} is not a language model with a chat template")
    if kind == "cross-encoder":
        return partial(_cross_scores, run)
    if kind == "language model":
        return partial(_judged_scores, run, find_template(run.tokenizer), instruction or INSTRUCTION)
    if kind == "embedding model":
        return partial(_cosines, run, settings)
    raise UserError(f"{run.folder} scores no documents: it has no output for a pair of texts and embeds no text")


def scorer_kind(run: Run, settings: EmbeddingSettings | None) -> str:
    """Return "cross-encoder", "language model" or "embedding model"; "" for a model that scores no documents."""
    if not run.vocabulary.has_text:
        return ""
    task = task_of(run)
    if isinstance(task, PooledTask) and task.target.kind == "number" and "pair" in task.may_ask:
        return "cross-encoder"
    writes = run.model.spec.head.predicts_tokens and run.model.spec.decodes and run.model.encoder is None
    if settings is None and writes and run.tokenizer.chat_template is not None:
        return "language model"
    return "embedding model"


def _cross_scores(run: Run, query: str, documents: Sequence[str]) -> list[float]:
    rows = [{"text": query, "pair": document} for document in documents]
    outputs = cast("PooledTask", task_of(run)).scored(run.model, run.vocabulary, run.recipe, rows)[0]
    values = outputs[:, 0].double() if documents else torch.empty(0)
    return (values.sigmoid() if pair_activation(run.folder) == "sigmoid" else values).tolist()


def _judged_scores(
    run: Run, template: ChatTemplate, instruction: str, query: str, documents: Sequence[str]
) -> list[float]:
    """Score documents by the probability of "yes" against "no" as the first word of the model's answer."""
    options = [run.tokenizer.encode(option) for option in _OPTIONS]
    scores = list[float]()
    for begin in range(0, len(documents), _AT_ONCE):
        some = documents[begin : begin + _AT_ONCE]
        prompts = [template.ids(_messages(instruction, query, document), enable_thinking=False) for document in some]
        option_scores = score_prompts(run.model, prompts, [options] * len(prompts))
        scores += [softmax([option.sum for option in each])[0] for each in option_scores]
    return scores


def _messages(instruction: str, query: str, document: str) -> list[dict[str, Any]]:
    question = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    return [{"role": "system", "content": _QUESTION}, {"role": "user", "content": question}]


def _cosines(run: Run, settings: EmbeddingSettings | None, query: str, documents: Sequence[str]) -> list[float]:
    prompts = {} if settings is None else settings.prompts
    of_query = "query" if "query" in prompts else None
    of_documents = next((name for name in _OF_DOCUMENTS if name in prompts), None)
    if not documents:
        return []
    vector = embed_opened(run, settings, [query], of_query, normalise=True)[0]
    return (embed_opened(run, settings, documents, of_documents, normalise=True) @ vector).tolist()
