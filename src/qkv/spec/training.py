"""Specs of training: optimiser, schedule, validation and checkpoints."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat

from qkv.spec.base import LARGEST_SEED, Part, Seq, Spec
from qkv.spec.models.adapt import Adapt, Whole


class Optimizer(Part, slot=True):
    """Base class of optimisers."""

    lr: float

    def numbers(self, parameters: int, matrices: int) -> int:
        """Return the number of values in the optimiser's state for ``parameters`` parameters; by default two for each.

        ``matrices``: how many of these parameters are in matrices of blocks.
        """
        return 2 * parameters


class AdamW(Optimizer, kind="adamw"):
    """Adam with decoupled weight decay, on matrices only (Loshchilov & Hutter 2019)."""

    lr: float = Field(default=1e-3, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)


class Muon(Optimizer, kind="muon"):
    """Momentum orthogonalised by Newton–Schulz iterations for block matrices (Jordan et al. 2024); else AdamW."""

    lr: float = Field(default=0.02, gt=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: float = Field(default=0.0, ge=0)
    others: AdamW = AdamW(lr=3e-3, weight_decay=0.0)

    def numbers(self, parameters: int, matrices: int) -> int:
        return matrices + self.others.numbers(parameters - matrices, 0)


class Schedule(Part, slot=True):
    """Base class of learning rate schedules: a factor of the optimiser's ``lr``, by step."""

    fixed_by_warmup: ClassVar[bool] = False
    """True if the warm-up, not the number of steps, determines the rates of all steps."""

    warmup: int = Field(default=0, ge=0, description="steps of linear warm-up")


class Constant(Schedule, kind="constant"):
    """Constant factor 1 after the warm-up."""


class InverseSquareRoot(Schedule, kind="inverse_square_root"):
    """lr(s) = D^-½ · min(s^-½, s · w^-3/2), warm-up w (Vaswani et al. 2017), as a multiple of the optimiser's rate."""

    fixed_by_warmup = True
    warmup: int = Field(default=4000, gt=0)


class Cosine(Schedule, kind="cosine"):
    """Half a cosine from 1 to ``final`` over the steps after warm-up (Loshchilov & Hutter 2017)."""

    final: float = Field(default=0.1, ge=0, le=1)


class LinearDecay(Schedule, kind="linear"):
    """Linear decay of the factor from 1 to ``final`` after the warm-up."""

    final: float = Field(default=0.0, ge=0, le=1)


class WarmupStableDecay(Schedule, kind="warmup_stable_decay"):
    """Factor 1, then linear decay to ``final`` over the last fraction ``decay`` of the steps (Hu et al. 2024)."""

    decay: float = Field(default=0.2, gt=0, le=1)
    final: float = Field(default=0.0, ge=0, le=1)


class Validation(Spec):
    """Validation on held-out data, and early stopping."""

    every: int = Field(default=250, gt=0, description="steps between validations")
    batches: int | None = Field(default=20, gt=0, description="batches per validation; null: the whole split")
    best: str = Field(
        default="loss",
        min_length=1,
        description="metric that selects the weights to keep: lowest for losses and errors, "
        "highest for accuracy and similar",
    )
    patience: int | None = Field(
        default=None, gt=0, description="stop after this many validations with no better metric and no lower loss"
    )


class Checkpoints(Spec):
    """Checkpoint intervals. A killed run loses at most the steps since its last checkpoint."""

    every: int = Field(default=250, gt=0, description="steps between checkpoints")
    seconds: float | None = Field(default=60.0, gt=0, description="maximum seconds between checkpoints")
    keep: int = Field(
        default=2, gt=0, description="number of checkpoints to keep; a run resumes from the latest undamaged one"
    )


class Training(Spec):
    """Training: steps, batch size, optimiser, schedule, trainable parameters, precision, validation, checkpoints."""

    steps: int = Field(default=2000, gt=0)
    minutes: float | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        description="time budget of the whole run, final evaluation included; steps is then an upper bound",
    )
    batch_size: int = Field(default=12, gt=0, description="sequences per forward pass")
    accumulate: int = Field(default=1, gt=0, description="forward passes per update")
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Cosine(warmup=100)
    adapt: Adapt = Whole()
    frozen: Seq[str] = Field(
        default=(), description="path patterns of frozen parameters, such as frontend or blocks.0.*"
    )
    rates: dict[str, PositiveFloat] = Field(
        default={}, description="learning rate factors by path pattern; the first match counts"
    )
    clip_norm: float | None = Field(default=1.0, gt=0)
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="precision of matrix products; bf16 is used only if it is faster than fp32 on the machine",
    )
    spikes: Literal["report", "skip", "rollback"] = Field(
        default="report",
        description="what is done about a loss spike: skip makes no update, rollback also returns to the weights of "
        "the last step that is a multiple of 100",
    )
    compile: bool = False
    recompute: bool = Field(
        default=False, description="activation checkpointing: recompute each block in the backward pass"
    )
    seed: int = Field(default=1337, ge=0, le=LARGEST_SEED)
    validation: Validation = Validation()
    checkpoints: Checkpoints = Checkpoints()
    sample_every: int | None = Field(
        default=None, gt=0, description="steps between samples shown in the report; default: at each validation"
    )
    tensorboard: bool = Field(
        default=False, description="also write TensorBoard event files (needs the extra qkv[tensorboard])"
    )
