"""What is learned, as data. A task says what it reads, what the model must be able to do, and which head it asks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import Part


class Task(Part, slot=True):
    """What is learned."""

    @property
    def reads(self) -> Literal["text", "examples", "nothing"]:
        """A running text, a table of examples, or nothing: the task draws its own data."""
        return "text"

    @property
    def needs(self) -> Literal["causal", "decodes", "anything"]:
        """causal: no position may see a later one; decodes: none after a row's own prefix; anything: the model need not write."""
        return "anything"

    @property
    def takes_encoder(self) -> bool:
        """True if the model may be an encoder–decoder."""
        return False

    @property
    def head(self) -> str:
        """The kind of head that answers."""
        return "language_model"


class NextToken(Task, kind="next_token"):
    """Language modelling: -Σ log p(x_i | x_<i)."""

    @property
    def needs(self) -> Literal["causal", "decodes", "anything"]:
        return "causal"


class SequenceToSequence(Task):
    """A text from a text, learned with teacher forcing: -Σ log p(y_i | y_<i, x).

    With an encoder, x is its input. Without, x and y are one sequence, and a mask with a prefix lets x see all of itself (Raffel et al. 2020).
    """

    label_smoothing: float = Field(
        default=0.1, ge=0, lt=1, description="share of the target's probability that is spread over the vocabulary"
    )

    @property
    def reads(self) -> Literal["text", "examples", "nothing"]:
        return "examples"

    @property
    def needs(self) -> Literal["causal", "decodes", "anything"]:
        return "decodes"

    @property
    def takes_encoder(self) -> bool:
        return True


class Translation(SequenceToSequence, kind="translation"):
    """Sentence pairs; measured by sacreBLEU. Columns ``source`` and ``target``."""


class Summarization(SequenceToSequence, kind="summarization"):
    """Texts and their summaries; measured by ROUGE against all summaries that a text has. Columns ``source`` and ``target``."""


class Classification(Task, kind="classification"):
    """One label a text: -log p(label | text); measured by accuracy and macro F1. Columns ``text`` and ``label``."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    @property
    def reads(self) -> Literal["text", "examples", "nothing"]:
        return "examples"

    @property
    def head(self) -> str:
        return "classification"
