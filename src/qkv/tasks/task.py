"""What every task offers, and how it joins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.tasks.material import Material, Scale

__all__ = ["Exam", "Observed", "Scale", "Task", "Totals"]


class Observed(NamedTuple):
    """What one batch showed: the summed loss, the number of its targets, and whatever the figures are made of, an entry a row."""

    loss: Tensor
    count: int
    outcomes: list[Any]


@dataclass
class Totals:
    """What many batches showed."""

    loss: float = 0.0
    count: int = 0
    outcomes: list[Any] = field(default_factory=list)

    def add(self, seen: Observed) -> None:
        """Count a batch in. Losses are summed in double precision: a split can have millions of targets."""
        self.loss += seen.loss.item()
        self.count += seen.count
        self.outcomes += seen.outcomes


@dataclass(frozen=True)
class Exam:
    """How well a trained model does its task: figures, and what people look at, as plain data that ``qkv.report.sections`` draws."""

    figures: dict[str, float]
    sections: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Task(ABC):
    """What is learned: what the model reads, a loss, the figures that people compare, and the answer in human form."""

    loss_unit: str = "nats a token"
    """What the loss counts, for charts and tables."""
    examines: bool = False
    """True if there is more to say of a trained model than the figures of each validation."""
    asks: tuple[str, ...] = ()
    """What ``predict`` is given, by name; the first is what a lone text stands for."""
    may_ask: tuple[str, ...] = ()
    """What it may be given beside that."""

    def __init__(self, spec: Any):
        self.spec = spec

    @abstractmethod
    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Material:
        """The data of a recipe; with the vocabulary of a run that is already there, else with one made from the training part."""

    def open_other(self, recipe: Recipe, vocabulary: Vocabulary, source: str, own: Material | None) -> Material:
        """All of the file ``source`` as the part ``OTHER``; ``own``, the run's own data if it is at hand, is what baselines are fitted on.

        Raises ``UserError`` if the task reads no such file.
        """
        raise UserError(f"the task {self.spec.kind!r} draws its own data and reads no file; leave --data out")

    def sized(self, recipe: Recipe) -> Recipe:
        """The recipe with every size filled in that the data decides."""
        return self.open(recipe).recipe

    @abstractmethod
    def summed_loss(self, model: Any, batch: Any, tap: Tap | None = None) -> Tensor:
        """The loss that training lowers, summed over the batch's targets. ``tap`` sees what each branch computes."""

    def observe(self, model: Any, batch: Any) -> Observed:
        """The loss that is reported, and what else the figures need; called without dropout and without gradients."""
        return Observed(self.summed_loss(model, batch), batch.num_targets, [])

    @abstractmethod
    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        """Figures from what many batches showed; ``loss`` is among them."""

    def examine(self, model: Any, material: Material, split: str, seen: Totals, recipe: Recipe) -> Exam:
        """All that can be said of ``model`` on a split, of which every batch was ``seen``."""
        return Exam(self.figures(seen, material.scale(split)))

    def sample(self, model: Any, material: Material, recipe: Recipe) -> str | None:
        """What the model answers now, to be looked at while it learns; None if there is nothing to see."""
        return None

    def predict(self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """An answer for each row, plain data whose key ``answer`` is for people. Raises ``UserError`` if the task gives none."""
        raise UserError(f"a model of the task {self.spec.kind!r} has no answer to predict; 'qkv generate' lets it write")
