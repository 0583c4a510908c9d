"""``/v1/rerank``: order documents by their relevance to a query, in the form that rerank servers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from qkv.runs.inference.rerank import check_texts, ranked, scorer_of
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.service import Service
from qkv.serving.errors import ApiError
from qkv.serving.http.reading import read_body, unless_dropped
from qkv.serving.limits import AT_ONCE, MAX_INPUTS
from qkv.serving.requests.bodies import Unused
from qkv.serving.requests.effects import Lenient
from qkv.system.errors import quoted


def _documents(value: Any) -> Any:
    """Validate the documents, given as texts or as objects with a ``text``, and return their texts as a tuple."""
    if not isinstance(value, list) or not value or len(value) > MAX_INPUTS:
        amount = f"{len(value):,} documents" if isinstance(value, list) else quoted(value)
        raise ValueError(f"{amount} given; allowed: a list of 1 to {MAX_INPUTS:,} documents")
    texts = [each.get("text") if isinstance(each, dict) else each for each in value]
    wrong = next((item for item, text in zip(value, texts, strict=True) if not isinstance(text, str)), None)
    if wrong is not None:
        raise ValueError(f"{quoted(wrong)} given; allowed: a text, or an object with a text")
    return tuple(texts)


class RerankBody(Lenient):
    """Body of ``/v1/rerank``. ``instruction``: task description in the prompt, for a language model as the scorer."""

    model: str | None = None
    query: str
    documents: Annotated[tuple[str, ...], BeforeValidator(_documents)]
    top_n: int | None = Field(default=None, ge=1)
    return_documents: bool = False
    instruction: str | None = Field(default=None, max_length=10_000)
    user: Unused = None


async def rerankings(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/rerank``: index and relevance score of each document, best first."""
    body = await read_body(http, RerankBody, service.limits)
    model = service.model(body.model)
    if not model.reranks:
        raise ApiError(f"the model {model.name!r} cannot score documents", param="model", code="no_scores")
    check_texts(body.query, body.documents, body.top_n)
    scores, tokens = await unless_dropped(http, _scores(model, body))
    ranking = ranked(body.documents, scores, body.top_n)
    results = [{"index": each.index, "relevance_score": each.score} for each in ranking]
    if body.return_documents:
        results = [{**one, "document": {"text": each.document}} for one, each in zip(results, ranking, strict=True)]
    service.metrics.count_read(model.name, tokens)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "model": model.name, "results": results, "usage": usage})


async def _scores(model: ServedModel, body: RerankBody) -> tuple[list[float], int]:
    """Return (scores of the documents, number of tokens), computed in the model's thread in batches of ``AT_ONCE``, so
    that other requests are answered in between.
    """
    score = await model.worker.call(lambda: scorer_of(model.run, model.embedding, body.instruction))
    scores, tokens = list[float](), 0
    for begin in range(0, len(body.documents), AT_ONCE):
        some = body.documents[begin : begin + AT_ONCE]
        scores += await model.worker.call(lambda some=some: score(body.query, some))
        tokens += await model.worker.call(lambda some=some: _tokens(model, body.query, some))
    return scores, tokens


def _tokens(model: ServedModel, query: str, documents: Sequence[str]) -> int:
    """Count the tokens of the documents, and those of the query once for each document."""
    lengths = model.run.vocabulary.tokenizer.encode_many([query, *documents])[1]
    return len(documents) * int(lengths[0]) + int(lengths[1:].sum())
