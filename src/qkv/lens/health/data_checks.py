"""Checks of a run's data: repeated rows, other-out rows that occur in training, padding."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from qkv.data.corpora.corpus import TRAIN
from qkv.data.records.duplicates import input_keys
from qkv.lens.health.evidence import Evidence
from qkv.lens.health.verdict import Verdict
from qkv.runs.evaluation import held_out
from qkv.tasks.dataset import Dataset, ExampleDataset, TextDataset, leaves
from qkv.tasks.task import Task

REPEATED = 0.1
"""Maximum share of training rows that repeat an earlier one."""
LEAKED = 0.01
"""Maximum share of other-out rows whose input occurs in training: more can raise a metric by more than a point."""
PADDED = 0.5
"""Maximum share of padding in the positions of training batches."""
WINDOW = 50
"""Number of tokens of a piece of text that is looked for in the training text (Lee et al. 2022)."""
_MOST_TOKENS = 20_000_000
"""Maximum number of training tokens that are searched."""
_SHOWN = 8


def check_duplicates(e: Evidence) -> Verdict | None:
    """Count the training rows that repeat the input of an earlier one."""
    if not isinstance(e.dataset, ExampleDataset) or e.task is None or TRAIN not in e.dataset.splits:
        return None
    keys = _keys(e.dataset, e.task, TRAIN)
    seen, copies = set[bytes](), list[int]()
    for i, key in enumerate(keys):
        if key in seen:
            copies.append(i)
        seen.add(key)
    share = len(copies) / max(1, len(keys))
    ill = share > REPEATED
    source = "Lee et al. 2022: 3 to 14 % of the documents of web corpora are near copies"
    sentence = (
        f"{len(copies):,} of {len(keys):,} training rows, {100 * share:.3g} %, repeat the input of an earlier row; "
        f"more than {100 * REPEATED:g} % is more than in web corpora (Lee et al. 2022)"
    )
    cure = f"remove the copies from {e.recipe.data.source}, and train again: {e.cure()}" if ill else ""
    places = tuple(str(i + 1) for i in copies[:_SHOWN])
    return Verdict("duplicates", "warning" if ill else "good", sentence, share, REPEATED, source, cure, places)


def check_leaks(e: Evidence) -> Verdict | None:
    """Find other-out rows, or pieces of other-out text, that occur in the training split."""
    if e.dataset is None or e.task is None or TRAIN not in e.dataset.splits:
        return None
    by_split = {split: _leaks(e.dataset, e.task, split) for split in held_out(e.dataset)}
    counted = {split: pair for split, pair in by_split.items() if pair is not None and pair[1]}
    if not counted:
        return None
    worst = max(counted, key=lambda split: len(counted[split][0]) / counted[split][1])
    places, total = counted[worst]
    share = len(places) / total
    ill = share > LEAKED
    unit = "rows" if isinstance(e.dataset, ExampleDataset) else f"pieces of {WINDOW} tokens"
    sentence = (
        f"{len(places):,} of {total:,} {unit} of the {worst} split, {100 * share:.3g} %, occur in the training split; "
        f"more than {100 * LEAKED:g} % can raise a metric by more than a point"
    )
    file = getattr(e.recipe.data, worst, None) or e.recipe.data.source
    cure = f"remove them from {file}, and evaluate again: qkv evaluate {e.folder}" if ill else ""
    source = "Barz & Denzler 2020: 3 and 10 % of the test images of CIFAR are copies"
    numbers = tuple(str(i + 1) for i in places[:_SHOWN])
    return Verdict("leaks", "alarm" if ill else "good", sentence, share, LEAKED, source, cure, numbers)


def check_padding(e: Evidence) -> Verdict | None:
    """Compare the share of padding in training batches with ``PADDED``."""
    if e.dataset is None:
        return None
    share = e.dataset.padding()
    ill = share > PADDED
    sentence = (
        f"{100 * share:.3g} % of the positions of training batches are padding; above {100 * PADDED:g} % most of the "
        "time is spent on padding (Krell et al. 2021)"
    )
    buckets = "length_buckets" if e.recipe.data.batching.kind != "length_buckets" else "token_buckets"
    cure = e.cure(f"data.batching={buckets}") if ill else ""
    source = "Krell et al. 2021: half of the positions of BERT's Wikipedia batches"
    return Verdict("padding", "warning" if ill else "good", sentence, share, PADDED, source, cure)


def _leaks(dataset: Dataset, task: Task, split: str) -> tuple[list[int], int] | None:
    """Return (indices of the leaked rows, number of rows) of a split; None if rows cannot be compared."""
    if isinstance(dataset, ExampleDataset):
        train = set(_keys(dataset, task, TRAIN))
        keys = _keys(dataset, task, split)
        return [i for i, key in enumerate(keys) if key in train], len(keys)
    if isinstance(dataset, TextDataset):
        train, other = dataset.corpus.splits[TRAIN].ids[:_MOST_TOKENS], dataset.corpus.splits[split].ids
        return _pieces_in(np.asarray(other), np.asarray(train))
    return None


def _keys(dataset: ExampleDataset, task: Task, split: str) -> list[bytes]:
    """Return a key of the inputs of each row: of its texts, or else of its encoded value."""
    rows = dataset.records[split]
    keys = input_keys(rows, getattr(task, "roles", ()))
    if keys:
        return keys
    return [_digest(getattr(example.fields, "value", example.fields)) for example in dataset.examples[split]]


def _digest(value: object) -> bytes:
    total = hashlib.blake2b(digest_size=16)
    for leaf in leaves(value):
        total.update(leaf.tobytes() if isinstance(leaf, np.ndarray) else repr(leaf).encode())
    return total.digest()


def _pieces_in(other: np.ndarray, train: np.ndarray) -> tuple[list[int], int]:
    """Return (indices, number) of the consecutive pieces of ``other`` (N) that occur anywhere in ``train`` (M).

    Pieces are compared by polynomial hashes of 64 bits, Σ x_i r^i mod 2^64.
    """
    count = len(other) // WINDOW
    if not count or len(train) < WINDOW:
        return [], count
    hashes = _hashes(other[: count * WINDOW])[::WINDOW]
    hashes_of_train = np.unique(_hashes(train))
    place = np.searchsorted(hashes_of_train, hashes).clip(0, len(hashes_of_train) - 1)
    return np.flatnonzero(hashes_of_train[place] == hashes).tolist(), count


def _hashes(ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the hash of each window of ``WINDOW`` consecutive ids."""
    x = (np.asarray(ids, np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    total = np.zeros(len(x) - WINDOW + 1, np.uint64)
    for i in range(WINDOW):
        total = total * np.uint64(0xD6E8FEB86659FD93) + x[i : len(x) - WINDOW + 1 + i]
    return total
