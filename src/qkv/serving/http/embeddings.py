"""``/v1/embeddings``."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from qkv.runs.inference.embed import embed_opened
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.service import Service
from qkv.serving.errors import ApiError
from qkv.serving.http.reading import read_body, unless_dropped
from qkv.serving.limits import AT_ONCE, MAX_INPUTS
from qkv.serving.requests.bodies import Unused
from qkv.serving.requests.effects import Lenient
from qkv.system.errors import quoted


def _texts(value: Any) -> Any:
    """Validate the texts to embed, given as text or as token ids, and return them as a tuple."""
    several = [value] if isinstance(value, str) or _are_ids(value) else value
    if not isinstance(several, list) or not several or len(several) > MAX_INPUTS:
        amount = f"{len(several):,} texts" if isinstance(several, list) else quoted(value)
        raise ValueError(f"{amount} given; allowed: a text, a list of ids, or a list of 1 to {MAX_INPUTS:,} of these")
    wrong = next((text for text in several if not isinstance(text, str) and not _are_ids(text)), None)
    if wrong is not None:
        raise ValueError(f"{quoted(wrong)} given; allowed: a text or a list of ids")
    return tuple(tuple(text) if isinstance(text, list) else text for text in several)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(index) is int for index in value)


class EmbeddingBody(Lenient):
    """Body of ``/v1/embeddings``. A text given as token ids is read without prompt or added special tokens.

    Parameters beyond OpenAI's: ``prompt``, the name of one of the model's prompts, and ``prefix``, a text to prepend to
    each text.
    """

    model: str | None = None
    input: Annotated[tuple[str | tuple[int, ...], ...], BeforeValidator(_texts)]
    encoding_format: Literal["float", "base64"] | None = None
    prompt: str | None = None
    prefix: str | None = Field(default=None, max_length=10_000)
    dimensions: int | None = Field(default=None, ge=1)
    user: Unused = None


async def embeddings(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/embeddings``: one vector per text. Texts that exceed the model's context are refused."""
    body = await read_body(http, EmbeddingBody, service.limits)
    model = service.model(body.model)
    if not model.embeds:
        raise ApiError(f"the model {model.name!r} reads no text", param="model", code="no_text")
    _check_dimensions(model, body.dimensions)
    _check_ids(model, body.input)
    vectors, read = await unless_dropped(http, _embedded(model, body))
    service.metrics.count_read(model.name, read)
    data = [
        {"object": "embedding", "index": index, "embedding": _written(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": read, "total_tokens": read}
    return JSONResponse({"object": "list", "model": model.name, "data": data, "usage": usage})


async def _embedded(model: ServedModel, body: EmbeddingBody) -> tuple[list[np.ndarray], int]:
    """Compute (vectors of the texts, number of tokens), in batches of ``AT_ONCE`` texts, so that other requests are
    answered in between.
    """
    vectors, read = list[np.ndarray](), 0
    for begin in range(0, len(body.input), AT_ONCE):
        some = body.input[begin : begin + AT_ONCE]
        vectors_of_batch, tokens = await model.worker.call(
            lambda some=some, begin=begin: _vectors(model, body, some, begin)
        )
        vectors += list(vectors_of_batch)
        read += tokens
    return vectors, read


def _check_ids(model: ServedModel, texts: Sequence[str | Sequence[int]]) -> None:
    """Raise ``ApiError`` for ids outside the vocabulary; the message gives the number of the text."""
    vocab_size = model.run.vocabulary.tokenizer.vocab_size
    for place, text in enumerate(texts):
        wrong = None if isinstance(text, str) else next((each for each in text if not 0 <= each < vocab_size), None)
        if wrong is not None:
            sentence = (
                f"text {place + 1} has the token {wrong}, which is outside the vocabulary (0 to {vocab_size - 1})"
            )
            raise ApiError(sentence, param="input", code="invalid_value")


def _check_dimensions(model: ServedModel, dimensions: int | None) -> None:
    """Raise ``ApiError`` for a number of dimensions to which the model's vectors may not be truncated."""
    if dimensions is None or (model.sizes is not None and (dimensions in model.sizes or not model.sizes)):
        return
    allowed = "vectors of this model cannot be truncated: its config.json names neither is_matryoshka nor its sizes"
    if model.sizes:
        allowed = f"allowed: {', '.join(map(str, model.sizes))}"
    raise ApiError(f"dimensions: {dimensions} given; {allowed}", param="dimensions", code="invalid_value")


def _vectors(
    model: ServedModel, body: EmbeddingBody, texts: Sequence[str | Sequence[int]], first: int
) -> tuple[np.ndarray, int]:
    settings = model.embedding
    before = body.prefix or (settings.prompt(body.prompt) if settings is not None else "")
    reader = model.run.model.spec.encoder or model.run.model.spec
    limit = settings.max_length if settings is not None else None
    most = min(limit or reader.context_length, reader.context_length)
    framed = model.run.vocabulary.tokenizer.encode_framed
    lengths = [framed((before + text).strip()).whole if isinstance(text, str) else len(text) for text in texts]
    long = next((place for place, length in enumerate(lengths) if length > most), None)
    if 0 in lengths:
        raise ApiError(f"text {first + lengths.index(0) + 1} has no tokens, so it has no embedding", param="input")
    if long is not None:
        sentence = f"text {first + long + 1} has {lengths[long]:,} tokens, and the model reads {most:,}; shorten it"
        raise ApiError(sentence, param="input", code="context_length_exceeded")
    cut: dict[str, Any] = {} if body.dimensions is None else {"dimensions": body.dimensions}
    return embed_opened(model.run, settings, texts, body.prompt, body.prefix, **cut), sum(lengths)


def _written(vector: np.ndarray, form: str | None) -> list[float] | str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if form == "base64" else vector.tolist()
