"""Views of an inspected input: each computes what one part of the page shows, as plain data and arrays of a block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from qkv.lens.capture.edits import ablate
from qkv.lens.capture.regions import Region
from qkv.lens.inspection.packing import ArrayBlock
from qkv.lens.inspection.reading import ReadInput
from qkv.lens.views.attention_maps import attention_maps
from qkv.lens.views.head_roles import ROLES, head_roles
from qkv.lens.views.hidden_similarity import hidden_similarity
from qkv.lens.views.importance import importance
from qkv.lens.views.influence_maps import influence_maps
from qkv.lens.views.logit_attribution import logit_attribution
from qkv.lens.views.logit_lens import logit_lens
from qkv.lens.views.places import BranchPlace
from qkv.models.evaluating import evaluating
from qkv.ops.at_least_single import at_least_single
from qkv.runs.chats.pieces import pieces
from qkv.runs.run import Run
from qkv.system.errors import UserError

_NAMED = 50
"""Number of the most probable answers that are named."""
_TAKEN_OUT = 3
"""Number of heads of each role that are taken out to measure the rise of the loss."""
_STEPS = 2048
"""Maximum number of gradients of integrated gradients; the page prints the completeness error that is left."""
_STEPS_OF_LARGE = 256
_LARGE = 2e9
"""Number of parameters times positions above which a model has ``_STEPS_OF_LARGE``."""
_DELIMITERS = ".,;:!?\n"


@dataclass(frozen=True)
class AblatedHead:
    """AblatedHead of a branch: ``path`` of the branch, such as "blocks.3.branches.0", and number of the head."""

    path: str
    number: int


@dataclass(frozen=True)
class Subject:
    """Model and input that are looked at, with the heads that are taken out of the model: their outputs are replaced by
    their mean over the positions.
    """

    run: Run
    read: ReadInput
    ablated: tuple[AblatedHead, ...] = ()

    @cached_property
    def output(self) -> Tensor:
        """Output of the model for the answer that is explained: logits (C) of classes, or values."""
        model, read = self.run.model, self.read
        with torch.no_grad(), evaluating(model), self.edited():
            memory = None if read.source is None else model.encode(read.source)
            output = at_least_single(model(read.signal, memory=memory)[0])[read.row]
        return output[self.position] if output.dim() == 2 else output

    def edited(self) -> AbstractContextManager[Any]:
        """Take the heads out of all calls of the model inside."""
        edits = [ablate(Region(f"{head.path}.head_outputs", heads=[head.number]), "positions") for head in self.ablated]
        return self.run.model.tapped(*edits) if edits else nullcontext()

    @property
    def position(self) -> int:
        """Position whose prediction is explained, counted from 0."""
        count = len(self.read.sides["model"].labels)
        return self.read.position % count

    @property
    def classes(self) -> bool:
        """True if the outputs are logits of classes, of which one is right."""
        return self.run.model.spec.head.serves in ("language_model", "tokens", "classification")

    @cached_property
    def target(self) -> int:
        """Class with the highest output, of those that have a name."""
        return int(self.output[: self.named].argmax())

    @property
    def named(self) -> int:
        """Number of classes that have a name; a published model may have rows of its table without a token."""
        labels, tokenizer = self.run.vocabulary.labels, self.run.tokenizer
        if self.run.model.spec.head.serves == "classification" and labels:
            return len(labels)
        return len(self.output) if tokenizer.absent else min(len(self.output), tokenizer.vocab_size)

    def name_classes(self, ids: list[int]) -> list[str]:
        """Return the names of classes: labels, or texts of tokens."""
        labels, tokenizer = self.run.vocabulary.labels, self.run.tokenizer
        if self.run.model.spec.head.serves == "classification" and labels:
            return [labels[i] if i < len(labels) else str(i) for i in ids]
        return [str(i) for i in ids] if tokenizer.absent else [pieces(tokenizer, [i])[0] for i in ids]


View = Callable[[Subject, ArrayBlock], Mapping[str, Any]]


def answers(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Outputs for the answer: all logits, and the names of the most probable classes; or the values of other heads."""
    output = subject.output
    if not subject.classes:
        return {"values": output.flatten()[:_NAMED].tolist()}
    logits = output[: subject.named]
    best = logits.topk(min(_NAMED, len(logits))).indices.tolist()
    return {
        "logits": block.add(logits),
        "ids": best,
        "names": subject.name_classes(best),
        "target": subject.name_classes([subject.target])[0],
        "position": subject.position,
    }


