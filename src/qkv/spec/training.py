"""How a model is trained, as data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from qkv.spec.adapt import Adapt, Whole
from qkv.spec.base import LARGEST_SEED, Part, Seq, Spec


class Optimizer(Part, slot=True):
    """Which rule updates the weights."""

    lr: float


class AdamW(Optimizer, kind="adamw"):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); decay on matrices only."""

    lr: float = Field(default=1e-3, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)


class Muon(Optimizer, kind="muon"):
    """Momentum made orthogonal by Newton-Schulz steps, for the matrices of the blocks (Jordan et al. 2024); AdamW for all else."""

    lr: float = Field(default=0.02, gt=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: float = Field(default=0.0, ge=0)
    others: AdamW = AdamW(lr=3e-3, weight_decay=0.0)


class Schedule(Part, slot=True):
    """The learning rate as a multiple of the optimiser's, by step."""

    warmup: int = Field(default=0, ge=0, description="steps of linear rise")


class Constant(Schedule, kind="constant"):
    """1 after the warm-up."""


class InverseSquareRoot(Schedule, kind="inverse_square_root"):
    """lr(s) = D^-½ · min(s^-½, s · w^-3/2) with w the warm-up (Vaswani et al. 2017), as a multiple of the optimiser's rate."""

    warmup: int = Field(default=4000, gt=0)


class Cosine(Schedule, kind="cosine"):
    """From 1 to ``final`` along half a cosine over the steps after the warm-up (Loshchilov & Hutter 2017)."""

    final: float = Field(default=0.1, ge=0, le=1)


class Linear(Schedule, kind="linear"):
    """From 1 to ``final`` in a straight line."""

    final: float = Field(default=0.0, ge=0, le=1)


class WarmupStableDecay(Schedule, kind="warmup_stable_decay"):
    """1 until the last ``decay`` share of the steps, then a straight line to ``final`` (Hu et al. 2024)."""

    decay: float = Field(default=0.2, gt=0, le=1)
    final: float = Field(default=0.0, ge=0, le=1)


class Validation(Spec):
    """When the held-out text is measured, and when training stops early."""

    every: int = Field(default=250, gt=0, description="steps")
    batches: int | None = Field(default=20, gt=0, description="how many; null for the whole split")
    best: str = Field(
        default="loss",
        min_length=1,
        description="the figure whose best weights are kept: loss and other errors at their lowest, accuracy and the like at their highest",
    )
    patience: int | None = Field(default=None, gt=0, description="stop after this many validations without a better figure")


class Checkpoints(Spec):
    """When the run is saved. A kill loses at most the steps since the last save."""

    every: int = Field(default=250, gt=0, description="steps")
    seconds: float | None = Field(default=60.0, gt=0, description="also after this much time")
    keep: int = Field(default=2, gt=0, description="how many stay; with two, a damaged one costs only the steps since the one before it")


class Training(Spec):
    """Steps, batch and everything that decides the next weights."""

    steps: int = Field(default=2000, gt=0)
    minutes: float | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        description="a budget for the whole run, exam included: steps are then the most, and fewer are made where they do not fit",
    )
    batch_size: int = Field(default=12, gt=0, description="sequences of one forward pass")
    accumulate: int = Field(default=1, gt=0, description="forward passes before one update")
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Cosine(warmup=100)
    adapt: Adapt = Whole()
    frozen: Seq[str] = Field(default=(), description="patterns of paths of parameters that do not learn, such as frontend or blocks.0.*")
    rates: dict[str, PositiveFloat] = Field(
        default={}, description="factors of the learning rate by patterns of parameter paths; the first that meets a parameter counts"
    )
    clip_norm: float | None = Field(default=1.0, gt=0)
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="of matrix products; bf16 is used where the machine multiplies faster in it than in fp32"
    )
    compile: bool = False
    recompute: bool = Field(default=False, description="activation checkpointing: recompute each block in the backward pass")
    seed: int = Field(default=1337, ge=0, le=LARGEST_SEED)
    validation: Validation = Validation()
    checkpoints: Checkpoints = Checkpoints()
    sample_every: int | None = Field(
        default=None, gt=0, description="steps between samples shown in the report; default: at each validation"
    )
    tensorboard: bool = Field(default=False, description="also write event files for TensorBoard (the extra qkv[tensorboard])")
