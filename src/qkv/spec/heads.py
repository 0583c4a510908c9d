"""What stands on the last vectors of a model: what is asked of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import Part
from qkv.spec.parts import Activation


class Head(Part, slot=True):
    """From the last vectors to the answer that a task asks for."""


class LanguageModelHead(Head, kind="language_model"):
    """logits = scale · f(x) W^T + bias, optionally soft-capped: cap · tanh(logits / cap).

    f is the identity, or with ``transform`` norm(φ(x W_t + b_t)) as in BERT (Devlin et al. 2019).
    """

    tied: bool = Field(default=True, description="W is the embedding table")
    bias: bool = False
    softcap: float | None = Field(default=None, gt=0)
    transform: Activation | None = Field(default=None, description="the φ of a dense layer before the logits; default: none")
    scale: float = Field(default=1.0, gt=0, description="of the vectors that W meets; T5 with a tied head: width ** -0.5")


class ClassificationHead(Head, kind="classification"):
    """logits = dropout(pool(x)) W^T + b, one row of logits a sequence.

    pooling: ``first`` position (BERT's CLS), ``last`` real one, ``mean`` or ``max`` over the real ones, or ``attention``: Σ_i softmax_i(w·x_i) x_i.
    """

    num_classes: int | None = Field(default=None, gt=0, description="default: as many as the data has labels")
    pooling: Literal["first", "last", "mean", "max", "attention"] = "mean"
    hidden: int | None = Field(default=None, gt=0, description="width of a tanh layer between pooling and logits; default: none")
    dropout: float = Field(default=0.0, ge=0, lt=1)


class RegressionHead(Head, kind="regression"):
    """y = dropout(pool(x)) w + b, one number a sequence, in units of the training values' standard deviation from their mean."""

    pooling: Literal["first", "last", "mean", "max", "attention"] = "mean"
    hidden: int | None = Field(default=None, gt=0, description="width of a tanh layer between pooling and number; default: none")
    dropout: float = Field(default=0.0, ge=0, lt=1)


class TokenHead(Head, kind="tokens"):
    """logits = dropout(x) W^T + b, one row of logits a position."""

    num_classes: int | None = Field(default=None, gt=0, description="default: as many as the data has tags")
    dropout: float = Field(default=0.0, ge=0, lt=1)


class SpanHead(Head, kind="spans"):
    """Two logits a position: that an answer begins, and that it ends, there (Devlin et al. 2019)."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
