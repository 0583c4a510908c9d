"""Speed of one model on this machine: decoding, first token and forward pass, compared with the limit set by memory
bandwidth.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from typing import Any

import torch

from qkv.costs.measuring.turns import in_turns, reading_seconds
from qkv.models.fast.native_token import decoding_path
from qkv.models.transformer import Transformer
from qkv.runs.bench.sides import Opener, in_memory, other_model, other_reader, other_writer, reader, writer
from qkv.system.errors import UserError
from qkv.system.processor import processor_name

DECODE, FIRST, FORWARD = "decode", "first token", "forward"
UNITS = {DECODE: "tokens/s", FIRST: "s", FORWARD: "rows/s"}
OURS, PEER = "qkv", "transformers"
_PEER_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class BenchPlan:
    """Settings of a measurement. batches: numbers of rows per batch; prompts: lengths of prompts; precisions: keys of
    ``sides.BITS``.

    new: number of tokens to generate.   repeats: number of repetitions of each timing; the fastest counts.   peers:
    also measure the transformers library.
    """

    batches: tuple[int, ...] = (1, 8, 32)
    prompts: tuple[int, ...] = (32, 512)
    precisions: tuple[str, ...] = ("fp32", "bf16", "int8", "int4")
    new: int = 64
    repeats: int = 3
    peers: bool = False


@dataclass(frozen=True)
class Figure:
    """One measurement, in the unit of ``UNITS[quantity]``.

    prompt: positions of a row before the first generated token, or of a whole row.   limit: tokens/s of a machine that
    only reads the weights and the state once per step; None if something else than memory bandwidth limits the speed.
    """

    side: str
    precision: str
    quantity: str
    batch: int
    prompt: int
    value: float
    limit: float | None = None

    @property
    def reached(self) -> float | None:
        """Measured speed as a share of the memory limit; None without a limit."""
        return None if self.limit is None else self.value / self.limit


@dataclass(frozen=True)
class Bench:
    """Measurements of one model, with its number of parameters, bytes of weights by precision, machine and versions.

    paths: decoding path by precision, see ``qkv.models.fast.native_token.decoding_path``.
    """

    name: str
    parameters: int
    weights: dict[str, int]
    figures: tuple[Figure, ...]
    about: dict[str, str]
    paths: dict[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the measurements as plain data."""
        return {
            **asdict(self),
            "figures": [{**asdict(each), "reached": each.reached} for each in self.figures],
        }


def bench(
    name: str,
    model: Transformer,
    plan: BenchPlan,
    tell: Callable[[Figure], None] = lambda figure: None,
    opener: Opener | None = None,
) -> Bench:
    """Measure the speed of ``model``. ``name``: name of the model, for the tables. ``tell``: called with each
    measurement. ``opener``: function that returns the model in a precision; default: copies of ``model``.

    For a model that decodes: greedy generation of ``plan.new`` tokens after the first of ``plan.prompts``, for each
    batch size, and the time to the first token of one row after each prompt. For other models: forward passes over rows
    of these lengths. Rows longer than the model can read are omitted. Raises ``UserError`` for an encoder–decoder.
    """
    if model.encoder is not None:
        raise UserError(
            "the speed of an encoder–decoder cannot be measured; measure a model of its encoder or its decoder alone"
        )
    peer = other_model(model) if plan.peers else None
    opened = opener or in_memory(model)
    figures, weights, paths = list[Figure](), dict[str, int](), dict[str, str]()
    for precision in plan.precisions:
        ours = opened(precision)
        weights[precision] = _bytes_of(ours)
        other = peer.to(_PEER_PRECISIONS[precision]) if peer is not None and precision in _PEER_PRECISIONS else None
        decodes = bool(model.spec.decodes and model.vocab_size)
        measured = _decoding if decodes else _reading
        for figure in measured(ours, other, precision, plan):
            figures.append(figure)
            tell(figure)
        if decodes:
            paths[precision] = decoding_path(ours)
    count = sum(weight.numel() for weight in model.parameters())
    return Bench(name, count, weights, tuple(figures), _about(), paths)


def _decoding(ours: Transformer, other: Any, precision: str, plan: BenchPlan) -> Iterator[Figure]:
    sides = {OURS: writer(ours), **({} if other is None else {PEER: other_writer(other)})}
    room = ours.limit or max(plan.prompts) + plan.new
    prompts = _fitting(plan.prompts, room - 1)
    new = min(plan.new, room - prompts[0])
    for batch in plan.batches:
        rows = _ids(ours, batch, prompts[0])
        times = in_turns({name: partial(run, rows, new) for name, run in sides.items()}, plan.repeats)
        read = _bytes_of(ours, decoding=True) + ours.state_bytes(prompts[0] + new // 2, batch)
        limit = batch / reading_seconds(read)
        for name, duration in times.items():
            value, own_limit = batch * new / duration.best, limit if name == OURS else None
            yield Figure(name, precision, DECODE, batch, prompts[0], value, own_limit)
    for prompt in prompts:
        rows = _ids(ours, 1, prompt)
        times = in_turns({name: partial(run, rows, 1) for name, run in sides.items()}, plan.repeats)
        for name, duration in times.items():
            yield Figure(name, precision, FIRST, 1, prompt, duration.best)


def _reading(ours: Transformer, other: Any, precision: str, plan: BenchPlan) -> Iterator[Figure]:
    sides = {OURS: reader(ours), **({} if other is None else {PEER: other_reader(other)})}
    fixed = ours.spec.frontend.num_positions
    for length in (fixed,) if fixed is not None else _fitting(plan.prompts, ours.limit or max(plan.prompts)):
        for batch in plan.batches:
            values = ours.frontend.random(batch, length, torch.Generator().manual_seed(0)).values
            times = in_turns({name: partial(run, values) for name, run in sides.items()}, plan.repeats)
            for name, duration in times.items():
                yield Figure(name, precision, FORWARD, batch, length, batch / duration.best)


def _fitting(lengths: Sequence[int], most: int) -> list[int]:
    """Return the ``lengths`` up to ``most``, or [``most``] if all are longer."""
    return [length for length in lengths if length <= most] or [most]


def _ids(model: Transformer, rows: int, length: int) -> list[list[int]]:
    return model.frontend.random(rows, length, torch.Generator().manual_seed(rows)).values.tolist()


def _bytes_of(model: Transformer, decoding: bool = False) -> int:
    """Count the bytes of the weights, each tensor once. ``decoding``: omit an embedding table of which a step only
    reads a few rows.
    """
    tied = getattr(model.head, "tied", False)
    left_out = set[int]() if tied or not decoding else {id(tensor) for tensor in _table_of(model)}
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.nbytes for key, tensor in tensors.items() if key not in left_out)


def _table_of(model: Transformer) -> list[torch.Tensor]:
    """Return the tensors of the token embeddings: one tensor, several if they are quantised, none for a model without
    tokens.
    """
    table: Any = model.frontend.table
    if table is None or isinstance(table, torch.Tensor):
        return [] if table is None else [table]
    return [*table.parameters(), *table.buffers()]


def _about() -> dict[str, str]:
    """Return machine, versions and date as text."""
    system = f"{platform.system()} {platform.release()}"
    return {
        "machine": f"{processor_name()}, {torch.get_num_threads()} threads used, {system}",
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in ("qkv", "torch"))
        + f", Python {platform.python_version()}",
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }
