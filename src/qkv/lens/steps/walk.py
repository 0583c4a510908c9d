"""Walk through a forward pass: every equation from tokens to the next token, or to the label, with its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.generation.text import prompt_ids
from qkv.layers.linear.quantized import matrix_of
from qkv.layers.norms import Norm
from qkv.layers.observable import list_points
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.lens.record import record
from qkv.lens.steps.branches import POINTS, SlotPass, branch_steps, norm_step
from qkv.lens.steps.equations import difference, number_text, vector_text
from qkv.models.block import Block, Parallel, PostNorm, PreNorm, ResidualPostNorm, Sandwich
from qkv.models.evaluating import evaluating
from qkv.models.heads.head import LanguageModelHead
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.report.theory.equations import EquationStep
from qkv.runs.run import Run
from qkv.system.errors import UserError
from qkv.tasks.inputs import TextReader

FEATURES, ANSWERS = 4, 5
"""Default numbers shown of a vector, and of the most probable answers."""


@dataclass(frozen=True)
class Walk:
    """Equations of one text. tokens: of the row.   position: whose numbers are shown.   answers: (token or label,
    probability), the most probable first.
    """

    tokens: Sequence[str]
    position: int
    steps: Sequence[EquationStep]
    answers: Sequence[tuple[str, float]]

    @property
    def error(self) -> float:
        """Largest difference between a result computed again from the values above it and the model's own."""
        return max(step.error for step in self.steps)


def walk_through(run: Run, text: str, position: int | None = None, features: int = FEATURES) -> Walk:
    """Return every equation of a forward pass over ``text`` with its numbers, read by a tap at one position.

    position: default: the last, whose vector gives the next token; for other heads the first.   features: numbers shown
    of a vector.   Equations of norms, softmax attention and feed-forward branches are written out; other branches show
    their input and output. Every result is computed again from the values above it, see ``Walk.error``.

    Raises ``UserError`` for models that are not one stack of blocks over a text with logits as output, and for a
    position outside of the row.
    """
    model, signal = run.model, text_signal(run, text)
    ids: list[int] = signal.values[0].tolist()
    at = _checked_position(position, len(ids), model.spec.head.predicts_tokens)
    names = _names(run, ids)
    paths = [path for path in list_points(model) if path.rpartition(".")[2] in POINTS and path.startswith("blocks.")]
    with torch.no_grad(), evaluating(model):
        tap = record(model, signal, "frontend.output", "norm.output", "head.output", *paths)
        steps = [_tokens(ids, names, at), _embedding(model, signal, tap, names[at], at, features)]
        steps += _layers(model, signal, tap, names, at, features)
        last, answers = _answer(run, tap, at, features)
    return Walk(names, at, [*steps, *last], answers)


def text_signal(run: Run, text: str) -> Signal:
    """Return the signal of one text, framed as the run's task frames it; see ``walk_through`` for refusals."""
    spec, kind = run.model.spec, run.recipe.task.kind
    if spec.encoder is not None or spec.latents is not None or spec.segmentation is not None:
        raise UserError(f"{run.folder}: the walk is for models of one stack, without an encoder, latents or segments")
    if spec.frontend.kind != "text" or not run.vocabulary.has_text:
        raise UserError(f"{run.folder} reads {spec.frontend.kind!r}; the walk is for models that read tokens of a text")
    tokenizer = run.vocabulary.tokenizer
    if spec.head.predicts_tokens:
        return Signal.of_rows([prompt_ids(tokenizer, text)], run.model.device)
    if spec.head.kind not in ("classification", "labels", "regression"):
        raise UserError(f"the task {kind!r} is not walked through; allowed: language models, classifiers, regression")
    reader = TextReader(run.recipe, tokenizer)
    row, _ = reader.noted({"text": text}, None)
    signal, _ = reader.signal([row])
    if len(signal.values) > 1:
        raise UserError("the text is read in several windows; give a shorter text")
    return signal


def _names(run: Run, ids: Sequence[int]) -> list[str]:
    """Return the text of each token; spaces are visible."""
    return [run.vocabulary.tokenizer.decode([index]).replace(" ", "␣") for index in ids]


def _checked_position(position: int | None, count: int, last: bool) -> int:
    if position is None:
        return count - 1 if last else 0
    if not -count <= position < count:
        raise UserError(f"position {position} given; the text has {count} tokens, so allowed: {-count} to {count - 1}")
    return position % count


def _tokens(ids: Sequence[int], names: Sequence[str], position: int) -> EquationStep:
    marks = ["here" if i == position else "" for i in range(len(ids))]
    rows = [list(row) for row in zip(range(len(ids)), names, ids, marks, strict=True)]
    return EquationStep("input", "tokens", "text → ids", columns=["position", "token", "id", ""], rows=rows)


