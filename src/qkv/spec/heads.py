"""What stands on the last vectors of a model: what is asked of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import Part
from qkv.spec.errors import Problem
from qkv.spec.parts import Activation, BatchNorm, LayerNorm, NoNorm, Norm


class Head(Part, slot=True):
    """From the last vectors to the answer that a task asks for."""


class LanguageModelHead(Head, kind="language_model"):
    """logits = scale · f(x) W^T + bias, optionally soft-capped: cap · tanh(logits / cap).

    f is the identity, or with ``transform`` norm(φ(x W_t + b_t)) as in BERT (Devlin et al. 2019); without b_t in ModernBERT.
    """

    tied: bool = Field(default=True, description="W is the embedding table")
    bias: bool = False
    softcap: float | None = Field(default=None, gt=0)
    transform: Activation | None = Field(default=None, description="the φ of a dense layer before the logits; default: none")
    scale: float = Field(default=1.0, gt=0, description="of the vectors that W meets; T5 with a tied head: width ** -0.5")
    norm: Norm = Field(default=LayerNorm(), description="that ends the transform; nothing without one")
    transform_bias: bool = True

    def problems(self) -> list[Problem]:
        return _no_batch(self.norm)


def _no_batch(norm: Norm) -> list[Problem]:
    if not isinstance(norm, BatchNorm):
        return []
    return [Problem(("norm",), "a head norms each vector alone; use layer_norm, rms_norm or none, not batch_norm")]


def _hidden_problems(norm: Norm, hidden: int | None) -> list[Problem]:
    """What is wrong with the norm of a layer before the answer."""
    if hidden is None and not isinstance(norm, NoNorm):
        return [Problem(("norm",), f"{norm.kind} ends the hidden layer, and there is none; give hidden, or leave it out")]
    return _no_batch(norm)


class ClassificationHead(Head, kind="classification"):
    """logits = dropout(pool(x)) W^T + b, one row of logits a sequence; with ``hidden`` dropout(norm(φ(pool(x) W_h + b_h))) W^T + b.

    Pooling ``first`` and a tanh layer as wide as the model are BERT's pooler and classifier (Devlin et al. 2019).

    pooling: ``first`` position (BERT's CLS), ``last`` real one, ``mean`` or ``max`` over the real ones, or ``attention``: Σ_i softmax_i(w·x_i) x_i.
    """

    num_classes: int | None = Field(default=None, gt=0, description="default: as many as the data has labels")
    pooling: Literal["first", "last", "mean", "max", "attention"] = "mean"
    hidden: int | None = Field(default=None, gt=0, description="width of a layer between pooling and logits; default: none")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    activation: Activation = Field(default="tanh", description="the φ of the hidden layer")
    norm: Norm = Field(default=NoNorm(), description="that ends the hidden layer")
    hidden_bias: bool = True
    bias: bool = True

    def problems(self) -> list[Problem]:
        return _hidden_problems(self.norm, self.hidden)


class RegressionHead(Head, kind="regression"):
    """y = dropout(pool(x)) w + b, one number a sequence, in units of the training values' standard deviation from their mean.

    ``hidden`` as of ``classification``.
    """

    pooling: Literal["first", "last", "mean", "max", "attention"] = "mean"
    hidden: int | None = Field(default=None, gt=0, description="width of a layer between pooling and number; default: none")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    activation: Activation = Field(default="tanh", description="the φ of the hidden layer")
    norm: Norm = Field(default=NoNorm(), description="that ends the hidden layer")
    hidden_bias: bool = True
    bias: bool = True

    def problems(self) -> list[Problem]:
        return _hidden_problems(self.norm, self.hidden)


class TokenHead(Head, kind="tokens"):
    """logits = dropout(x) W^T + b, one row of logits a position; with ``hidden`` dropout(norm(φ(x W_h + b_h))) W^T + b."""

    num_classes: int | None = Field(default=None, gt=0, description="default: as many as the data has tags")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    hidden: int | None = Field(default=None, gt=0, description="width of a layer before the logits; default: none")
    activation: Activation = Field(default="tanh", description="the φ of the hidden layer")
    norm: Norm = Field(default=NoNorm(), description="that ends the hidden layer")
    hidden_bias: bool = True
    bias: bool = True

    def problems(self) -> list[Problem]:
        return _hidden_problems(self.norm, self.hidden)


class SpanHead(Head, kind="spans"):
    """Two logits a position: that an answer begins, and that it ends, there (Devlin et al. 2019). ``hidden`` as of ``tokens``."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    hidden: int | None = Field(default=None, gt=0, description="width of a layer before the logits; default: none")
    activation: Activation = Field(default="tanh", description="the φ of the hidden layer")
    norm: Norm = Field(default=NoNorm(), description="that ends the hidden layer")
    hidden_bias: bool = True
    bias: bool = True

    def problems(self) -> list[Problem]:
        return _hidden_problems(self.norm, self.hidden)
