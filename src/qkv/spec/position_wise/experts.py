"""Specs of a mixture of experts, a position-wise branch, and of methods that balance the load of its experts."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field

from qkv.spec.base import Part
from qkv.spec.branches import Branch, FeedForward, GatedFeedForward
from qkv.spec.errors import Problem
from qkv.spec.parts import Activation, NoNorm, Norm


class Balance(Part, slot=True):
    """Base class of load balancing, which spreads unpadded training positions evenly over the experts."""


class BalanceLoss(Balance, kind="loss"):
    """Auxiliary loss coefficient · E Σ_e f_e p_e, which is the coefficient if the load is even (Fedus et al. 2021).

    f_e: fraction of a batch's selections that select expert e.   p_e: mean of its share in the router's scores.
    """

    coefficient: float = Field(default=0.01, ge=0)


class BalanceBias(Balance, kind="bias"):
    """Bias per expert, added to the router's scores for the selection, not for the weights (DeepSeek-V3, 2024).

    After each training step it rises by ``rate`` for experts with less than the mean load, and falls for the others.
    """

    rate: float = Field(default=0.001, ge=0)


class NoBalance(Balance, kind="none"):
    """No load balancing."""


class MixtureOfExperts(Branch, kind="mixture_of_experts"):
    """Mixture of experts Σ_{e chosen} w_e f_e(x) + f_shared(x): ``top_k`` feed-forward networks f_e per position.

    Scores s = softmax(x W_r), or the logistic function of each element. The k experts with the largest scores are
    chosen. Weights w_e = scale · s_e, with s_e divided by the sum of the chosen scores if ``normalised``. No position
    is dropped (Shazeer et al. 2017, Fedus et al. 2021; sigmoid and shared experts: DeepSeek-V3, 2024).

    With ``groups``, experts are chosen among those of the ``top_groups`` groups whose ``group_best`` largest scores
    have the largest sums (DeepSeek-V2, 2024). ``shared_gate``: f_shared(x) · σ(x w), with w (D, 1) (Qwen2-MoE, 2024).
    ``shared_scale`` is a factor of f_shared(x) (Command A with experts, Cohere 2026). ``limit`` and ``shift`` as in a
    gated feed-forward network.

    With ``choice`` "logits", the k experts with the largest x W_r + b are chosen; b has no part in the weights
    (Kolibri, Aleph Alpha 2026). ``weights_of`` "inputs": Σ f_e(w_e x) (Llama 4, 2025). ``norm`` is applied to the sum
    (A.X-K1, 2026).

    With ``router`` "sparse_mixer", s = softmax(z) for the logits z. The weight w_e is the value of e in a softmax over
    fewer experts: those not chosen before e whose logit z has z_e - z ≤ 2 jitter max(|z|, z_e) (Liu et al. 2023,
    Phi-3.5-MoE 2024).
    """

    num_experts: int = Field(default=8, gt=0, le=4096, description="number of experts to choose from, E")
    top_k: int = Field(default=2, gt=0, description="number of experts chosen for each position, k")
    num_shared: int = Field(default=0, ge=0, le=4096, description="experts applied to every position, with weight 1")
    shared_hidden: int | None = Field(
        default=None, gt=0, description="total hidden features of the shared experts; default: num_shared · hidden"
    )
    shared_gate: bool = Field(default=False, description="factor σ(x w) of the shared experts' output")
    shared_scale: float = Field(default=1.0, gt=0, description="fixed factor of the shared experts' output")
    hidden: int | None = Field(
        default=None, gt=0, description="hidden features of an expert; default: as in a feed-forward network"
    )
    gated: bool = Field(default=True, description="experts are gated feed-forward networks")
    activation: Activation = "silu"
    limit: float | None = Field(default=None, gt=0, description="bound of a gated expert's features before the product")
    shift: float = Field(default=0.0, description="constant added to a gated expert's factor without activation")
    bias: bool = Field(default=False, description="bias of the experts' linear maps")
    router: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    jitter: float = Field(default=0.01, ge=0, lt=1, description="half of the relative distance of near logits")
    router_bias: bool = Field(default=False, description="bias of the router's linear map")
    choice: Literal["scores", "logits"] = Field(
        default="scores",
        description="what is compared in the choice: scores, or the logits that they are computed from",
    )
    weights_of: Literal["outputs", "inputs"] = Field(
        default="outputs", description="what the weights multiply: the outputs of the experts or their inputs"
    )
    norm: Norm = Field(default=NoNorm(), description="norm of the output")
    groups: int = Field(default=1, gt=0, description="number of groups of successive experts")
    top_groups: int | None = Field(default=None, gt=0, description="groups to choose experts from; default: all")
    group_best: int = Field(default=2, gt=0, description="number of a group's largest scores whose sum ranks it")
    normalised: bool | None = Field(
        default=None,
        description="divide the weights of the chosen experts by their sum; default: true if top_k > 1, as a single "
        "normalised weight would have no gradient",
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

    @property
    def kept_groups(self) -> int:
        """Number of groups from which experts are chosen."""
        return self.top_groups or self.groups

    @property
    def per_group(self) -> int:
        """Number of experts of a group."""
        return self.num_experts // self.groups

    def problems(self) -> list[Problem]:
        return [*self._choice_problems(), *self._group_problems(), *self._expert_problems()]

    def _choice_problems(self) -> list[Problem]:
        if self.top_k <= self.num_experts:
            return []
        sentence = f"{self.top_k} experts cannot be chosen among {self.num_experts}; give at most {self.num_experts}"
        return [Problem(("top_k",), sentence)]

    def _group_problems(self) -> list[Problem]:
        if self.num_experts % self.groups:
            return [Problem(("groups",), f"{self.num_experts} experts cannot form {self.groups} groups of equal size")]
        most, problems = self.kept_groups * self.per_group, list[Problem]()
        if self.kept_groups > self.groups:
            sentence = f"{self.kept_groups} groups cannot be chosen among {self.groups}; give at most {self.groups}"
            problems.append(Problem(("top_groups",), sentence))
        elif most < self.top_k <= self.num_experts:
            sentence = f"{self.kept_groups} groups have {most} experts, fewer than the {self.top_k} to choose"
            problems.append(Problem(("top_groups",), sentence))
        if self.kept_groups < self.groups and self.group_best > self.per_group:
            sentence = f"a group has {self.per_group} experts, fewer than the {self.group_best} that rank it"
            problems.append(Problem(("group_best",), sentence))
        return problems

    def _expert_problems(self) -> list[Problem]:
        fields = {"shared_hidden": self.shared_hidden, "shared_gate": self.shared_gate}
        fields["shared_scale"] = self.shared_scale != 1
        alone = [name for name, value in fields.items() if value and not self.num_shared]
        problems = [Problem((name,), "there are no shared experts; give num_shared, or leave it out") for name in alone]
        unused = [name for name in ("limit", "shift") if getattr(self, name) and not self.gated]
        problems += [Problem((name,), "it applies only to gated experts; leave it out") for name in unused]
        if self.norm.over_batch:
            problems.append(Problem(("norm",), "batch_norm normalises over positions; use another norm"))
        return problems

    def expert(self, width: int) -> FeedForward | GatedFeedForward:
        """Return the spec of an expert at model width ``width``."""
        fields: dict[str, Any] = {"activation": self.activation, "bias": self.bias, "dropout": self.dropout}
        if not self.gated:
            plain = FeedForward(hidden=self.hidden, **fields)
            return plain.changed(hidden=plain.hidden_at(width))
        part = GatedFeedForward(hidden=self.hidden, limit=self.limit, shift=self.shift, **fields)
        return part.changed(hidden=part.hidden_at(width))

    def shared(self, width: int) -> FeedForward | GatedFeedForward | None:
        """Return the spec of the single network that computes all shared experts together; None without any."""
        if not self.num_shared:
            return None
        one = self.expert(width)
        return one.changed(hidden=self.shared_hidden or self.num_shared * one.hidden_at(width))

    def canonical(self, width: int) -> Self:
        shared, whole = self.shared(width), self.kept_groups == self.groups
        return self.changed(
            hidden=self.expert(width).hidden,
            num_shared=min(1, self.num_shared),
            shared_hidden=shared.hidden if shared else None,
            normalised=self.normalises,
            groups=1 if whole else self.groups,
            top_groups=1 if whole else self.kept_groups,
            group_best=2 if whole else self.group_best,
            dropout=0.0,
        )
