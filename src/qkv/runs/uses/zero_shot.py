"""Zero-shot classification: labels that the model was not trained on, by entailment (Yin et al. 2019).

A model of natural language inference reads the text and a hypothesis for each label, such as "This example is sport."
With the logits z of entailment and c of contradiction,

    p(label) = exp z(label) / Σ_l exp z(l)                                 one label is right
    p(label) = exp z(label) / (exp z(label) + exp c(label))                each label is right or not (``multi_label``)

A model that matches an input with texts, such as CLIP (Radford et al. 2021), scores the input with a text for each
label. With several texts for a label ("a photo of a {}.", "a drawing of a {}."), their mean vector is compared, of
length 1. With the scores s of labels, p(label) = exp s(label) / Σ_l exp s(l), or the sigmoid of s (``multi_label``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from qkv.runs.run import Run, task_of
from qkv.system.errors import UserError
from qkv.tasks.labels.pooled import PooledTask
from qkv.tasks.multimodal.matching import MatchingTask

HYPOTHESIS = "This example is {}."


@dataclass(frozen=True)
class ZeroShot:
    """Labels to choose from. ``hypothesis``: sentence with ``{}`` for the label, or several separated by ``|``;
    default: ``HYPOTHESIS``, and the label itself for a model that matches. ``multi_label``: judge each label by itself.
    Raises ``UserError`` for a hypothesis without ``{}``, and for labels that are empty or repeated.
    """

    labels: tuple[str, ...]
    hypothesis: str | None = None
    multi_label: bool = False

    def __post_init__(self) -> None:
        if self.hypothesis is not None and "{}" not in self.hypothesis:
            raise UserError(f"hypothesis: {self.hypothesis!r} given; it should have {{}} for the label")
        if not self.labels or not all(label.strip() for label in self.labels):
            raise UserError("labels: give at least one, and none that is empty")
        twice = next((label for i, label in enumerate(self.labels) if label in self.labels[:i]), None)
        if twice is not None:
            raise UserError(f"labels: {twice!r} is given twice")

    def pairs(self, text: str) -> list[dict[str, str]]:
        """Build the inputs for one text: the text and the hypothesis of each label."""
        hypothesis = self.hypothesis or HYPOTHESIS
        return [{"text": text, "pair": hypothesis.replace("{}", label)} for label in self.labels]

    def predict(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Classify ``rows`` into the labels, by entailment or by matching; return the answer of each row, its
        probability and those of all labels. Raises ``UserError`` for a model that does neither, and for rows that have
        more than one input.
        """
        task = task_of(run)
        if task.couples_rows:
            return self._matched(run, cast("MatchingTask", task), rows)
        entailment, contradiction = inference_classes(run)
        extra = next((name for row in rows for name in row if name != "text"), None)
        if extra is not None:
            raise UserError(f"zero-shot labels are for single texts; leave the input {extra!r} out")
        assert isinstance(task, PooledTask)
        pairs = [pair for row in rows for pair in self.pairs(row["text"])]
        logits, notes = task.scored(run.model, run.vocabulary, run.recipe, pairs)
        logits = logits.double().view(len(rows), len(self.labels), -1)
        if self.multi_label:
            chances = logits[..., [contradiction, entailment]].softmax(-1)[..., 1]
        else:
            chances = logits[..., entailment].softmax(-1)
        answers = [_answer(self.labels, each) for each in chances]
        return [answer | notes[i * len(self.labels)] for i, answer in enumerate(answers)]

    def _matched(self, run: Run, task: MatchingTask, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Classify the inputs of ``rows`` by their scores with the texts of the labels."""
        text, head = run.recipe.data.text_input, run.model.spec.head
        if self.multi_label and getattr(head, "objective", "sigmoid") != "sigmoid":
            raise UserError(
                f"multi_label: {run.folder} was trained to choose among texts (softmax), so no score of a label by "
                "itself is a probability; leave it out, or train with model.head.objective=sigmoid"
            )
        if text is None:
            raise UserError(f"labels: {run.folder} matches {' and '.join(task.names)}, and reads no texts of labels")
        name = next(name for name in task.names if name != text)
        extra = next((other for row in rows for other in row if other != name), None)
        if extra is not None:
            raise UserError(f"labels are for single values of {name!r}; leave the input {extra!r} out")
        forms = [form for form in (self.hypothesis or "{}").split("|") if form]
        texts = [form.replace("{}", label) for label in self.labels for form in forms]
        embed = partial(task.vectors, run.model, run.vocabulary, run.recipe)
        of_labels = normalize(embed(text, texts).view(len(self.labels), len(forms), -1).mean(1), dim=-1)
        scores = task.scores(run.model, {name: embed(name, [row[name] for row in rows]), text: of_labels}).double()
        chances = scores.sigmoid() if self.multi_label else scores.softmax(-1)
        return [_answer(self.labels, each) for each in chances]


def _answer(labels: Sequence[str], chances: Tensor) -> dict[str, Any]:
    best = int(torch.argmax(chances))
    probabilities = dict(zip(labels, chances.tolist(), strict=True))
    return {"answer": labels[best], "probability": probabilities[labels[best]], "probabilities": probabilities}


def inference_classes(run: Run) -> tuple[int, int]:
    """Return the classes (entailment, contradiction) of a model of natural language inference; without a class for
    contradiction, the first class that is not entailment. Raises ``UserError`` for another model.
    """
    task, labels = task_of(run), [label.lower() for label in run.vocabulary.labels]
    entailment = next((i for i, label in enumerate(labels) if label.startswith("entail")), None)
    if entailment is None or not isinstance(task, PooledTask) or "pair" not in task.may_ask:
        classes = ", ".join(run.vocabulary.labels[:5]) or "no classes"
        raise UserError(
            "zero-shot labels need a model of natural language inference, which reads pairs of texts and has a class "
            f"'entailment'; {run.folder} has {classes}"
        )
    rest = [i for i in range(len(labels)) if i != entailment]
    if not rest:
        raise UserError(f"{run.folder} has the class {run.vocabulary.labels[entailment]!r} only")
    return entailment, next((i for i in rest if labels[i].startswith("contra")), rest[0])
