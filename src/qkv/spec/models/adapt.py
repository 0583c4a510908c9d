"""Specs of which parameters are trained: all, the head, the last blocks, or low-rank adapters."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from qkv.spec.base import Part, Seq


class Adapt(Part, slot=True):
    """Base class of selections of trainable parameters; those matched by ``training.frozen`` always stay frozen."""

    adds_matrices: ClassVar[bool] = False
    """True if it adds adapters to the model; a finished model has them merged into its weights."""
    trains_all: ClassVar[bool] = False
    """True if all parameters are trained."""
    rate_factor: ClassVar[float] = 1.0
    """Learning rate relative to the rate for fine-tuning all weights."""


class Whole(Adapt, kind="whole"):
    """Train all parameters (full fine-tuning)."""

    trains_all = True


class HeadOnly(Adapt, kind="head"):
    """Train the head only (feature extraction). A tied output matrix belongs to the front end and is frozen."""

    rate_factor = 20.0


class Last(Adapt, kind="last"):
    """Train the head, the final norm and the last ``num_layers`` blocks (Howard & Ruder 2018).

    In an encoder–decoder, these are the last blocks of the decoder.
    """

    rate_factor = 2.0
    num_layers: int = Field(default=1, gt=0)


ALL = "all"
"""Target of adapters that stands for every linear layer in blocks."""


class LoRA(Adapt, kind="lora"):
    """Low-rank adapters: W x + b + s B A x with W and b frozen (LoRA, Hu et al. 2021).

    s = alpha / rank, or alpha / √rank with ``use_rslora`` (Kalajdzievski 2023). A (rank, I) is initialised at random
    and B (O, rank) to 0, so that training starts from the unchanged model. Heads other than language model heads are
    fully trained.
    """

    adds_matrices, rate_factor = True, 5.0
    rank: int = Field(default=8, gt=0)
    alpha: float = Field(default=16.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on the input x of A")
    targets: Seq[str] = Field(
        default=("qkv", "output"),
        min_length=1,
        description="names (last part of the path) of the linear layers in blocks that get an adapter; 'all': each",
    )
    use_rslora: bool = False
    whole: Seq[str] = Field(default=(), description="path patterns of other parameters that are fully trained")

    @property
    def scale(self) -> float:
        """Factor s of the low-rank term B A x."""
        return self.alpha / (self.rank**0.5 if self.use_rslora else self.rank)
