"""TF-IDF weights of hashed n-grams, as sparse matrices, for the fit of a wide path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from qkv.data.features.ngrams import Bag
from qkv.models.wide import AllInputs, Ngrams

_ROWS = 4096
"""Number of rows whose TF-IDF weights are computed at once."""


def count_features(bags: Iterable[Bag], columns: int) -> Any:
    """Count the features of rows; return a sparse matrix (rows, columns)."""
    from scipy.sparse import csr_matrix

    rows = [*bags]
    ids, counts = (np.concatenate(side) for side in zip(*rows, strict=True))
    return csr_matrix((counts, ids, np.cumsum([0, *(len(bag.ids) for bag in rows)])), shape=(len(rows), columns))


def fit_idf(wide: Ngrams | AllInputs, counts: Any) -> np.ndarray:
    """Set the idf weights of ``wide`` from the counts of the training rows; return in how many rows each feature
    occurs.
    """
    occurring = np.bincount(counts.indices, minlength=len(wide.idf))
    wide.idf.copy_(torch.from_numpy(np.log((1 + counts.shape[0]) / (1 + occurring)) + 1))
    return occurring


def tf_idf(wide: Ngrams | AllInputs, counts: Any) -> Any:
    """Return the TF-IDF weights of counts, a sparse matrix of the same shape, by the formula of the path."""
    weighted, ends = counts.copy(), counts.indptr
    for begin in range(0, counts.shape[0], _ROWS):
        stop = min(begin + _ROWS, counts.shape[0])
        rows = [torch.from_numpy(counts.indices[ends[i] : ends[i + 1]]).long() for i in range(begin, stop)]
        amounts = [torch.from_numpy(counts.data[ends[i] : ends[i + 1]]) for i in range(begin, stop)]
        bag, amount = (pad_sequence(side, batch_first=True) for side in (rows, amounts))
        weighted.data[ends[begin] : ends[stop]] = wide.weights(bag, amount)[amount > 0].numpy()
    return weighted
