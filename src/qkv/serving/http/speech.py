"""``/v1/audio/speech``: speech from text, in the form of OpenAI's interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from qkv.data.records.sounds.written import MEDIA, pcm_bytes, written_sound
from qkv.runs.sound.speech import Speaker
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.service import Service
from qkv.serving.errors import ApiError
from qkv.serving.http.reading import read_body, unless_dropped
from qkv.serving.requests.bodies import Unused, only
from qkv.serving.requests.effects import Lenient
from qkv.spec.base import LARGEST_SEED
from qkv.spec.generation import Generation

_LONGEST = 4096
"""Maximum number of characters of a text."""


class SpeechBody(Lenient):
    """Body of ``/v1/audio/speech``. ``seed``, ``temperature``, ``top_k`` and ``top_p`` are beyond OpenAI's."""

    model: str | None = None
    input: str = Field(min_length=1, max_length=_LONGEST)
    voice: str | None = None
    response_format: Literal["mp3", "opus", "flac", "wav", "pcm"] = "mp3"
    speed: Annotated[Any, BeforeValidator(only(1, 1.0))] = None
    instructions: Annotated[Any, BeforeValidator(only(""))] = None
    stream_format: Annotated[Any, BeforeValidator(only("audio"))] = None
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    temperature: float | None = Field(default=None, ge=0)
    top_k: int | None = Field(default=None, gt=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    user: Unused = None


async def speech(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/audio/speech``: a sound file; samples (``pcm``) are sent while they are spoken."""
    body = await read_body(http, SpeechBody, service.limits)
    model = service.model(body.model)
    if not model.speaks:
        raise ApiError(f"the model {model.name!r} does not speak", param="model", code="no_speech")
    speaker: Speaker = await model.worker.call(lambda: Speaker(model.run))
    names = ("seed", "temperature", "top_k", "top_p")
    options = {name: value for name in names if (value := getattr(body, name)) is not None}
    generation = speaker.settings(**options)
    voice = None if len(speaker.voices) == 1 else body.voice
    speaker.processor.symbols(body.input, voice)  # so that a wrong text or voice is refused before an answer begins
    media = MEDIA[body.response_format]
    if body.response_format == "pcm":
        return StreamingResponse(_pieces(model, speaker, body.input, voice, generation), media_type=media)
    sound = await unless_dropped(http, model.worker.call(lambda: speaker.say(body.input, voice, generation)))
    return Response(written_sound(sound, body.response_format), media_type=media)


async def _pieces(
    model: ServedModel, speaker: Speaker, text: str, voice: str | None, generation: Generation
) -> AsyncIterator[bytes]:
    """Yield samples of 16 bits; each piece is a call of the model's thread, between those of other requests."""
    pieces = speaker.pieces(text, voice, generation)
    while (piece := await model.worker.call(lambda: next(pieces, None))) is not None:
        yield pcm_bytes(piece)
