"""View of training: the same measures at every checkpoint that a run keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from qkv.lens.inspection.packing import ArrayBlock
from qkv.lens.inspection.subject import Subject
from qkv.lens.views.damage import Damage
from qkv.lens.views.head_roles import ROLES, HeadRole, head_roles
from qkv.lens.views.over_checkpoints import OverCheckpoints, over_checkpoints
from qkv.models.transformer import Transformer
from qkv.runs.storage.folder import SPEC
from qkv.system.errors import UserError

THRESHOLD = 0.4
"""Lowest score of a role, as in ``head_roles``."""
_FEWEST = 2


def over_time(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Losses, probability of the answer, and scores of the roles of each head, at every checkpoint that the run keeps.

    data: steps (S); lines, values (S) by name; names (R), roles; heads (H); scores, an array (R, H, S); reached, the
    first step at which a head has the score of a role, and the head.
    """
    folder = subject.run.folder
    if not (folder / SPEC).exists():
        raise UserError("only a run that was trained here keeps checkpoints of its training")
    heads, target = dict[str, HeadRole](), subject.target if subject.classes else 0

    def probe(model: Transformer) -> dict[str, float]:
        here = subject.with_model(model)
        with here.edited():
            return {**_lines(here, target), **_scores(here, heads)}

    history = over_checkpoints(subject.run, probe)
    if len(history.steps) < _FEWEST:
        raise UserError(
            f"{folder} keeps one checkpoint; set training.checkpoints.every and training.checkpoints.keep before it is "
            "trained, to see its training"
        )
    names = [role for role in ROLES if any(name.endswith(f"\t{role}") for name in history.values)]
    rows = [[history.values.get(f"{key}\t{role}", (math.nan,) * len(history.steps)) for key in heads] for role in names]
    return {
        "steps": list(history.steps),
        "lines": {name: [_finite(v) for v in line] for name, line in history.values.items() if "\t" not in name},
        "on": "random tokens that are repeated once" if subject.repeats_tokens else "this input",
        "names": names,
        "heads": [
            {"path": head.path, "stack": head.stack, "layer": head.layer, "head": head.head} for head in heads.values()
        ],
        "scores": block.add(torch.tensor(rows)),
        "threshold": THRESHOLD,
        "reached": {role: _reached(history, heads, role) for role in names},
    }


def _lines(subject: Subject, target: int) -> dict[str, float]:
    """Return the numbers of one checkpoint by name: losses of a language model, probability of the answer."""
    model, read, lines = subject.run.model, subject.read, dict[str, float]()
    spec = model.spec
    if spec.decodes and spec.head.predicts_tokens and model.vocab_size is not None:
        lines["loss on this input, nats"] = float(Damage(model, read.signal, read.source).before[read.row])
        if subject.repeats_tokens:
            rows, _, start = subject.scored
            lines["loss on repeated tokens, nats"] = Damage(model, rows, start=start).loss
    if subject.classes:
        lines["probability of the answer"] = float(subject.output.softmax(-1)[target])
    return lines


def _scores(subject: Subject, heads: dict[str, HeadRole]) -> dict[str, float]:
    """Return the scores of one checkpoint by head and role; note the heads in ``heads``."""
    rows, source, _ = subject.scored
    scores = dict[str, float]()
    for head in head_roles(subject.run.model, rows, source, subject.delimiters, ablate=0):
        key = f"{head.path}\t{head.call}\t{head.head}"
        heads[key] = head
        scores |= {f"{key}\t{role}": score for role, score in head.scores.items()}
    return scores


def _reached(history: OverCheckpoints, heads: Mapping[str, HeadRole], role: str) -> dict[str, Any] | None:
    """Return the first step at which a head has the score, with the head that is highest at the end of those."""
    steps = dict[str, int]()
    for key in heads:
        name = f"{key}\t{role}"
        step = history.first_step(name, THRESHOLD) if name in history.values else None
        if step is not None:
            steps[key] = step
    if not steps:
        return None
    first = min(steps.values())
    best = max((key for key in steps if steps[key] == first), key=lambda key: history.values[f"{key}\t{role}"][-1])
    return {"step": first, "layer": heads[best].layer, "head": heads[best].head, "path": heads[best].path}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