def _embedding(
    model: Transformer, signal: Signal, tap: Recorder, name: str, position: int, features: int
) -> EquationStep:
    frontend: Any = model.frontend
    spec = frontend.part
    x = at_least_single(tap["frontend.output"][0, position])
    token = at_least_single(frontend.token_vectors(signal)[0, position] * frontend.scale)
    lines = [(f"E[{name}]", vector_text(token, features))]
    if frontend.projection is None and spec.norm.identity and token.shape == x.shape:
        rest = x - token
        absent = not bool(rest.any())
        lines += [] if absent else [(f"p[{position}]", vector_text(rest, features))]
        formula = "x = E[id]" if absent else "x = E[id] + p[position]"
    else:
        formula = "x = front end(E[id], position)"
    return EquationStep("input", "embedding", formula, lines=[*lines, ("x", vector_text(x, features))])


def _layers(
    model: Transformer, signal: Signal, tap: Recorder, names: Sequence[str], position: int, features: int
) -> Iterator[EquationStep]:
    """Yield the equations of all blocks, in the order in which they run, and of the final norm."""
    calls, context = Counter[int](), model.embed(signal)[1]
    at, x = None, torch.empty(0)
    for layer, number in enumerate(model.walk):
        block = model.blocks[number]
        for slot in block.branches:  # type: ignore[union-attr]
            at = SlotPass(slot, layer, calls[number], tap, context, list(names), position, features)
            alone = block.spec.order != "parallel" or slot is block.branches[0]  # type: ignore[index,union-attr]
            x = at.here("residual_before") if alone else x  # parallel branches read what the first one reads
            yield from branch_steps(at, x, *_norms(block, slot))  # type: ignore[arg-type]
        calls[number] += 1
    if at is not None and not model.spec.norm.identity:
        step = norm_step(model.norm, at.here("residual_after"), at_least_single(tap["norm.output"][0, position]), at)
        yield EquationStep("output", "final norm", step.formula, step.lines, error=step.error)


def _norms(block: Block, slot: nn.Module) -> tuple[Norm | None, Norm | None]:
    """Return (norm of the branch's input, norm of its output or of the sum); None for the identity."""
    if block.spec.norm_of(list(block.branches).index(slot)).identity:
        return None, None
    if isinstance(slot, PostNorm | ResidualPostNorm):
        return None, slot.norm
    if isinstance(slot, Parallel):
        return block.norm if slot.norm is None else slot.norm, None
    assert isinstance(slot, PreNorm)
    return slot.norm, slot.norm_after if isinstance(slot, Sandwich) else None


def _answer(
    run: Run, tap: Recorder, position: int, features: int
) -> tuple[list[EquationStep], list[tuple[str, float]]]:
    """Return the equations of the head, and the most probable answers."""
    head, outputs = run.model.spec.head, at_least_single(tap["head.output"][0])
    if head.kind == "regression":
        values = [number_text(float(value)) for value in outputs.flatten()]
        return [EquationStep("output", "value", "y = head(x)", [("y", ", ".join(values))])], []
    logits = outputs[position] if head.predicts_tokens else outputs.flatten()
    several = head.kind == "labels"
    chances = logits.sigmoid() if several else logits.softmax(-1)
    best: list[int] = logits.topk(min(ANSWERS, logits.numel())).indices.tolist()
    labels = _names(run, best) if head.predicts_tokens else [run.vocabulary.labels[i] for i in best]
    exponents, total = (logits - logits.max()).exp(), float((logits - logits.max()).exp().sum())
    columns = ["token" if head.predicts_tokens else "label", "logit z", "exp(z − max)", "probability p"]
    rows = [
        [label, *map(number_text, (float(logits[i]), float(exponents[i]), float(chances[i])))]
        for label, i in zip(labels, best, strict=True)
    ]
    formula = "p = 1 / (1 + exp(−z))" if several else "p = softmax(z)"
    note = f"{logits.numel() - len(rows):,} more" if logits.numel() > len(rows) else ""
    error = 0.0 if several else difference(exponents / total, chances)
    lines = [] if several else [("Σ exp(z − max)", number_text(total))]
    steps = [_logits(run, tap, logits, best, labels, position, features)] if head.kind == "language_model" else []
    steps.append(EquationStep("output", "probabilities", formula, lines, columns, rows, note, error))
    return steps, [(label, float(chances[i])) for label, i in zip(labels, best, strict=True)]


def _logits(
    run: Run, tap: Recorder, logits: Tensor, best: Sequence[int], labels: Sequence[str], position: int, features: int
) -> EquationStep:
    """Return the equation of the logits of a language model's head."""
    head, x = run.model.head, at_least_single(tap["norm.output"][0, position])
    assert isinstance(head, LanguageModelHead)
    table: Any = matrix_of(head.weight)
    plain = head.transform is None and head.cap is None and head.scale == 1.0 and isinstance(table, Tensor)
    names = [*zip(labels, best, strict=True)]
    rows = [
        [label, *([vector_text(table[i], features)] if plain else []), number_text(float(logits[i]))]
        for label, i in names
    ]
    again = at_least_single(head(tap["norm.output"][:, position : position + 1], None)[0, 0])
    formula = ("z = x · w" + (" + b" if head.bias is not None else "")) if plain else "z = head(x)"
    columns, error = ["token", *(["w"] if plain else []), "logit z"], difference(again, logits)
    return EquationStep("output", "logits", formula, [("x", vector_text(x, features))], columns, rows, error=error)
