"""Views of an inspected input: each computes what one part of the page shows, as plain data and arrays of a block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from qkv.lens.inspection.firing import firing
from qkv.lens.inspection.over_time import over_time
from qkv.lens.inspection.packing import ArrayBlock
from qkv.lens.inspection.subject import Subject
from qkv.lens.views.attention_maps import attention_maps
from qkv.lens.views.head_roles import ROLES, head_roles
from qkv.lens.views.hidden_similarity import hidden_similarity
from qkv.lens.views.importance import importance
from qkv.lens.views.influence_maps import MOST_EXACT, PROBES, influence_maps
from qkv.lens.views.logit_attribution import logit_attribution
from qkv.lens.views.logit_lens import logit_lens
from qkv.lens.views.places import BranchPlace, list_branches
from qkv.system.errors import UserError

_NAMED = 50
"""Number of the most probable answers that are named."""
_TAKEN_OUT = 3
"""Number of heads of each role that are taken out to measure the rise of the loss."""
_STEPS = 2048
"""Maximum number of gradients of integrated gradients; the page prints the completeness error that is left."""
_LARGE, _PASSES = 2e9, 5e11
"""Number of parameters times positions above which a model has fewer gradients, in fp32, and fewer positions that are
taken out: as many passes as give this number together, and at least ``_FEWEST``.
"""
_FEWEST = 32
_PRODUCTS = 3e12
"""Floating-point operations of influence, above which it is estimated by ``_PROBES`` in some of the branches."""
_PROBES, _BRANCHES = 2, 3
"""Number of probes above that, and the fewest branches."""

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
    return {"maps": [{**_place(each), "weights": block.add_shares(_row(subject, each, each.weights))} for each in maps]}


def influence(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Norm of the Jacobian block of each branch that mixes positions, as one matrix a branch; of some branches, evenly
    over the depth, if all would take too long.
    """
    read = subject.read
    every, chosen, probes = _influential(subject)
    maps = influence_maps(subject.run.model, read.signal, read.source, probes, chosen)
    return {
        "note": ""
        if len(chosen) == len(every)
        else f"{len(chosen)} of {len(every)} branches, since all would take too long; in Python, influence_maps "
        'measures any: branches=["blocks.3.branches.0"].',
        "maps": [
            {**_place(each), "probes": each.probes, "weights": block.add_shares(_row(subject, each, each.norms)[None])}
            for each in maps
        ],
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
    """Scores of each head for each role, and the rise of the loss without the heads that score highest."""
    rows, source, start = subject.scored
    heads = head_roles(subject.run.model, rows, source, subject.delimiters, _TAKEN_OUT, start)
    return {
        "names": list(ROLES),
        "on": "random tokens that are repeated once" if subject.repeats_tokens else "this input",
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
    count = len(read.sides["model"].labels)
    size = subject.run.num_parameters * count
    passes = None if size <= _LARGE else max(_FEWEST, int(_PASSES / size))
    how: dict[str, Any] = {"most": _STEPS} if passes is None else {"most": passes, "precision": torch.float32}
    target, place = subject.target, subject.position
    over = importance(model, read.signal, target, place, "mean", read.source, ablated=passes, **how)
    measures = {"ablation": over.ablation, "integrated gradients": over.gradients.values}
    paths = {"rollout": over.rollout, "flow": over.flow}
    measures |= {name: values for name, values in paths.items() if values is not None}
    return {
        "measures": {
            name: [_finite(v) for v in values[read.row, :count].tolist()] for name, values in measures.items()
        },
        "agreement": {name: _finite(float(values[read.row])) for name, values in over.agreement.items()},
        "baseline": over.gradients.baseline,
        "error": float(over.gradients.error[read.row]),
        "steps": over.gradients.steps,
        "ablated": None if passes is None or passes >= count else passes,
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
    "neurons": firing,
    "checkpoints": over_time,
}
"""Functions of the views by name, in the order of the page."""


def _influential(subject: Subject) -> tuple[list[str], list[str], int | None]:
    """Return (branches that mix positions, those whose influence is measured, number of probes; None: the default)."""
    model, sides = subject.run.model, subject.read.sides
    branches = [b for _, b in list_branches(model, lambda b: b.spec.mixes or b.spec.reads_memory)]
    names, count = [str(b.name) for b in branches], max(len(side.labels) for side in sides.values())
    products = 4.0 * count**2 * sum(weights.numel() for b in branches for weights in b.parameters())
    if not names or count * model.spec.width <= MOST_EXACT or products * PROBES <= _PRODUCTS:
        return names, names or ["*"], None
    most = max(_BRANCHES, int(len(names) * _PRODUCTS / (products * _PROBES)))
    if most >= len(names):
        return names, names, _PROBES
    return names, [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)], _PROBES


def _place(place: BranchPlace) -> dict[str, Any]:
    return {
        "path": place.path,
        "stack": place.stack,
        "layer": place.layer,
        "kind": place.kind,
        "part": place.part,
        "call": place.call,
    }


def _row(subject: Subject, place: BranchPlace, values: Tensor) -> Tensor:
    """Return one row (…, N, M) without its padding; in windows and segments the first axis counts those of all rows,
    and the first is shown.
    """
    row, sides = subject.read.row, subject.read.sides
    values = values[row if row < len(values) else 0]
    if place.stack not in sides:
        return values
    count, square = len(sides[place.stack].labels), values.shape[-1] == values.shape[-2]
    if place.kind == "cross":
        return values[..., :count, : len(sides["encoder"].labels)] if "encoder" in sides else values[..., :count, :]
    return values[..., :count, :count] if square else values[..., :count, :]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
