"""Mixture of experts, and load balancing of the experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.observable import Points
from qkv.ops.at_least_single import at_least_single
from qkv.ops.experts import Expert, balance_loss, load, mixed, mixed_of_inputs, sparse_mixer, within_groups
from qkv.spec import branches
from qkv.spec.position_wise import experts as spec
from qkv.spec.register import implementation, implements


@implements(spec.NoBalance)
class Balance(nn.Module):
    """No load balancing; base class of methods that balance the load of ``num_experts`` experts."""

    def __init__(self, part: spec.Balance, num_experts: int):
        super().__init__()
        self.num_experts = num_experts

    def ranked(self, scores: Tensor) -> Tensor:
        """Return the scores (B, N, E) by which the top k experts are selected, from the router's scores (B, N, E)."""
        return scores

    def of_batch(self, scores: Tensor, chosen: Tensor, valid: Tensor | None) -> Tensor | None:
        """Return the auxiliary loss of a training batch; None if the method has none.

        scores (B, N, E): the router's scores; chosen (B, N, k): indices of the selected experts; valid (B, N): False at
        padding; None: no padding.
        """
        return None

    def tallies(self) -> list[Tensor]:
        """Return tensors that count over the rows of a step, for ``after_step``."""
        return []

    def after_step(self) -> None:
        """Update what the method adapts without gradients, such as biases; called after each training step."""


@implements(spec.BalanceLoss)
class BalanceLoss(Balance):
    """Auxiliary loss coefficient · E Σ_e f_e p_e, see ``qkv.ops.experts.balance_loss`` (Fedus et al. 2021)."""

    def __init__(self, part: spec.BalanceLoss, num_experts: int):
        super().__init__(part, num_experts)
        self.coefficient = part.coefficient

    def of_batch(self, scores: Tensor, chosen: Tensor, valid: Tensor | None) -> Tensor:
        return self.coefficient * balance_loss(scores, chosen, valid)


@implements(spec.BalanceBias)
class BalanceBias(Balance):
    """Bias per expert, added to the scores for the selection of experts only (DeepSeek-V3, 2024).

    After each training step, the bias changes by + ``rate`` for experts below the mean load and - ``rate`` for experts
    above it. load (E): how often each expert was selected since the last step. Activation checkpointing counts each
    selection twice, which changes no sign.
    """

    bias: Tensor
    load: Tensor

    def __init__(self, part: spec.BalanceBias, num_experts: int):
        super().__init__(part, num_experts)
        self.rate = part.rate
        self.register_buffer("bias", torch.zeros(num_experts))
        self.register_buffer("load", torch.zeros(num_experts), persistent=False)

    def ranked(self, scores: Tensor) -> Tensor:
        return scores + self.bias.to(scores.dtype)

    def of_batch(self, scores: Tensor, chosen: Tensor, valid: Tensor | None) -> None:
        self.load += load(chosen, self.num_experts, valid)

    def tallies(self) -> list[Tensor]:
        return [self.load]

    def after_step(self) -> None:
        self.bias += self.rate * (self.load.mean() - self.load).sign()
        self.load.zero_()


