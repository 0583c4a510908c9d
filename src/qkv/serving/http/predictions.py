"""``/predict``: predictions of a run's task, such as labels, numbers, spans and tags.

The body is ``{"model": NAME, "inputs": [...]}``. An input is a text, or an object with the task's inputs by name. An
image is an object with a data URI, ``{"image": "data:image/png;base64,…"}``, and a sound
``{"sound": "data:audio/wav;base64,…"}``; file names are refused, since a client must not read files of the server. For
a run that predicts from a table, such as a forecast, the inputs are the table's rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from qkv.data.records.images.pictures import URI as IMAGE_URI
from qkv.data.records.sounds.cells import URI as SOUND_URI
from qkv.runs.inference.inputs import value_columns
from qkv.runs.inference.predict import predict, predict_table, rows_for
from qkv.runs.run import Run
from qkv.runs.uses.use import use_of
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.service import Service
from qkv.serving.errors import ApiError
from qkv.serving.http.reading import read_body, unless_dropped
from qkv.serving.limits import AT_ONCE, MAX_INPUTS
from qkv.spec.base import Spec
from qkv.system.errors import UserError, quoted


def _inputs(value: Any) -> Any:
    several = value if isinstance(value, list) else [value]
    if not several or len(several) > MAX_INPUTS:
        raise ValueError(f"{len(several):,} inputs given; allowed: 1 to {MAX_INPUTS:,}")
    wrong = next((each for each in several if not isinstance(each, (str, dict, list))), several)
    if wrong is not several:
        raise ValueError(f"{quoted(wrong)} given; allowed: a text, or an object with the task's inputs by name")
    return tuple(several)


class PredictionBody(Spec):
    """Body of ``/predict``. The fields after ``inputs`` are the arguments of ``use_of``, as for ``qkv.predict``."""

    model: str | None = None
    inputs: Annotated[tuple[Any, ...], BeforeValidator(_inputs)]
    labels: tuple[str, ...] | None = None
    hypothesis: str | None = None
    multi_label: bool = False
    source_language: str | None = None
    target_language: str | None = None
    task: str | None = None
    group: str | None = None
    no_answer: bool = False


async def predictions(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /predict``: one object per input, with a readable ``answer``."""
    body = await read_body(http, PredictionBody, service.limits)
    model = service.model(body.model)
    if not model.predicts:
        sentence = f"the task {model.run.recipe.task.kind!r} of the model {model.name!r} has no answer to predict"
        raise ApiError(sentence, param="model", code="no_prediction")
    answers = await unless_dropped(http, _answers(model, body))
    return JSONResponse({"object": "list", "model": model.name, "data": _plain(answers)})


async def _answers(model: ServedModel, body: PredictionBody) -> list[dict[str, Any]]:
    if model.task.predicts_tables:
        return await model.worker.call(lambda: _from_table(model.run, body.inputs))
    use = use_of(**body.model_dump(exclude={"model", "inputs"}))
    rows = rows_for(model.run, [_read(model, each) for each in body.inputs])
    answers = list[dict[str, Any]]()
    for begin in range(0, len(rows), AT_ONCE):
        some = rows[begin : begin + AT_ONCE]
        answers += await model.worker.call(lambda some=some: predict(model.run, some, use))
    return answers


def _from_table(run: Run, rows: Sequence[Any]) -> list[dict[str, Any]]:
    if not all(isinstance(row, dict) for row in rows):
        raise UserError("inputs: the run predicts from a table; give its rows as objects")
    with TemporaryDirectory(prefix="qkv-") as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return predict_table(run, str(path), {}).rows


def _read(model: ServedModel, content: Any) -> Any:
    """Convert an input to an object by input name. Raises ``UserError`` if a value for the processor is a text other
    than a data URI, such as a file name.
    """
    row = content if isinstance(content, dict) else {model.task.asks[0]: content}
    for column, processor in value_columns(model.run).items():
        values = () if processor.spec.of_graphs or processor.spec.of_cells else _texts(row.get(column))
        uri, form = (SOUND_URI, "a sound as {}wav") if processor.spec.of_sounds else (IMAGE_URI, "an image as {}png")
        wrong = next((text for text in values if not text.startswith(uri)), None)
        if wrong is not None:
            raise UserError(f"inputs: {quoted(wrong)} given; allowed: numbers, or {form.format(uri)};base64,…")
    return row


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in nested lists."""
    if isinstance(value, str):
        yield value
    for each in value if isinstance(value, list) else ():
        yield from _texts(each)


def _plain(value: Any) -> Any:
    """Convert ``value`` to plain JSON data; infinities and NaN become null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
