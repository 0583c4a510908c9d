"""Base class of tasks whose run may have a wide path beside its model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.transformer import Transformer
from qkv.tasks.baselines.feature_baselines import FeatureTable
from qkv.tasks.baselines.linear import Solver
from qkv.tasks.task import Observed, Task


class JoinedTask(Task):
    """Base class of tasks whose outputs can be those of a model and of a wide path (linear in simple features)."""

    @abstractmethod
    def outputs_at_targets(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> tuple[Tensor, Tensor]:
        """Run the model; return (outputs (M, C), targets) of the M rows, nodes or edges of a batch with a target."""

    @abstractmethod
    def observed(self, model: Transformer, outputs: Tensor, batch: Batch) -> Observed:
        """Compute the loss of a batch with ``outputs`` (M, C), and its data for metrics."""

    @abstractmethod
    def targets(self, dataset: Any, split: str) -> np.ndarray:
        """Return the targets of a split in the units of the outputs, one per row."""

    @abstractmethod
    def baselines(self, dataset: Any, split: str) -> dict[str, float]:
        """Compute the metrics on ``split`` of simple models fitted to the training split; may be empty."""

    @abstractmethod
    def simple(self, vocabulary: Vocabulary) -> str:
        """Return the name of the wide path's features, as in the metric names of ``baselines``, such as "pixels"."""

    @property
    def singles(self) -> dict[str, int]:
        """Name -> column of each dense feature that is also evaluated as a predictor on its own; by default empty."""
        return {}

    @abstractmethod
    def simple_features(self, dataset: Any, split: str, also: str | None = None) -> FeatureTable | None:
        """Compute the features of the wide path for the training rows and for ``split``; None if there are none.

        ``also``: split whose rows are added to the training rows; used for tables of examples only.
        """

    @abstractmethod
    def solver(self, num_outputs: int) -> Solver:
        """Return the kind of linear model that predicts ``num_outputs`` outputs of a row from its simple features."""
