"""Base class of task specs."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from qkv.spec.base import Part
from qkv.spec.errors import Problem
from qkv.spec.model import Model

Reads = Literal["text", "examples", "nothing"]
Needs = Literal["causal", "decodes", "anything"]


class Task(Part, slot=True):
    """Base class of tasks: the training objective, with the data, model and head that it requires."""

    reads: ClassVar[Reads] = "text"
    """Required data: a text, a table of examples, or nothing if the task generates its own data."""
    needs: ClassVar[Needs] = "anything"
    """Required model: causal; decodes (causal after each row's prefix); anything (the model need not decode)."""
    takes_encoder: ClassVar[bool] = False
    """True if the task supports encoder–decoders."""
    head: ClassVar[str] = "language_model"
    """Required kind of head."""
    reads_signals: ClassVar[bool] = False
    """True if the input may be a signal other than text, such as images."""
    joins_inputs: ClassVar[bool] = False
    """True if it may read several named inputs."""
    separates_inputs: ClassVar[bool] = False
    """True if it reads two named inputs, each with a stack of its own: the encoder the first, the blocks the second."""
    reads_words: ClassVar[bool] = False
    """True if the front end may read words instead of tokens."""
    sized_by_tokenizer: ClassVar[bool] = False
    """True if the task uses the tokenizer's vocabulary without adding tokens."""
    whole_rate_factor: ClassVar[float] = 1.0
    """Factor of the learning rate for fine-tuning all weights."""

    def writes(self, model: Model) -> bool:
        """Return whether predictions of ``model`` are generated token by token."""
        return self.needs != "anything"

    def model_problems(self, model: Model) -> list[Problem]:
        """Return the errors in the combination of this task with ``model``, with paths in the model; empty if none."""
        return []

    def reads_source(self) -> bool:
        """Return whether the task has an input for the encoder of an encoder–decoder."""
        return self.takes_encoder

    def published(self) -> Self:
        """Return the task for a published model: settings determined by training data are set to neutral values."""
        return self
