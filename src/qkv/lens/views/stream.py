"""Residual stream of a model's own stack: its points in order, and what the model would answer from each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.signal import Signal
from qkv.layers.tap import Location, Recorder, matches
from qkv.lens.record import record
from qkv.lens.views.places import find_place
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError


@dataclass(frozen=True)
class StreamPoint:
    """Point of the residual stream. path: "blocks.3.branches.0.residual_after"; the first one is
    "blocks.0.branches.0.residual_before", the input of the blocks.

    layer: place of the block in the order of execution; -1 for the input of the blocks, and the number of blocks for
    the model's own output. part: kind of the branch just before the point, such as "attention", or "embedding",
    or "output".
    """

    path: str
    layer: int
    part: str


@dataclass(frozen=True)
class Stream:
    """Residual stream of one pass. points: P places; vectors: P tensors (B, N, D) there.

    output: the model's own output. context: of the last vectors. read: function that maps vectors of the stream to
    outputs, through the model's own final norm, head and multipliers. records: values at other points.
    """

    points: tuple[StreamPoint, ...]
    vectors: tuple[Tensor, ...]
    output: Tensor
    context: Context
    read: Callable[[Tensor], Tensor]
    records: Mapping[Location, Tensor]


def read_stream(
    model: Transformer, signal: Signal | Tensor, source: Signal | Tensor | None = None, points: Sequence[str] = ()
) -> Stream:
    """Run ``model`` once without dropout; return the residual stream of its own blocks before the first branch and
    after each.

    After a merge, earlier points are left out, because their vectors have another width. Of a model that reads a row in
    segments, the vectors of the row's positions are joined. points: further points whose values are recorded; none of
    a model with segments, whose calls are not the row's.
    """
    signal, patterns = Signal.of(signal), _patterns(model, "model")
    tap = Recorder(*patterns, *(points if model.segmentation is None else ()))
    with evaluating(model):
        memory = None if source is None else model.encode(source)
        output = model(signal, memory=memory, tap=tap)[0]
        context = _last_context(model, signal)
        places, vectors = _select(model, tap, patterns, signal)

    def read(x: Tensor) -> Tensor:
        with evaluating(model):
            return answer(model, x, context)

    return Stream(places, vectors, output, context, read, tap.records)


@torch.no_grad()
def stream_vectors(
    model: Transformer,
    signal: Signal | Tensor,
    source: Signal | Tensor | None = None,
    stack: Literal["model", "encoder"] = "model",
) -> tuple[tuple[StreamPoint, ...], tuple[Tensor, ...]]:
    """Return the points of the residual stream of the model's own blocks or of its encoder, and the vectors (B, N, D)
    there, from one pass without dropout; see ``read_stream``. Raises ``UserError`` also for a stack without blocks.
    """
    patterns = _patterns(model, stack)
    if not patterns:
        raise UserError(f"the stack {stack!r} has no blocks, and so no residual stream")
    tap = record(model, signal, *patterns, source=source)
    with evaluating(model):
        return _select(model, tap, patterns, Signal.of(signal))


def answer(model: Transformer, x: Tensor, context: Context) -> Tensor:
    """Return the model's output for the vectors x (B, N, D) before its final norm."""
    lengths = context.lengths if model.spec.num_outputs is None else None
    return model.head.of_rows(model.norm(x, context), lengths, context)


def _patterns(model: Transformer, stack: Literal["model", "encoder"]) -> list[str]:
    """Return the patterns of the points of a stack's residual stream."""
    layered = model if stack == "model" else model.encoder
    if layered is None:
        raise UserError("the model has no encoder, so the stack 'encoder' does not exist; allowed: 'model'")
    prefix = "" if stack == "model" else "encoder."
    names = ("residual_before", "residual_after") if len(layered.blocks) else ()
    return [f"{prefix}blocks.*.branches.*.{name}" for name in names]


def _last_context(model: Transformer, signal: Signal) -> Context:
    """Return the context of the vectors that the final norm reads."""
    context = model.embed(signal)[1]
    if model.latents is not None:  # queries, if there are any, have the positions of the input or of no padding
        if model.queries is None and len(model.blocks):
            return context
        count = model.queries.count if model.queries else len(model.latents.vectors.table)
        return context if count is None else Context(torch.arange(count, device=model.device)[None])
    for block in model.walked:
        context = block.context_after(context)  # type: ignore[operator]
    return context


def _select(
    model: Transformer, tap: Recorder, patterns: Sequence[str], signal: Signal
) -> tuple[tuple[StreamPoint, ...], tuple[Tensor, ...]]:
    """Select from the records the input of the last stage and the stream after each of its branches."""
    values, origin = dict[StreamPoint, list[Tensor]](), None
    for location, value in tap.records.items():
        if not any(matches(pattern, location.path) for pattern in patterns):
            continue
        place = find_place(model, location)
        if location.point == "residual_after":
            point = StreamPoint(location.path, place.layer, place.part)
        else:
            if model.spec.merges and values and [*values.values()][-1][0].shape != value.shape:
                values.clear()
                origin = None
            origin = origin or (location.path, place.layer)
            if origin != (location.path, place.layer):
                continue
            point = StreamPoint(location.path, -1, "embedding")
        values.setdefault(point, []).append(value)
    return tuple(values), tuple(_whole_rows(model, signal, calls) for calls in values.values())


def _whole_rows(model: Transformer, signal: Signal, calls: list[Tensor]) -> Tensor:
    """Return the vectors (B, N, D) of the positions of whole rows, from those of each segment."""
    if model.segmentation is None:
        return calls[0]
    x, context = model.embed(signal)
    stack: Any = _Recorded(calls)
    return model.segmentation(x, context, stack, None)[0]


class _Recorded:
    """Stand-in for a stack: it returns recorded outputs, which a segmentation joins as it joins the stack's outputs."""

    def __init__(self, calls: Sequence[Tensor]):
        self.calls = iter(calls)

    def read(self, x: Tensor, context: Context, state: Any = None) -> tuple[Tensor, Any]:
        """Return the vectors of the next call, and no state."""
        return next(self.calls), None
