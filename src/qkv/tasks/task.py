"""Base class of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from torch import Tensor

from qkv.data.vocabulary import Vocabulary
from qkv.layers.context import Memories, Memory
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.wide import LinearPath, WidePath
from qkv.spec import tokenizers
from qkv.spec.data import Data
from qkv.spec.generation import Generation
from qkv.spec.heads import Head
from qkv.spec.processors import Processor
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset, Scale

__all__ = ["Evaluation", "Observed", "Scale", "Task", "Totals"]


class Defaults(NamedTuple):
    """Settings of a task for recipes that are chosen automatically for a table.

    reads: roles of the columns that the model reads.   writes: role of the text that it generates.
    """

    reads: tuple[str, ...]
    writes: str = ""
    """Role of the generated text; empty if the model generates none."""
    tokenizer: Callable[[int], tokenizers.Tokenizer] = lambda ids: tokenizers.BPE(vocab_size=ids)
    """Function from a vocabulary size to the spec of the tokenizer."""
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Candidate context lengths."""
    fields: Mapping[str, Any] = MappingProxyType({})
    """Fields of the task that differ from their defaults."""
    target: str = ""
    """Role of the target of tasks with one output per row, whose runs have a wide path; empty for others."""
    best: str = "loss"
    """Metric that selects the best weights of a run without a wide path.

    The loss can rise while accuracy still improves. With a wide path, the loss selects the weights.
    """
    words: bool = False
    """True if the model reads words as features (front end ``words``), without a tokenizer."""
    head: Head | None = None
    """Head of the model; None: the head that the task requires, with its default settings."""
    epochs: int = 40
    """Maximum number of epochs; early stopping on the validation split usually ends training sooner."""


def lowercase(ids: int) -> tokenizers.Tokenizer:
    """Return a lower-casing WordPiece tokenizer of ``ids`` tokens, for tasks in which case matters little."""
    return tokenizers.WordPiece(vocab_size=ids)


class Observed(NamedTuple):
    """Results of the model on one batch.

    loss: summed over the targets.   count: number of targets.   outcomes: data for metrics, one entry per row.
    """

    loss: Tensor
    count: int
    outcomes: list[Any]


@dataclass
class Totals:
    """Results summed over batches: loss and number of targets, and all outcomes in order."""

    loss: float = 0.0
    count: int = 0
    outcomes: list[Any] = field(default_factory=list)

    def add(self, seen: Observed) -> None:
        """Add the results of a batch. Losses are summed in double precision: a split can have millions of targets."""
        self.loss += seen.loss.item()
        self.count += seen.count
        self.outcomes += seen.outcomes


class TablePrediction(NamedTuple):
    """Predictions from a whole table.

    rows: plain data, each row with an ``answer``.   places: columns that identify what a row predicts, such as the
    time.   notes: messages for the user.
    """

    rows: list[dict[str, Any]]
    places: tuple[str, ...]
    notes: list[str]


