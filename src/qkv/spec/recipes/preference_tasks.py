"""Specs of training on preferences between answers, and of its losses."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from qkv.spec.base import Part
from qkv.spec.recipes.chat_tasks import Conversational


class PreferenceLoss(Part, slot=True):
    """Base class of losses on answers y to a prompt x.

    log π(y|x) is the log-probability of the answer's tokens under the model, and r(y) = log π(y|x) - log π_ref(y|x),
    where π_ref is the start of training.
    """

    needs_reference: ClassVar[bool] = True
    """True if the loss compares with the start of training."""
    judges: ClassVar[bool] = False
    """True if the loss is of single answers with a label, not of pairs."""


_BETA = "strength β with which the model is kept near the start"


class SigmoidLoss(PreferenceLoss, kind="sigmoid"):
    """Direct preference optimisation (Rafailov et al. 2023): -log σ(β (r(chosen) - r(rejected))).

    With ``label_smoothing`` ε: -(1 - ε) log σ(h) - ε log σ(-h) (conservative DPO, Mitchell 2023).
    """

    beta: float = Field(default=0.1, gt=0, description=_BETA)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5, description="share of pairs that may be reversed")


class IPOLoss(PreferenceLoss, kind="ipo"):
    """Identity preference optimisation (Azar et al. 2023): (h - 1 / (2 β))², h = r(chosen) - r(rejected).

    r is averaged over the tokens of the answer, so that the loss does not depend on its length.
    """

    beta: float = Field(default=0.1, gt=0, description=_BETA)


class KTOLoss(PreferenceLoss, kind="kto"):
    """Kahneman–Tversky optimisation of single answers (Ethayarajh et al. 2024).

    Good answers: w⁺ (1 - σ(β (r - z))); bad ones: w⁻ (1 - σ(β (z - r))); z = max(0, mean of r over prompts with the
    answer of another row), without a gradient.
    """

    judges: ClassVar[bool] = True
    beta: float = Field(default=0.1, gt=0, description=_BETA)
    desirable_weight: float = Field(default=1.0, gt=0, description="weight w⁺ of good answers")
    undesirable_weight: float = Field(default=1.0, gt=0, description="weight w⁻ of bad answers")


class SimPOLoss(PreferenceLoss, kind="simpo"):
    """Simple preference optimisation (Meng et al. 2024), without a reference: -log σ(β (p(chosen) - p(rejected)) - γ).

    p is the log-probability of an answer per token.
    """

    needs_reference: ClassVar[bool] = False
    beta: float = Field(default=2.0, gt=0, description="scale β of the difference")
    gamma: float = Field(default=1.0, ge=0, description="margin γ")


class Preference(Conversational, kind="preference"):
    """Preferences: of two answers to one prompt the chosen one, or single answers that are good or bad.

    A table has the columns ``prompt``, ``chosen`` and ``rejected``, or ``prompt``, ``completion`` and ``label``.
    """

    whole_rate_factor = 0.02  # 1e-6 at a width of 768, as published runs of DPO use; more moves all weights off
    loss: PreferenceLoss = SigmoidLoss()
    chosen_weight: float = Field(
        default=0.0, ge=0, description="weight of -log π(chosen) per token, which is added to the loss"
    )
