"""Suspected wrong labels of held-out rows, by confident learning (Northcutt et al. 2021)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.lens.health.evidence import Evidence
from qkv.lens.health.verdict import Verdict
from qkv.runs.evaluation import held_out
from qkv.runs.inference.calibration import scored
from qkv.runs.run import task_of
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.metrics.calibration import probabilities

WRONG = 0.033
"""Maximum share of wrong labels: the mean over ten test sets in use (Northcutt, Athalye & Mueller 2021)."""
FLAT, WEAK = 0.75, 0.25
"""Minimum ratio of the errors among the surer half of the rows to all errors, from which labels are suspected: errors
of a model are rare where it is sure, and those of labels are not. A model with more than a quarter of errors judges no
labels.
"""
_FEWEST = 60
_SHOWN = 8


class Suspects(NamedTuple):
    """Rows whose labels contradict a model.

    places: indices of the rows, the most suspected first.   sure: share of errors in the half of the rows with the
    highest maximum probability.   all_errors: share of errors in all rows.   low: ``sure`` minus one standard error.
    """

    places: list[int]
    sure: float
    all_errors: float
    low: float


def suspects(chances: np.ndarray, truth: np.ndarray) -> Suspects:
    """Find rows whose label is probably wrong.

    chances (N, C): probabilities from a model that was not trained on these rows. truth (N): labels.

    A row is a confident example of a class if the probability of this class is at least its mean over the rows with
    this label (confident joint). A row is suspected if it is a confident example of a class, and its label is neither
    the most probable of these classes nor the most probable of all classes. Suspects are in ascending order of the
    normalised margin: p(label) minus the largest other probability.
    """
    classes = chances.shape[1]
    means = np.array([chances[truth == c, c].mean() if (truth == c).any() else 2.0 for c in range(classes)])
    confident = np.where(chances >= means, chances, -1.0)
    best = confident.argmax(1)
    suspected = (confident.max(1) >= 0) & (best != truth) & (chances.argmax(1) != truth)
    of_label = np.take_along_axis(chances, truth[:, None], 1)[:, 0]
    masked = chances.copy()
    masked[np.arange(len(truth)), truth] = -1
    margin = of_label - masked.max(1)
    order = np.argsort(margin, kind="stable")
    wrong = chances.argmax(1) != truth
    half = np.argsort(-chances.max(1), kind="stable")[: max(1, len(truth) // 2)]
    sure = float(wrong[half].mean())
    error = float(np.sqrt(max(sure * (1 - sure), 1 / len(half)) / len(half)))
    return Suspects([int(i) for i in order if suspected[i]], sure, float(wrong.mean()), sure - error)


def check_labels(e: Evidence) -> Verdict | None:
    """Find suspected wrong labels on held-out rows."""
    if e.run is None or not isinstance(e.dataset, ExampleDataset) or not e.dataset.vocabulary.labels:
        return None
    task, names, chances, truth = task_of(e.run), list[tuple[str, int]](), list[np.ndarray](), list[np.ndarray]()
    for split in held_out(e.dataset):
        outputs = scored(e.run.model, task, e.dataset, split, e.recipe)
        if outputs is None or outputs.truth.ndim != 1 or outputs.logits.ndim != 2:
            return None
        order = e.dataset.order(split)
        if len(order) != len(outputs.truth):
            continue  # a split so large that it was sampled
        names += [(split, i) for i in order]
        chances.append(probabilities(outputs.logits, task.temperature))
        truth.append(outputs.truth)
    if len(names) < _FEWEST:
        return None
    return _verdict(e, names, suspects(np.concatenate(chances), np.concatenate(truth)))


def _verdict(e: Evidence, names: list[tuple[str, int]], result: Suspects) -> Verdict:
    places = tuple(f"{names[i][0]} row {names[i][1] + 1:,}" for i in result.places[:_SHOWN])
    flat, weak = result.sure >= FLAT * result.all_errors, result.all_errors > WEAK
    ill = result.low > WRONG and flat and not weak
    first = f", first {places[0]}" if places else ""
    sentence = (
        f"{len(result.places):,} of {len(names):,} held-out rows have suspected labels{first}; the labels contradict "
        f"the model in {100 * result.sure:.3g} % of the half of the rows where it is surest, and in "
        f"{100 * result.all_errors:.3g} % of all; more than {100 * WRONG:g} % of the surer half are more than in test "
        "sets in use (Northcutt et al. 2021)"
    )
    if weak:
        sentence += f"; with more than {100 * WEAK:g} % of errors, the model is too weak to judge them"
    cure = f"check these rows: {', '.join(places)}; then train again: {e.cure()}" if ill else ""
    source = "Northcutt et al. 2021: 3.3 % of the labels of ten test sets are wrong"
    return Verdict("labels", "warning" if ill else "good", sentence, result.sure, WRONG, source, cure, places)
