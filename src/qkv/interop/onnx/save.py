"""Export of a model as an ONNX file with symbolic sizes, which onnxruntime then compares with the model."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.interop.check import TOLERANCE
from qkv.interop.files.places import PREPROCESSOR
from qkv.interop.images import written_processor
from qkv.interop.onnx.graph import BATCH, LENGTH, MASK, TARGET_LENGTH, Alone, TensorFunction, TextPooling, graph_of
from qkv.interop.save import save_tokenizer, write_json
from qkv.interop.sentence import EmbeddingSettings
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.spec.branches import Branch as BranchSpec
from qkv.spec.model import Model
from qkv.spec.processors import Processor
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

FILE, LABELS = "model.onnx", "labels.json"
TRACED = {BATCH: 3, LENGTH: 7, TARGET_LENGTH: 5}
"""Sizes at which a model is traced. None of them is 0 or 1, because the tracer treats these sizes as constants."""
COMPARED = ({BATCH: 1, LENGTH: 5, TARGET_LENGTH: 2}, {BATCH: 4, LENGTH: 11, TARGET_LENGTH: 6})
"""Sizes at which the outputs of the file and of the model are compared."""


def save_onnx(model: Transformer, folder: Path, pooled: TextPooling | None = None) -> str:
    """Write ``model`` to ``model.onnx`` in ``folder`` and compare both; return a sentence on its inputs and outputs.

    The inputs of a model of text are ids and mask (B, N) for any B and N; the input of other models is values (B, …)
    for any B. ``pooled``: output embeddings instead of the outputs of the head. Every operation is written as its
    reference equation in ONNX operators. Raises ``UserError`` for a model that cannot be traced for all sizes, or whose
    file computes other outputs.
    """
    missing = next((name for name in ("onnx", "onnxscript", "onnxruntime") if not importlib.util.find_spec(name)), None)
    if missing is not None:
        raise UserError(f"the library {missing} is not installed: pip install 'qkv[onnx]'")
    graph = graph_of(model, pooled).eval()
    with evaluating(model), torch.no_grad(), _quietly():
        program = _traced(graph, model)
        folder.mkdir(parents=True, exist_ok=True)
        _write(program, graph, folder / FILE)
        worst = _difference(graph, _session(folder / FILE))
    if not worst <= TOLERANCE:
        raise UserError(
            f"onnxruntime computes other outputs from the file (they differ by {worst:.2g} of the largest), so nothing "
            "was written; please report it with the spec of the model"
        )
    return (
        f"{', '.join(graph.axes)} -> {graph.output}, for any {' and '.join(_names(graph))}; compared with onnxruntime: "
        f"differs by {worst:.1e} of the largest output"
    )


def pooled_as(settings: EmbeddingSettings) -> TextPooling:
    """Convert the pooling settings of a sentence-transformers folder.

    Raises ``UserError`` if the pooling excludes the tokens of the prompt, and for modules behind it.
    """
    if settings.projections:
        raise UserError("this model has modules behind its pooling, such as Dense, which have no ONNX form in qkv yet")
    if not settings.pools_prompt:
        raise UserError("this model does not pool the prompt's tokens, whose number is no input of an ONNX file")
    return TextPooling(settings.poolings, settings.normalise)


def save_beside(
    folder: Path,
    spec: Model,
    tokenizer: Tokenizer | None,
    labels: Sequence[str],
    temperature: float,
    processor: Processor | None,
) -> None:
    """Write the files that a program needs beside ``model.onnx``: tokenizer, image processor settings, class names.

    labels.json contains the class names in the order of the logits, and the temperature that logits are divided by
    before a softmax.
    """
    if tokenizer is not None:
        save_tokenizer(folder, tokenizer, spec)
    images = written_processor(processor)
    if images is not None:
        write_json(folder / PREPROCESSOR, images)
    if labels:
        write_json(folder / LABELS, {"labels": list(labels), "temperature": temperature})


def _names(graph: TensorFunction) -> list[str]:
    """Return the names of the variable sizes, in order."""
    return list(dict.fromkeys(name for axes in graph.axes.values() for name in axes.values()))


def _fitting(graph: TensorFunction, sizes: dict[str, int]) -> dict[str, int]:
    """Reduce ``sizes`` to the limits of the graph."""
    return {name: min(size, graph.limits.get(name, size)) for name, size in sizes.items()}


def _traced(graph: TensorFunction, model: Transformer) -> torch.export.ExportedProgram:
    """Trace ``graph`` with symbolic sizes. Raises ``UserError`` that names the branch that cannot be traced."""
    sizes = _fitting(graph, TRACED)
    symbols = {name: torch.export.Dim(name, max=graph.limits.get(name)) for name in _names(graph) if sizes[name] > 1}
    axes = tuple(
        {axis: symbols[name] for axis, name in named.items() if name in symbols} for named in graph.axes.values()
    )
    inputs = graph.sample(sizes, torch.Generator().manual_seed(0))
    try:
        return torch.export.export(graph, tuple(inputs.values()), dynamic_shapes=axes, strict=False)
    except UserError:
        raise
    except Exception as error:  # the tracer raises errors of many types
        raise UserError(_reason(model, error)) from None


def _write(program: torch.export.ExportedProgram, graph: TensorFunction, file: Path) -> None:
    """Write ``program`` as ONNX operators. Raises ``UserError`` if one of its operators has no ONNX counterpart."""
    try:
        exported = torch.onnx.export(program, input_names=list(graph.axes), output_names=[graph.output], verbose=False)
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise UserError(f"the model cannot be written as ONNX operators: {_first_line(cause)}") from None
    assert exported is not None
    exported.save(file)


def _session(file: Path) -> Any:
    """Open the file with onnxruntime. Raises ``UserError`` if it has no kernel for one of the operators."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # each cause has a different exception type, without a common base
        raise UserError(f"onnxruntime cannot run the model: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def _reason(model: Transformer, error: Exception) -> str:
    """Return an error message that names the first branch that cannot be traced alone.

    If there is none, return the first line of the tracer's message.
    """
    tried = set[BranchSpec]()
    for branch in model.every_branch:
        if branch.spec.reads_memory or branch.spec in tried:
            continue
        tried.add(branch.spec)
        if not _is_traceable(Alone(branch), branch.width):
            return (
                f"model.{branch.name}: {branch.spec.kind!r} has no ONNX form for rows of any length, because its steps "
                "depend on the number of positions or on values; --format hf writes a folder for transformers"
            )
    return f"the model cannot be exported to ONNX for rows of any length: {_first_line(error)}"


def _is_traceable(branch: nn.Module, width: int) -> bool:
    rows, length = torch.export.Dim(BATCH), torch.export.Dim(LENGTH)
    try:
        torch.export.export(
            branch,
            (torch.zeros(TRACED[BATCH], TRACED[LENGTH], width), torch.tensor([7, 5, 3])),
            dynamic_shapes={"x": {0: rows, 1: length}, "lengths": {0: rows}},
            strict=False,
        )
    except Exception:  # the tracer raises errors of many types
        return False
    return True


def _difference(graph: TensorFunction, session: Any) -> float:
    """Return the largest difference between outputs of the file and the model at the sizes ``COMPARED``.

    The difference is at unpadded positions, and relative to the largest output.
    """
    worst = 0.0
    for seed, sizes in enumerate(COMPARED):
        inputs = graph.sample(_fitting(graph, sizes), torch.Generator().manual_seed(seed + 1))
        output = graph(*inputs.values())
        (answer,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        worst = max(worst, _relative(output, np.asarray(answer), inputs.get(MASK)))
    return worst


def _relative(ours: Tensor, answer: np.ndarray, mask: Tensor | None) -> float:
    output = torch.from_numpy(answer)
    if ours.shape != output.shape:
        return float("inf")
    if mask is not None and ours.dim() == 3 and ours.shape[1] == mask.shape[1]:
        ours, output = ours[mask.bool()], output[mask.bool()]
    return float((ours - output).abs().max() / ours.abs().max().clamp(min=1e-30))


@contextmanager
def _quietly() -> Iterator[None]:
    """Context manager: silence the exporter's notes on its operators."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
