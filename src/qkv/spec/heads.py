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


class Classes(Head):
    """A head that tells classes apart."""

    num_classes: int | None = Field(default=None, gt=0, description="default: as many as the data has labels or tags")


class Pooled(Head):
    """A head that answers once a sequence.

    pooling: ``first`` position (BERT's CLS), ``last`` real one, ``mean`` or ``max`` over the real ones, or ``attention``: Σ_i softmax_i(w·x_i) x_i.
    """

    pooling: Literal["first", "last", "mean", "max", "attention"] = "mean"


class Hidden(Head):
    """A head z W^T + b with z = dropout(x), or with ``hidden`` z = dropout(norm(φ(x W_h + b_h)))."""

    hidden: int | None = Field(default=None, gt=0, description="width of a layer before the answer; default: none")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    activation: Activation = Field(default="tanh", description="the φ of the hidden layer")
    norm: Norm = Field(default=NoNorm(), description="that ends the hidden layer")
    hidden_bias: bool = True
    bias: bool = True

    def problems(self) -> list[Problem]:
        if self.hidden is None and not isinstance(self.norm, NoNorm):
            return [Problem(("norm",), f"{self.norm.kind} ends the hidden layer, and there is none; give hidden, or leave it out")]
        return _no_batch(self.norm)


# Fields stand in the order of the bases from the last to the first: classification(3) is one of three classes.
class ClassificationHead(Hidden, Pooled, Classes, kind="classification"):
    """logits = z W^T + b, one row of logits a sequence, z as of ``Hidden`` from what is pooled.

    Pooling ``first`` and a tanh layer as wide as the model are BERT's pooler and classifier (Devlin et al. 2019).
    """


class RegressionHead(Hidden, Pooled, kind="regression"):
    """y = z w + b, one number a sequence, in units of the training values' standard deviation from their mean; z as of ``Hidden``."""


class TokenHead(Hidden, Classes, kind="tokens"):
    """logits = z W^T + b, one row of logits a position, z as of ``Hidden``."""


class SpanHead(Hidden, kind="spans"):
    """Two logits z W^T + b a position: that an answer begins, and that it ends, there (Devlin et al. 2019); z as of ``Hidden``."""
