"""Losses on preferences, from the log-probabilities of answers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.spec.recipes import preference_tasks as spec
from qkv.spec.register import implements


class AnswerScores(NamedTuple):
    """Scores of A answers.

    policy (A): log π(y|x), summed over the tokens of the answer; reference (A): the same under the start of training, 0
    without one; lengths (A): tokens of the answer; good (A): whether it is a chosen or a good one; divergence: mean of
    log π(y'|x) - log π_ref(y'|x) over answers y' of other rows, 0 if it is not measured.
    """

    policy: Tensor
    reference: Tensor
    lengths: Tensor
    good: Tensor
    divergence: Tensor

    @property
    def log_ratios(self) -> Tensor:
        """r (A): log π(y|x) - log π_ref(y|x)."""
        return self.policy - self.reference

    def pairs(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Divide ``values`` (A) into those of chosen and rejected answers, (A/2) each: the chosen ones come first."""
        chosen, rejected = values.chunk(2)
        return chosen, rejected


class Loss:
    """Base class of losses on preferences. Constructor: ``cls(part)``."""

    def __init__(self, part: Any):
        self.part = part

    def __call__(self, scores: AnswerScores) -> Tensor:
        """Compute the loss of each pair (A/2), or of each answer (A) if the loss judges single ones."""
        raise NotImplementedError


@implements(spec.SigmoidLoss)
class Sigmoid(Loss):
    """-(1 - ε) log σ(h) - ε log σ(-h), h = β (r(chosen) - r(rejected)) (Rafailov et al. 2023)."""

    def __call__(self, scores: AnswerScores) -> Tensor:
        chosen, rejected = scores.pairs(scores.log_ratios)
        h, smoothing = self.part.beta * (chosen - rejected), self.part.label_smoothing
        return -(1 - smoothing) * F.logsigmoid(h) - smoothing * F.logsigmoid(-h)


@implements(spec.IPOLoss)
class IPO(Loss):
    """(h - 1 / (2 β))², h the difference of r per token (Azar et al. 2023)."""

    def __call__(self, scores: AnswerScores) -> Tensor:
        chosen, rejected = scores.pairs(scores.log_ratios / scores.lengths)
        return (chosen - rejected - 1 / (2 * self.part.beta)) ** 2


@implements(spec.KTOLoss)
class KTO(Loss):
    """w⁺ (1 - σ(β (r - z))) of good answers, w⁻ (1 - σ(β (z - r))) of bad ones (Ethayarajh et al. 2024)."""

    def __call__(self, scores: AnswerScores) -> Tensor:
        point = scores.divergence.detach().clamp(min=0)
        gain = self.part.beta * (scores.log_ratios - point)
        good = self.part.desirable_weight * (1 - torch.sigmoid(gain))
        bad = self.part.undesirable_weight * (1 - torch.sigmoid(-gain))
        return torch.where(scores.good, good, bad)


@implements(spec.SimPOLoss)
class SimPO(Loss):
    """-log σ(β (p(chosen) - p(rejected)) - γ), p the log-probability per token (Meng et al. 2024)."""

    def __call__(self, scores: AnswerScores) -> Tensor:
        chosen, rejected = scores.pairs(scores.policy / scores.lengths)
        return -F.logsigmoid(self.part.beta * (chosen - rejected) - self.part.gamma)
