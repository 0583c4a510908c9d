"""Evaluation of a language model on multiple-choice questions: it answers with the option of the largest log
probability.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from qkv.generation.decode.score import OptionScore, score_by, softmax
from qkv.generation.few_shot import LABEL, FewShot
from qkv.runs.inference.ask import MAX_OPTIONS, FewShotRows, accuracy_of, baseline, options_of
from qkv.spec.generation import Measure
from qkv.system.errors import UserError
from qkv.tasks.task import Evaluation

NAMES: dict[Measure, str] = {
    "sum": "accuracy",
    "token": "accuracy_per_token",
    "character": "accuracy_per_character",
}
"""Name of the metric for each normalisation of an option's log probability: in total, per token, per character."""
_SHOWN = 20
"""Number of wrong answers in the report."""


def evaluate_choices(
    prompt: FewShot, questions: FewShotRows, progress: Callable[[int], object] = lambda count: None
) -> Evaluation:
    """Evaluate ``prompt`` on labelled questions. Each question has its own options; if the table has none, the options
    are all labels.

    ``accuracy``, and its variants per token and per character, are the shares of questions whose label has the largest
    log probability in total, per token and per character. ``loss`` is -log p(label) with p = softmax(log p(option)), in
    nats. ``baseline`` is the accuracy of a baseline that does not read the questions. progress: called with the number
    of questions in each batch. Raises ``UserError``.
    """
    began = time.perf_counter()
    options, labels = _options(questions)
    prompt = prompt.fitted(questions.rows)
    scores = prompt.scores(questions.rows, options, progress)
    right = {by: _right(by, options, scores, labels) for by in get_args(Measure)}
    chances = [softmax([score.sum for score in question_scores]) for question_scores in scores]
    without, count = baseline(questions.rows, options), len(labels)
    figures = {NAMES[by]: sum(hits) / count for by, hits in right.items()}
    figures["loss"] = (
        sum(_loss(question_scores, label) for question_scores, label in zip(scores, labels, strict=True)) / count
    )
    figures |= {"baseline": without.value, "targets": float(count), "seconds": time.perf_counter() - began}
    notes = [f"accuracy {accuracy_of(sum(right['sum']), count)} of {count:,} questions; baseline: {without.name}"]
    if max(map(sum, right.values())) / count <= without.value:
        notes.append("no accuracy is above the baseline")
    return Evaluation(figures, _mistakes(questions.rows, options, chances, labels), [*notes, *questions.notes])


def _options(questions: FewShotRows) -> tuple[Sequence[tuple[str, ...]], list[int]]:
    """Return (options of each question, by default the labels of all questions; index of its label among them). Raises
    ``UserError``.
    """
    options = questions.options
    if options is None:
        common = options_of(questions.rows)
        if not common:
            raise UserError(
                f"the questions have more than {MAX_OPTIONS} different labels and no column of answer options; "
                "add a column called options, choices or endings, with a list in each row"
            )
        options = [common] * len(questions.rows)
    places = []
    for number, (row, question_options) in enumerate(zip(questions.rows, options, strict=True), 1):
        if len(question_options) < 2:
            raise UserError(f"question {number} has {len(question_options)} option; a choice needs at least two")
        places.append(question_options.index(row[LABEL]))
    return options, places


def _right(
    by: Measure,
    options: Sequence[Sequence[str]],
    scores: Sequence[Sequence[OptionScore]],
    labels: Sequence[int],
) -> list[bool]:
    """Return for each question True if its label has the largest score; among equal scores, the first option is
    taken.
    """
    hits = []
    for question_options, judged, label in zip(options, scores, labels, strict=True):
        values = [score_by(by, option, score) for option, score in zip(question_options, judged, strict=True)]
        hits.append(max(range(len(values)), key=values.__getitem__) == label)
    return hits


def _loss(scores: Sequence[OptionScore], label: int) -> float:
    """Return -log softmax(log p)_label, in nats."""
    largest = max(score.sum for score in scores)
    return largest + math.log(sum(math.exp(score.sum - largest) for score in scores)) - scores[label].sum


def _mistakes(
    rows: Sequence[Mapping[str, str]],
    options: Sequence[Sequence[str]],
    chances: Sequence[Sequence[float]],
    labels: Sequence[int],
) -> list[dict[str, object]]:
    """Build the report section of the wrong answers with the largest probability, by total log probability."""
    wrong = []
    for row, question_options, probabilities, label in zip(rows, options, chances, labels, strict=True):
        best = max(range(len(question_options)), key=probabilities.__getitem__)
        if best != label:
            question = " · ".join(value for name, value in row.items() if name != LABEL)
            wrong.append([question, question_options[label], question_options[best], probabilities[best]])
    wrong.sort(key=lambda row: -row[-1])
    columns = ["question", "label", "answer", "probability"]
    table = {"kind": "examples", "title": "Most certain mistakes", "columns": columns, "rows": wrong[:_SHOWN]}
    return [table] if wrong else []