@dataclass(frozen=True)
class Evaluation:
    """Final evaluation of a trained model.

    figures: metrics by name.   sections: tables and charts as plain data, drawn by ``qkv.report.sections``. notes:
    messages for the user.
    """

    figures: dict[str, float]
    sections: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks."""
        from qkv.report.fragment import evaluation_fragment

        return evaluation_fragment("Evaluation", {"value": {"figures": self.figures, "notes": self.notes}})


class Task(ABC):
    """Base class of tasks: they read the data and define the loss, the metrics and readable predictions."""

    loss_unit: str = "nats a token"
    """Unit of the loss, for charts and tables."""
    evaluates: bool = False
    """True if the final evaluation reports more than the metrics of each validation during training."""
    asks: tuple[str, ...] = ()
    """Names of the required inputs of ``predict``; a single text is the value of the first."""
    may_ask: tuple[str, ...] = ()
    """Names of the optional inputs of ``predict``."""
    example: ClassVar[str] = "…"
    """Example value of the first input, for commands shown to the user."""
    writes_from_source: ClassVar[bool] = False
    """True if the model generates a target from a source text, see ``source_ids``, and does not continue a text."""
    transcribes: bool = False
    """True if the model writes the text of a sound."""
    finds_entities: ClassVar[bool] = False
    """True if it can group the tokens of a text to entities."""
    finds_spans: ClassVar[bool] = False
    """True if it answers by a span of a context, or by none."""
    chats: ClassVar[bool] = False
    """True if the model answers messages of a chat."""
    predicts_tables: ClassVar[bool] = False
    """True if predictions are for a whole table, such as the future of a series, not for each row."""
    couples_rows: ClassVar[bool] = False
    """True if the loss compares the rows of a batch with each other, see ``row_outputs``."""
    adds_rows: ClassVar[bool] = True
    """True if the loss of a batch is the sum of the losses of its rows, so that processes can divide the rows."""
    row_extras: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors with one entry per row in the extras of training batches."""
    generates_images: ClassVar[bool] = False
    """True if the model generates images, see ``images``."""
    temperature: float = 1.0
    """Softmax temperature: divisor of label logits, fitted after training (``tasks/metrics/calibration``)."""
    next_command: str = ""
    """Shell command that uses a run, with its folder as ``{run}``; empty: it follows from the inputs of the task."""
    wide: WidePath | None = None
    """Wide path of the run, whose outputs are joined with those of the model in evaluation; None if it has none."""
    processor: Processor | None = None
    """Spec of the processor of the input; None for text."""
    metric: ClassVar[str] = "loss"
    """Main metric of the evaluation, by which the model is compared with baselines."""
    automatic: ClassVar[Defaults | None] = None
    """Settings for recipes that are chosen automatically for a table; None if the task has none."""

    def __init__(self, spec: Any):
        self.spec = spec

    def reading(self, data: Data) -> Self:
        """Configure the task for the inputs of ``data`` (named inputs, one processor's, or text); return the task."""
        self.processor = data.processor
        return self

    @abstractmethod
    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Dataset:
        """Read the data of a recipe and build its batches.

        ``vocabulary``: vocabulary of an existing run; None: build it from the training split.
        """

    def open_other(self, recipe: Recipe, vocabulary: Vocabulary, source: str, training_data: Dataset | None) -> Dataset:
        """Read the whole file ``source`` as the split ``OTHER``, to evaluate a trained model on it.

        Baselines are fitted on ``training_data``, the run's own data, if it is available. Raises ``UserError`` if the
        task reads no files.
        """
        raise UserError(f"the task {self.spec.kind!r} generates its own data and reads no file; omit --data")

    def sized(self, recipe: Recipe) -> Recipe:
        """Return a copy of the recipe with all sizes from the data, such as vocabulary size and number of classes."""
        return self.open(recipe).recipe

    def outputs(
        self, model: Any, signal: Signal, tap: Tap | None = None, memory: Memory | Memories | None = None
    ) -> Tensor:
        """Run the model; return the outputs of its head, in evaluation joined with those of the wide path.

        All outputs that the loss, the metrics and the predictions of a task with a wide path use are computed here.
        """
        if self.wide is None or model.training:
            return model(signal, tap=tap, memory=memory)[0]
        assert isinstance(self.wide, LinearPath)
        return self.wide.joined(model, signal, tap, memory)

    @abstractmethod
    def summed_loss(self, model: Any, batch: Any, tap: Tap | None = None) -> Tensor:
        """Compute the training loss, summed over the batch's targets. ``tap`` observes the intermediate values."""

    def row_outputs(self, model: Any, batch: Any, tap: Tap | None = None) -> Tensor:
        """Compute the outputs of the rows of a batch, from which the head computes the loss. For tasks with
        ``couples_rows``.
        """
        raise NotImplementedError

    def observe(self, model: Any, batch: Any) -> Observed:
        """Compute the reported loss of a batch and its data for metrics; runs in evaluation mode without gradients."""
        return Observed(self.summed_loss(model, batch), batch.num_targets, [])

    def class_logits(self, model: Any, batch: Any) -> Tensor | None:
        """Compute label logits (B, C), one row each, for calibration; None if rows do not have a single label."""
        return None

    @abstractmethod
    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        """Compute metrics, including ``loss``, from results summed over a split. ``scale``: averages of the split."""

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        """Evaluate ``model`` on a split whose batches have been observed and summed in ``seen``."""
        return Evaluation(self.figures(seen, dataset.scale(split)))

    def sample(self, model: Any, dataset: Dataset, recipe: Recipe) -> str | None:
        """Return a text with example outputs of the model, shown during training; None if there is none."""
        return None

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Predict for rows of named inputs; each result is plain data with a readable ``answer``.

        Raises ``UserError`` if the task makes no predictions.
        """
        raise UserError(
            f"a model of the task {self.spec.kind!r} has no answer to predict; generate text with 'qkv generate'"
        )

    def source_ids(self, vocabulary: Vocabulary, text: str) -> list[int]:
        """Encode a source ``text`` to the token ids that the model reads. For tasks with ``writes_from_source``."""
        raise NotImplementedError

    def first_ids(self, vocabulary: Vocabulary) -> tuple[int, ...]:
        """Return the token ids that start every generated target. For tasks with ``writes_from_source``."""
        raise NotImplementedError

    def images(
        self, model: Any, vocabulary: Vocabulary, generation: Generation, count: int, label: str | None = None
    ) -> list[np.ndarray]:
        """Generate ``count`` images, arrays (H, W) or (H, W, 3) of bytes, of ``label`` (None: all labels in turn).

        Raises ``UserError`` if the task generates no images.
        """
        raise UserError(f"a model of the task {self.spec.kind!r} generates no images")

    def predict_table(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, source: str, columns: Mapping[str, str]
    ) -> TablePrediction:
        """Predict from the whole table in the file ``source``. For tasks with ``predicts_tables``.

        ``columns``: column of each role. Raises ``UserError``.
        """
        raise NotImplementedError
