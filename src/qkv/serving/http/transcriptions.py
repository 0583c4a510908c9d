"""``/v1/audio/transcriptions`` and ``…/translations``: the text of a sound, in the form of OpenAI's interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from qkv.runs.transcription.transcribe import transcriber_of
from qkv.runs.transcription.transcript import Transcript
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.service import Service
from qkv.serving.errors import ApiError
from qkv.serving.http.reading import read_form, unless_dropped
from qkv.serving.requests.effects import Lenient, NoEffect
from qkv.spec.base import Seq
from qkv.system.errors import quoted

_FILE = "file"


def _number(value: Any) -> Any:
    """Convert the text of a form's field to a number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{quoted(value)} given; allowed: a number") from None


class TranscriptionBody(Lenient):
    """Fields of the form of ``/v1/audio/transcriptions``, beside the ``file``.

    A ``temperature`` above 0 replaces the temperatures that are tried in order. ``timestamp_granularities``: "word"
    adds the times of words to ``verbose_json``.
    """

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Annotated[Annotated[float, Field(ge=0, le=2)] | None, BeforeValidator(_number)] = None
    timestamp_granularities: Seq[Literal["word", "segment"]] = ("segment",)
    stream: Literal["false", "False", "0", ""] | None = None
    chunking_strategy: NoEffect = None
    include: NoEffect = None

    def options(self, task: str) -> dict[str, Any]:
        """Return the fields of ``Transcribing``."""
        named = {"language": self.language, "prompt": self.prompt}
        words = self.response_format == "verbose_json" and "word" in self.timestamp_granularities
        return {
            **{name: value for name, value in named.items() if value},
            **({"temperatures": (self.temperature,)} if self.temperature else {}),
            "task": task,
            "word_times": words,
        }


async def transcriptions(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/audio/transcriptions``: the text of a sound file in its own language."""
    return await _answer(http, service, "transcribe")


async def translations(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/audio/translations``: the text of a sound file in English."""
    return await _answer(http, service, "translate")


async def _answer(http: HttpRequest, service: Service, task: str) -> Response:
    body, files = await read_form(http, TranscriptionBody, service.limits)
    model = service.model(body.model)
    if not model.transcribes:
        raise ApiError(f"the model {model.name!r} does not transcribe sounds", param="model", code="no_transcriptions")
    if not files.get(_FILE):
        raise ApiError("file: the form has no sound file", param=_FILE, code="missing_file")
    transcript = await unless_dropped(http, _transcribed(model, body.options(task), files))
    return _formed(transcript, body.response_format)


async def _transcribed(model: ServedModel, options: Mapping[str, Any], files: Mapping[str, bytes]) -> Transcript:
    """Transcribe in the model's thread, one batch of windows a call, so that other requests are answered in between."""
    transcriber = await model.worker.call(lambda: transcriber_of(model.run, options))
    steps = transcriber.steps(files[_FILE])
    transcript, _ = await model.worker.call(lambda: next(steps))
    while (step := await model.worker.call(lambda: next(steps, None))) is not None:
        transcript, _ = step
    return transcript


def _formed(transcript: Transcript, form: str) -> Response:
    if form == "verbose_json":
        return JSONResponse(transcript.to_dict())
    if form == "json":
        usage = {"type": "duration", "seconds": max(1, round(transcript.seconds))}
        return JSONResponse({"text": transcript.text, "usage": usage})
    text = {"text": lambda: transcript.text + "\n", "srt": transcript.srt, "vtt": transcript.vtt}[form]()
    return PlainTextResponse(text)
