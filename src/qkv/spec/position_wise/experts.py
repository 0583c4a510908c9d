"""Spec of a mixture of experts, a position-wise branch, and of ways to balance the load of its experts."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from qkv.spec.base import Part
from qkv.spec.branches import Branch, FeedForward, GatedFeedForward
from qkv.spec.errors import Problem
from qkv.spec.parts import Activation


class Balance(Part, slot=True):
    """Base class of ways to spread the positions of training batches evenly over experts. Padding does not count."""


class BalanceLoss(Balance, kind="loss"):
    """Auxiliary loss coefficient · E Σ_e f_e p_e, at least the coefficient if the load is even (Fedus et al. 2021).

    f_e: share of expert e in all choices of a batch.   p_e: mean of its share in the router's scores.
    """

    coefficient: float = Field(default=0.01, ge=0)


class BalanceBias(Balance, kind="bias"):
    """Bias per expert, added to the router's scores for the choice alone, not for the weights (DeepSeek-V3, 2024).

    After each training step it rises by ``rate`` for experts with less than the mean load, and falls for the others.
    """

    rate: float = Field(default=0.001, ge=0)


class NoBalance(Balance, kind="none"):
    """No balance of the load."""


class MixtureOfExperts(Branch, kind="mixture_of_experts"):
    """Mixture of experts Σ_{e chosen} w_e f_e(x) + f_shared(x): ``top_k`` feed-forward networks f_e per position.

    Scores s = softmax(x W_r), or the logistic function of each element. The k experts with the largest scores are
    chosen. Weights w_e = scale · s_e, with s_e divided by the sum of the chosen scores if ``normalised``. No position
    is dropped (Shazeer et al. 2017, Fedus et al. 2021; sigmoid and shared experts: DeepSeek-V3, 2024).
    """

    num_experts: int = Field(default=8, gt=0, le=4096, description="number of experts to choose from, E")
    top_k: int = Field(default=2, gt=0, description="number of experts chosen for each position, k")
    num_shared: int = Field(default=0, ge=0, le=4096, description="experts applied to every position, with weight 1")
    hidden: int | None = Field(
        default=None, gt=0, description="features inside an expert; default: as of a feed-forward network"
    )
    gated: bool = Field(default=True, description="experts are gated feed-forward networks")
    activation: Activation = "silu"
    bias: bool = Field(default=False, description="bias of the experts' linear maps")
    router: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool | None = Field(
        default=None,
        description="weights of the chosen sum to scale; default: if top_k > 1, as that of one would have no gradient",
    )
    scale: float = Field(default=1.0, gt=0, description="factor of the weights")
    balance: Balance = BalanceLoss()
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def mixes(self) -> bool:
        return False

    @property
    def normalises(self) -> bool:
        """True if the weights of the chosen experts are divided by their sum."""
        return self.top_k > 1 if self.normalised is None else self.normalised

    def problems(self) -> list[Problem]:
        if self.top_k <= self.num_experts:
            return []
        sentence = f"{self.top_k} experts cannot be chosen among {self.num_experts}; give at most {self.num_experts}"
        return [Problem(("top_k",), sentence)]

    def expert(self, width: int, count: int = 1) -> FeedForward | GatedFeedForward:
        """Return the spec of an expert at model width ``width``, or of a network that sums ``count`` experts."""
        made = GatedFeedForward if self.gated else FeedForward
        part = made(hidden=self.hidden, activation=self.activation, bias=self.bias, dropout=self.dropout)
        return part.changed(hidden=count * part.hidden_at(width))

    def canonical(self, width: int) -> Self:
        return self.changed(hidden=self.expert(width).hidden, normalised=self.normalises, dropout=0.0)
