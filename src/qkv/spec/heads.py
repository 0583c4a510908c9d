"""Specs of output heads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import Part
from qkv.spec.errors import Problem
from qkv.spec.parts import Activation, BatchNorm, LayerNorm, NoNorm, Norm


class Head(Part, slot=True):
    """Head: maps the final hidden states to the task's output."""


class LanguageModelHead(Head, kind="language_model"):
    """logits = scale · f(x) W^T + bias, optionally soft-capped: cap · tanh(logits / cap).

    f is the identity, or with ``transform`` norm(φ(x W_t + b_t)) (BERT, Devlin et al. 2019; without b_t in ModernBERT).
    """

    tied: bool = Field(default=True, description="share W with the token embeddings")
    bias: bool = False
    softcap: float | None = Field(default=None, gt=0)
    transform: Activation | None = Field(
        default=None, description="activation φ of a dense layer before the logits; default: no such layer"
    )
    scale: float = Field(default=1.0, gt=0, description="factor of f(x); width ** -0.5 in T5 with a tied head")
    norm: Norm = Field(default=LayerNorm(), description="norm after the transform; unused without one")
    transform_bias: bool = True

    def problems(self) -> list[Problem]:
        return _no_batch(self.norm)


def _no_batch(norm: Norm) -> list[Problem]:
    if not isinstance(norm, BatchNorm):
        return []
    return [Problem(("norm",), "a head normalises each vector separately; use layer_norm, rms_norm or none, not batch_norm")]


class Classes(Head):
    """Base class of classification heads."""

    num_classes: int | None = Field(default=None, gt=0, description="default: number of labels or tags in the data")


class Pooled(Head):
    """Base class of sequence-level heads.

    pooling over unpadded positions: ``first`` (BERT's CLS), ``last``, ``mean``, ``max``, or ``attention``: Σ_i softmax_i(w·x_i) x_i.
    """

    pooling: Literal["first", "last", "mean", "max", "attention"] = "mean"


class Hidden(Head):
    """Base class of heads z W^T + b with z = dropout(x), or with ``hidden`` z = dropout(norm(φ(x W_h + b_h)))."""

    hidden: int | None = Field(default=None, gt=0, description="width of the hidden layer; default: no hidden layer")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    activation: Activation = Field(default="tanh", description="activation φ of the hidden layer")
    norm: Norm = Field(default=NoNorm(), description="norm after the hidden layer")
    hidden_bias: bool = True
    bias: bool = True

    def problems(self) -> list[Problem]:
        if self.hidden is None and not isinstance(self.norm, NoNorm):
            return [Problem(("norm",), f"{self.norm.kind} normalises the hidden layer, but there is none; give hidden, or leave norm out")]
        return _no_batch(self.norm)


# The order of the bases decides the order of the fields in short forms: classification(3) has three classes.
class ClassificationHead(Hidden, Pooled, Classes, kind="classification"):
    """Sequence classification: logits = z W^T + b per sequence, with z as in ``Hidden`` from the pooled vector.

    Pooling ``first`` with a tanh layer as wide as the model is BERT's pooler and classifier (Devlin et al. 2019).
    """


class RegressionHead(Hidden, Pooled, kind="regression"):
    """Sequence regression: y = z w + b per sequence, for targets standardised over the training set; z as in ``Hidden``."""


class TokenHead(Hidden, Classes, kind="tokens"):
    """Token classification: logits = z W^T + b per position; z as in ``Hidden``."""


class SpanHead(Hidden, kind="spans"):
    """Span prediction: two logits z W^T + b per position, for start and end (Devlin et al. 2019); z as in ``Hidden``."""