@implements(spec.MixtureOfExperts)
class MixtureOfExperts(Branch):
    """Mixture of experts Σ_{e chosen} w_e f_e(x) + f_shared(x), with k of E feed-forward networks per position.

        x (B, N, D) ─┬─ router ─ scores (B, N, E) ─ k largest ─ weights (B, N, k) ─┐
                     ├─ experts, each on the positions that chose it ──────────────┴ Σ ─ + ─ (B, N, D)
                     └─ shared ─ times shared_scale, and σ(x w) with a gate ─────────────┘

    Shazeer et al. 2017, Fedus et al. 2021, DeepSeek-V3 2024. Scores are computed in fp32 or wider.
    """

    def __init__(self, part: spec.MixtureOfExperts, width: int):
        super().__init__(part, width)
        self.part = part
        self.router = Linear(width, part.num_experts, bias=part.router_bias)
        self.experts = nn.ModuleList(_network(part.expert(width), width) for _ in range(part.num_experts))
        shared = part.shared(width)
        self.shared = _network(shared, width) if shared else None
        self.shared_gate = Linear(width, 1, bias=False) if part.shared_gate else None
        self.norm = None if part.norm.identity else build_norm(part.norm, width)
        self.mixed = mixed_of_inputs if part.weights_of == "inputs" else mixed
        self.balance: Balance = implementation(part.balance, "qkv.layers")(part.balance, part.num_experts)

    def points(self) -> Points:
        return {"router": "weights of the experts (B, N, E), 0 for those that are not chosen"}

    def assign_name(self, name: str) -> None:
        super().assign_name(name)
        for i, expert in enumerate(self.experts):
            expert.assign_name(f"{name}.experts.{i}")  # type: ignore[operator]
        if self.shared is not None:
            self.shared.assign_name(f"{name}.shared")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        logits = at_least_single(self.router(x))
        scores = logits.sigmoid() if self.part.router == "sigmoid" else logits.softmax(-1)
        chosen = self._choose(self.balance.ranked(logits if self.part.choice == "logits" else scores))
        weights = self._weights(logits, scores, chosen)
        replaced = self.offer_computed(
            context.tap, "router", lambda: torch.zeros_like(scores).scatter(-1, chosen, weights)
        )
        read = (chosen, weights) if replaced is None else _read(replaced)
        vectors, choices = x.flatten(0, 1), (read[0].flatten(0, 1), read[1].flatten(0, 1))
        y = self.mixed(vectors, *choices, [_function(expert, context) for expert in self.experts]).view_as(x)
        if self.shared is not None:
            y = y + self._gated(x, self.shared(x, context)[0])
        y = y if self.norm is None else self.norm(y, context)
        loss = self.balance.of_batch(scores, chosen, context.valid) if self.training else None
        return (y if loss is None else self.with_loss(y, loss)), state

    def _choose(self, ranked: Tensor) -> Tensor:
        """Return the indices (B, N, k) of the experts with the largest scores ``ranked`` (B, N, E)."""
        part = self.part
        if part.kept_groups < part.groups:
            ranked = within_groups(ranked, part.groups, part.kept_groups, part.group_best)
        return ranked.topk(part.top_k).indices

    def _gated(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply the shared experts' output y (B, N, D) by their factor, and their gate σ(x w), if they have one.

        x (B, N, D).
        """
        y = y if self.part.shared_scale == 1 else self.part.shared_scale * y
        return y if self.shared_gate is None else self.shared_gate(x).sigmoid() * y

    def _weights(self, logits: Tensor, scores: Tensor, chosen: Tensor) -> Tensor:
        """Compute the weights (B, N, k) of the selected experts."""
        mixer = self.part.router == "sparse_mixer"
        weights = sparse_mixer(logits, chosen, self.part.jitter) if mixer else scores.gather(-1, chosen)
        if self.part.normalises:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        return self.part.scale * weights

    def tallies(self) -> list[Tensor]:
        return self.balance.tallies()

    def after_step(self) -> None:
        if any(p.requires_grad for p in self.router.parameters()):  # a frozen router must select the same experts
            self.balance.after_step()

    def ending(self) -> nn.Module:
        networks = [*self.experts] if self.shared is None else [*self.experts, self.shared]
        return nn.ModuleList(network.ending() for network in networks)  # type: ignore[operator]

    def idle_parameters(self, positions: int = 1) -> int:
        idle = max(0, self.part.num_experts - positions * self.part.top_k)
        return idle * sum(p.numel() for p in self.experts[0].parameters())


def _read(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return (indices, weights) of the experts with a weight other than 0, (B, N, k) each, from weights (B, N, E).

    k: maximum number of such experts over the positions.
    """
    count = int((weights != 0).sum(-1).max()) if weights.numel() else 0
    chosen = weights.abs().topk(count).indices
    return chosen, weights.gather(-1, chosen)


def _network(expert: branches.Branch, width: int) -> Branch:
    """Build the feed-forward network of an expert, or the single network of all shared experts together."""
    return implementation(expert, "qkv.layers")(expert, width)  # type: ignore[no-any-return]


def _function(expert: nn.Module, context: Context) -> Expert:
    return lambda vectors: expert(vectors, context)[0]
