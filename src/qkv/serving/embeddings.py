"""``/v1/embeddings``."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from qkv.runs.embed import embed_opened
from qkv.serving.bodies import Neutral, Unused
from qkv.serving.errors import ApiError
from qkv.serving.limits import AT_ONCE, MAX_INPUTS
from qkv.serving.model import ServedModel
from qkv.serving.reading import read_body, unless_dropped
from qkv.serving.service import Service
from qkv.spec.base import Spec
from qkv.spec.errors import quoted


def _texts(value: Any) -> Any:
    """Texts to embed as a list."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value or len(value) > MAX_INPUTS:
        given = f"{len(value):,} texts" if isinstance(value, list) else quoted(value)
        raise ValueError(f"{given} given; allowed: a text, or a list of 1 to {MAX_INPUTS:,} texts")
    wrong = next((text for text in value if not isinstance(text, str)), None)
    if wrong is not None:
        raise ValueError(f"{quoted(wrong)} given; allowed: texts (ids are not read here)")
    return tuple(value)


class EmbeddingBody(Spec):
    """Body of ``/v1/embeddings``.

    Beyond OpenAI's: ``prompt``, the name of one of the model's prompts, and ``prefix``, a text to put before each.
    """

    model: str | None = None
    input: Annotated[tuple[str, ...], BeforeValidator(_texts)]
    encoding_format: Literal["float", "base64"] | None = None
    prompt: str | None = None
    prefix: str | None = Field(default=None, max_length=10_000)
    dimensions: Neutral = None
    user: Unused = None


async def embeddings(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/embeddings``: one vector per text. Texts that the model cannot read whole are refused."""
    body = await read_body(http, EmbeddingBody, service.limits)
    model = service.model(body.model)
    if not model.embeds:
        raise ApiError(f"the model {model.name!r} reads no text", param="model", code="no_text")
    vectors, read = await unless_dropped(http, _embedded(model, body))
    service.metrics.count_read(model.name, read)
    data = [
        {"object": "embedding", "index": index, "embedding": _written(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": read, "total_tokens": read}
    return JSONResponse({"object": "list", "model": model.name, "data": data, "usage": usage})


async def _embedded(model: ServedModel, body: EmbeddingBody) -> tuple[list[np.ndarray], int]:
    """(vectors of the texts, number of tokens), a few texts at once, so that others are answered in between."""
    vectors, read = list[np.ndarray](), 0
    for begin in range(0, len(body.input), AT_ONCE):
        some = body.input[begin : begin + AT_ONCE]
        found, tokens = await model.worker.call(lambda some=some, begin=begin: _vectors(model, body, some, begin))
        vectors += list(found)
        read += tokens
    return vectors, read


def _vectors(model: ServedModel, body: EmbeddingBody, texts: Sequence[str], first: int) -> tuple[np.ndarray, int]:
    said = model.embedding
    before = body.prefix or (said.prompt(body.prompt) if said is not None else "")
    reader = model.run.model.spec.encoder or model.run.model.spec
    own = said.max_length if said is not None else None
    most = min(own or reader.context_length, reader.context_length)
    lengths = [model.run.vocabulary.tokenizer.encode_framed((before + text).strip()).whole for text in texts]
    long = next((place for place, length in enumerate(lengths) if length > most), None)
    if 0 in lengths:
        raise ApiError(f"text {first + lengths.index(0) + 1} has no tokens, so it has no embedding", param="input")
    if long is not None:
        sentence = f"text {first + long + 1} has {lengths[long]:,} tokens, and the model reads {most:,}; shorten it"
        raise ApiError(sentence, param="input", code="context_length_exceeded")
    return embed_opened(model.run, said, texts, body.prompt, body.prefix), sum(lengths)


def _written(vector: np.ndarray, form: str | None) -> list[float] | str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if form == "base64" else vector.tolist()
