"""Fixtures: a file with the inputs, inner values and outputs of a model, for tests of other engines."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from qkv.generation import naive
from qkv.generation.text import prompt_ids
from qkv.layers.linear.quantized import QuantizedTable
from qkv.layers.observable import list_points
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.selection.choices import references
from qkv.runs.run import Run
from qkv.runs.storage.files import clear_errors
from qkv.spec.files.plain import plain
from qkv.spec.generation import Generation
from qkv.system.errors import UserError
from qkv.system.files import new_file

FORMAT = "qkv fixtures 1"
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
"""Precisions in which fixtures are computed."""


class RandomRows(NamedTuple):
    """Random inputs: ``rows`` rows of ``length`` positions, drawn with ``seed``."""

    rows: int = 2
    length: int = 16
    seed: int = 0


RANDOM_ROWS = RandomRows()
"""Default sizes of random inputs."""


class Fixtures(NamedTuple):
    """Written file, with the number and the bytes of its tensors."""

    file: Path
    count: int
    nbytes: int


@torch.no_grad()
def write_fixtures(
    run: Run,
    file: str | Path,
    texts: Sequence[str] = (),
    points: Sequence[str] = ("*",),
    random: RandomRows = RANDOM_ROWS,
    new: int = 8,
    dtype: str = "fp32",
) -> Fixtures:
    """Write inputs, the values at ``points`` and the outputs of one forward pass to a safetensors file.

    Everything is computed on the CPU in ``dtype`` ("fp32" or "fp64"), part by part, every operation by its reference
    implementation. Names of the tensors:

        input.values      ids, or other values of the front end, (B, N, …); input.lengths (B) if rows are padded
        source.values     the same for the encoder
        point.<path>      value at a point, such as point.blocks.0.branches.0.weights; its later calls end in #1, #2 …
        output            outputs of the model
        generated         greedy continuation of each row, (B, new), by causal language models

    The metadata holds JSON texts: ``format``, ``model`` (the spec), ``points`` (meaning and shape by path), ``dtype``,
    ``texts``, ``seed``. ``texts``: rows of the model, or of its encoder if it has one; default: ``random`` rows.
    ``points``: names, paths or patterns, see ``qkv.layers.tap.Tap``; default: all. Raises ``UserError`` for a point
    that the model does not have, for texts if the model reads none, for quantised weights in fp64, and for a file that
    cannot be written.
    """
    if dtype not in DTYPES:
        raise UserError(f"fixtures are written in {' or '.join(DTYPES)}; {dtype!r} given")
    if dtype != "fp32" and any(isinstance(module, QuantizedTable) for module in run.model.modules()):
        raise UserError(f"{run.folder} has quantised weights, which compute in fp32; use fp32, or the original run")
    model = copy.deepcopy(run.model).to(device="cpu", dtype=DTYPES[dtype])
    signal, source = _inputs(run, model, texts, random)
    tap = Recorder(*points)
    with references(), evaluating(model):
        memory = None if source is None else model.encode(source, tap)
        output, _ = model(signal, memory=memory, tap=tap)
        generated = _generated(model, signal, new)
    tensors = {**_tensors("input", signal), **_tensors("source", source), **_values(tap), "output": output}
    tensors |= {} if generated is None else {"generated": generated}
    metadata = {"model": plain(model.spec), "points": _descriptions(model, tap), "dtype": dtype}
    return _write(Path(file), tensors, {**metadata, "texts": list(texts), "seed": random.seed})


def _inputs(run: Run, model: Transformer, texts: Sequence[str], random: RandomRows) -> tuple[Signal, Signal | None]:
    """Return the signals of the front end and of the encoder, None without one."""
    generator, reader = torch.Generator().manual_seed(random.seed), model.encoder or model
    if texts and (reader.vocab_size is None or not run.vocabulary.has_text):
        raise UserError(f"{run.folder} reads no text; leave the texts out, and random inputs are written")
    rows = len(texts) or random.rows
    drawn = model.frontend.random(rows, random.length, generator)
    if not texts:
        return drawn, model.encoder and model.encoder.frontend.random(rows, random.length, generator)
    read = Signal.of_rows([prompt_ids(run.vocabulary.tokenizer, text) for text in texts])
    return (drawn, read) if model.encoder else (read, None)


def _generated(model: Transformer, signal: Signal, new: int) -> Tensor | None:
    """Continue each row greedily by ``new`` tokens; None for other models than causal language models."""
    spec = model.spec
    if not spec.decodes or spec.encoder or spec.head.kind != "language_model" or signal.inputs or new == 0:
        return None
    greedy, counts = Generation(max_new_tokens=new, temperature=0.0), signal.lengths
    rows = [row[: int(counts[i])] if counts is not None else row for i, row in enumerate(signal.values)]
    return torch.tensor([naive.generate(model, row.tolist(), greedy) for row in rows])


def _tensors(name: str, value: Any) -> dict[str, Tensor]:
    """List the tensors of a signal by path, such as ``input.values`` or ``input.graph.edges``."""
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, dict):
        parts: Iterator[tuple[str, Any]] = iter(value.items())
    elif is_dataclass(value):
        parts = ((field.name, getattr(value, field.name)) for field in fields(value))
    else:
        return {}
    return {path: tensor for part, inner in parts for path, tensor in _tensors(f"{name}.{part}", inner).items()}


def _values(tap: Recorder) -> dict[str, Tensor]:
    """Name the values that a tap has recorded."""
    return {f"point.{at.path}" + f"#{at.call}" * (at.call > 0): value for at, value in tap.records.items()}


def _descriptions(model: Transformer, tap: Recorder) -> dict[str, str]:
    """Return the meaning and shape of each point that has values."""
    paths = {at.path for at in tap.records}
    return {path: about for path, about in list_points(model).items() if path in paths}


def _write(file: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> Fixtures:
    header = {"format": FORMAT, **{name: json.dumps(value) for name, value in metadata.items()}}
    copies = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    with clear_errors(str(file)), new_file(file) as partial:
        save_file(copies, partial, header)
    return Fixtures(file, len(copies), sum(tensor.nbytes for tensor in copies.values()))