def attention(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Attention weights of all heads."""
    read = subject.read
    maps = attention_maps(subject.run.model, read.signal, read.source)
    if not maps:
        raise UserError("the model has no attention weights; influence shows every kind of mixing")
    return {"maps": [{**_place(each), "weights": block.add_shares(_row(each.weights, read.row))} for each in maps]}


def influence(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Norm of the Jacobian block of each branch that mixes positions, as one matrix a branch."""
    read = subject.read
    maps = influence_maps(subject.run.model, read.signal, read.source)
    return {
        "maps": [
            {**_place(each), "probes": each.probes, "weights": block.add_shares(_row(each.norms, read.row)[None])}
            for each in maps
        ]
    }


def lens(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Most probable classes at every point of the residual stream."""
    read = subject.read
    seen = logit_lens(subject.run.model, read.signal, 5, read.source)
    points = [f"{point.layer} {point.part}" if point.layer >= 0 else point.part for point in seen.points]
    if seen.ids is None or seen.probabilities is None or seen.entropy is None or seen.divergence is None:
        raise UserError("the outputs of this model are no classes, so the logit lens names none")
    count = 1 if seen.ids.shape[2] == 1 else len(read.sides["model"].labels)
    ids = seen.ids[:, read.row, :count].tolist()
    classes = sorted({i for point in ids for place in point for i in place})
    names = dict(zip(classes, subject.name_classes(classes), strict=True))
    return {
        "points": points,
        "names": [[[names[i] for i in place] for place in point] for point in ids],
        "probabilities": block.add(seen.probabilities[:, read.row, :count]),
        "entropy": block.add(seen.entropy[:, read.row, :count]),
        "divergence": block.add(seen.divergence[:, read.row, :count]),
        "pooled": seen.ids.shape[2] == 1,
        "note": seen.note,
    }


def attribution(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Parts of the logit of the answer: embedding, each head, what else each branch adds."""
    if not subject.classes:
        raise UserError("the outputs of this model are no logits of classes; parts of a logit are not defined")
    read = subject.read
    terms = logit_attribution(subject.run.model, read.signal, [subject.target], subject.position, read.source)
    values = terms.values[:, read.row, 0].tolist()
    parts = [
        {"path": part.path, "layer": part.layer, "part": part.part, "head": part.head, "value": value}
        for part, value in zip(terms.parts, values, strict=True)
        if value
    ]
    return {"parts": parts, "logit": float(terms.logits[read.row, 0]), "error": terms.error, "capped": terms.capped}


def roles(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Scores of the role of each head, on repeated random tokens, and the rise of the loss without the highest ones."""
    model, tokenizer = subject.run.model, subject.run.vocabulary.tokenizer
    marks = [] if tokenizer.absent else [i for i in range(tokenizer.vocab_size) if _delimits(pieces(tokenizer, [i])[0])]
    text = model.vocab_size is not None and model.encoder is None
    read = subject.read
    heads = head_roles(model, None if text else read.signal, None if text else read.source, marks, ablate=_TAKEN_OUT)
    return {
        "names": list(ROLES),
        "on": "random tokens that are repeated once" if text else "this input",
        "heads": [
            {
                "path": head.path,
                "stack": head.stack,
                "layer": head.layer,
                "head": head.head,
                "scores": {name: _finite(score) for name, score in head.scores.items()},
                "role": head.role,
                "rise": head.rise,
                "interval": head.interval,
            }
            for head in heads
        ],
    }


def words(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Importance of each position for the answer by four measures."""
    read, model = subject.read, subject.run.model
    large = subject.run.num_parameters * len(read.sides["model"].labels) > _LARGE
    steps = _STEPS_OF_LARGE if large else _STEPS
    over = importance(model, read.signal, subject.target, subject.position, "mean", read.source, steps)
    measures = {"ablation": over.ablation, "integrated gradients": over.gradients.values}
    paths = {"rollout": over.rollout, "flow": over.flow}
    measures |= {name: values for name, values in paths.items() if values is not None}
    return {
        "measures": {name: [_finite(v) for v in values[read.row].tolist()] for name, values in measures.items()},
        "agreement": {name: _finite(float(values[read.row])) for name, values in over.agreement.items()},
        "baseline": over.gradients.baseline,
        "error": float(over.gradients.error[read.row]),
        "steps": over.gradients.steps,
        "sentence": over.sentence,
        "classes": subject.classes,
    }


def hidden(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Cosines between the hidden states of positions at each point, and between points."""
    read = subject.read
    seen = hidden_similarity(subject.run.model, read.signal, read.source)
    count = len(read.sides["model"].labels)
    return {
        "points": [f"{p.layer} {p.part}" if p.layer >= 0 else p.part for p in seen.points],
        "cosines": block.add(seen.cosines[:, read.row, :count, :count]),
        "depth": block.add(seen.depth[read.row]),
        "mean": [_finite(v) for v in seen.mean[:, read.row].tolist()],
        "norms": [_finite(v) for v in seen.norms[:, read.row].tolist()],
    }


VIEWS: Mapping[str, View] = {
    "answers": answers,
    "attention": attention,
    "influence": influence,
    "lens": lens,
    "attribution": attribution,
    "roles": roles,
    "words": words,
    "hidden": hidden,
}
"""Functions of the views by name, in the order of the page."""


def _place(place: BranchPlace) -> dict[str, Any]:
    return {
        "path": place.path,
        "stack": place.stack,
        "layer": place.layer,
        "kind": place.kind,
        "part": place.part,
        "call": place.call,
    }


def _row(values: Tensor, row: int) -> Tensor:
    """Return one row; in windows and segments the first axis counts those of all rows, and the first is shown."""
    return values[row if row < len(values) else 0]


def _delimits(text: str) -> bool:
    return text.strip(" ") in tuple(_DELIMITERS) if text.strip(" ") else False


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
