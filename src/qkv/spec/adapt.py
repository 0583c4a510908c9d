"""Which weights a run learns, as data: all of them, those at the end, or small matrices beside the large ones."""

from __future__ import annotations

from pydantic import Field

from qkv.spec.base import Part, Seq


class Adapt(Part, slot=True):
    """Which weights learn. What ``training.frozen`` names stays as it is in any case."""


class Whole(Adapt, kind="whole"):
    """All of them."""


class HeadOnly(Adapt, kind="head"):
    """The head alone; the stack is read from (feature extraction). A tied matrix is the front end's, and stays."""


class Last(Adapt, kind="last"):
    """The head, the final norm and the last ``num_layers`` blocks of the model's own stack (Howard & Ruder 2018)."""

    num_layers: int = Field(default=1, gt=0)


class LoRA(Adapt, kind="lora"):
    """W x + b + s B A x in the place of W x + b in blocks, W and b frozen; s = alpha / rank (Hu et al. 2021), or alpha / √rank (Kalajdzievski 2023).

    A (rank, I) begins at random and B (O, rank) at 0, so that training begins with the model as it is. A head that is not a language
    model's learns whole.
    """

    rank: int = Field(default=8, gt=0)
    alpha: float = Field(default=16.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1, description="of the x that A reads")
    targets: Seq[str] = Field(
        default=("qkv", "output"), min_length=1, description="linear maps of the blocks whose path ends in one of these are adapted"
    )
    use_rslora: bool = False
    whole: Seq[str] = Field(default=(), description="patterns of paths of parameters that learn as a whole beside the adapter")

    @property
    def scale(self) -> float:
        """s, by which B A x is multiplied."""
        return self.alpha / (self.rank**0.5 if self.use_rslora else self.rank)
