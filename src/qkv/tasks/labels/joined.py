"""Base class of tasks whose model may have a wide path."""

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
    """Base class of tasks whose outputs can be a sum of those of a network and of a linear model of simple features."""

    @abstractmethod
    def asked(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> tuple[Tensor, Tensor]:
        """(outputs (M, C), targets) of the M rows, nodes or edges of a batch that have a target."""

    @abstractmethod
    def observed(self, model: Transformer, found: Tensor, batch: Batch) -> Observed:
        """Loss and data for metrics of a batch with the outputs ``found`` (M, C)."""

    @abstractmethod
    def targets(self, dataset: Any, split: str) -> np.ndarray:
        """Targets of a split in the units of the outputs, one per row."""

    @abstractmethod
    def baselines(self, dataset: Any, split: str) -> dict[str, float]:
        """Metrics of simple models on ``split``, fitted to the training split; empty if there is none."""

    @abstractmethod
    def simple(self, vocabulary: Vocabulary) -> str:
        """Name of the features that the wide path reads, as in the names of ``baselines``, such as "pixels"."""

    @property
    def singles(self) -> dict[str, int]:
        """Columns, by name, of dense features that compete alone with the model; by default none."""
        return {}

    @abstractmethod
    def simple_features(self, dataset: Any, split: str, also: str | None = None) -> FeatureTable | None:
        """Features of the wide path, of the training rows, with those of the split ``also``, and of ``split``; None if
        there are none. ``also`` is given for tables of examples only.
        """

    @abstractmethod
    def solver(self, num_outputs: int) -> Solver:
        """Kind of linear model that predicts ``num_outputs`` outputs of a row from its simple features."""
