"""``/v1/inspect``: values at points of a model, and answers with parts of it taken out, replaced or steered."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from torch import Tensor

from qkv.generation.decode.sample import generate
from qkv.layers.tap import Location, Recorder
from qkv.lens.capture.edits import ABLATIONS, Edit, ablate, replace, steer
from qkv.lens.capture.regions import Region
from qkv.models.evaluating import evaluating
from qkv.ops.at_least_single import at_least_single
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.service import Service
from qkv.serving.errors import ApiError
from qkv.serving.http.reading import read_body, unless_dropped
from qkv.serving.limits import MAX_EDITS, MAX_INSPECTED, MAX_LOGPROBS, MAX_POINTS, MAX_VALUES
from qkv.serving.requests.effects import Lenient
from qkv.spec.base import Seq
from qkv.spec.generation import Generation
from qkv.system.errors import quoted


def _ids(value: Any) -> Any:
    """Validate the input: a text, or token ids, which are returned as a tuple."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(type(index) is int for index in value):
        raise ValueError(f"{quoted(value)} given; allowed: a text or a list of ids")
    return tuple(value)


class EditBody(Lenient):
    """Edit of the values at a point: ``by`` ablates ("zero", "positions"), "replace" puts a number or vector in their
    place, "steer" adds ``factor`` · ``vector``. Other fields select a region, see ``qkv.lens.capture.regions``.
    """

    point: str
    by: Literal["zero", "positions", "replace", "steer"] = "zero"
    heads: Seq[int] | None = None
    positions: Seq[int] | None = None
    keys: Seq[int] | None = None
    features: Seq[int] | None = None
    vector: Seq[float] | None = None
    factor: float = 1.0

    def edit(self) -> Edit:
        """Return the tap. Raises ``ApiError`` for a vector that is missing or has no effect."""
        region = Region(self.point, self.heads, self.positions, self.keys, self.features)
        if (self.vector is None) == (self.by in ("replace", "steer")):
            need = "needs a vector" if self.vector is None else "reads no vector"
            raise ApiError(f"edits: an edit by {self.by!r} {need}", param="edits", code="invalid_value")
        if self.by in ABLATIONS:
            return ablate(region, self.by)
        vector = torch.tensor(self.vector, dtype=torch.float32)
        return steer(region, vector, self.factor) if self.by == "steer" else replace(region, self.factor * vector)


class InspectionBody(Lenient):
    """Body of ``/v1/inspect``.

    input: a text, or token ids. points: names or paths of points whose values are returned, see ``list_points``.
    edits: edits, in their order, before values are read. top: number of most probable next tokens. max_tokens: number
    of tokens to generate under the edits, each the most probable one.
    """

    model: str | None = None
    input: Annotated[str | tuple[int, ...], BeforeValidator(_ids)]
    points: Seq[str] = Field(default=(), max_length=MAX_POINTS)
    edits: Seq[EditBody] = Field(default=(), max_length=MAX_EDITS)
    encoding_format: Literal["float", "base64"] = "float"
    top: int = Field(default=5, ge=0, le=MAX_LOGPROBS)
    max_tokens: int = Field(default=0, ge=0, le=MAX_INSPECTED)


async def inspections(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/inspect``: values at points, the next tokens, and a text, under edits of the model."""
    body = await read_body(http, InspectionBody, service.limits)
    if not service.limits.inspect:
        raise ApiError("this server answers no inspections; start it with --inspect", 403, code="inspect")
    model = service.model(body.model)
    if not model.embeds:
        raise ApiError(f"the model {model.name!r} reads no text", param="model", code="no_text")
    ids = _checked(model, body)
    taps = [edit.edit() for edit in body.edits]
    content = await unless_dropped(http, model.worker.call(lambda: _inspected(model, body, ids, taps)))
    service.metrics.count_read(model.name, len(ids))
    return JSONResponse({"object": "inspection", "model": model.name, "tokens": ids, **content})


def _checked(model: ServedModel, body: InspectionBody) -> list[int]:
    """Return the ids of the input. Raises ``ApiError`` for ids or a length that the model cannot read."""
    ids = model.prompt(body.input)
    vocab_size, most = model.tokenizer.vocab_size, model.most_tokens
    wrong = next((index for index in ids if not 0 <= index < vocab_size), None)
    if wrong is not None:
        sentence = f"input: the token {wrong} is outside the vocabulary (0 to {vocab_size - 1})"
        raise ApiError(sentence, param="input", code="invalid_value")
    if not ids or len(ids) + body.max_tokens > most:
        sentence = f"input: {len(ids):,} tokens and {body.max_tokens} new ones; allowed: 1 to {most:,} together"
        raise ApiError(sentence, param="input", code="context_length_exceeded")
    if body.max_tokens and (not model.writes or model.run.model.encoder is not None):
        sentence = f"max_tokens: the model {model.name!r} does not continue texts; leave it out"
        raise ApiError(sentence, param="max_tokens", code="invalid_value")
    return ids


class _Bounded(Recorder):
    """Recorder that refuses more numbers than a response may hold."""

    def __init__(self, *points: str):
        super().__init__(*points)
        self.count = 0

    def at(self, location: Location, value: Tensor) -> None:
        self.count += value.numel()
        if self.count > MAX_VALUES:
            sentence = (
                f"points: more than {MAX_VALUES:,} numbers, the limit of this server; ask for fewer points, by their "
                "paths, or a shorter input"
            )
            raise ApiError(sentence, param="points", code="too_many_values")
        super().at(location, value)


@torch.no_grad()
def _inspected(model: ServedModel, body: InspectionBody, ids: list[int], taps: list[Edit]) -> dict[str, Any]:
    """Run the model in its worker thread, where no other request computes."""
    network, recorder = model.run.model, _Bounded(*body.points)
    with evaluating(network), network.tapped(*taps, recorder):
        outputs = _outputs(model, ids)
    content: dict[str, Any] = {"points": {path: _written(value, body.encoding_format) for path, value in recorder}}
    if model.writes and body.top:
        chances = at_least_single(outputs[0, -1]).log_softmax(-1).topk(min(body.top, outputs.shape[-1]))
        content["next"] = [
            {"id": index, "token": model.tokenizer.decode([index]), "logprob": value}
            for value, index in zip(chances.values.tolist(), chances.indices.tolist(), strict=True)
        ]
    if body.max_tokens:
        settings = Generation(max_new_tokens=body.max_tokens, temperature=0.0, stop_token_ids=tuple(model.ends))
        with network.tapped(*taps):
            (written,) = generate(network, [ids], settings)
        content["text"] = model.tokenizer.decode(written)
    return content


def _outputs(model: ServedModel, ids: list[int]) -> Tensor:
    """Return the outputs of the head; of a model with an encoder, after the first ids of an answer."""
    network = model.run.model
    row = torch.tensor([ids], device=network.device)
    if network.encoder is None:
        return network(row)[0]
    first = torch.tensor([list(model.task.first_ids(model.run.vocabulary))], device=network.device)
    return network(first, memory=network.encode(row))[0]


def _written(value: Tensor, form: str) -> dict[str, Any]:
    """Return the values of the row, without the axis of the batch; -inf, as in scores, is null in a list."""
    row = value[0].to("cpu", torch.float32).contiguous()
    shape = list(row.shape)
    if form == "base64":
        return {"shape": shape, "values": base64.b64encode(row.numpy().astype("<f4").tobytes()).decode()}
    return {
        "shape": shape,
        "values": [number if abs(number) < _INFINITE else None for number in row.flatten().tolist()],
    }


_INFINITE = float("inf")
