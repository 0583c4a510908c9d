"""Settings common to all recipes that are chosen for data: time budget, short form, and training length."""

from __future__ import annotations

from typing import Any, Literal

from qkv.spec.training import AdamW, Checkpoints, Cosine, Training, Validation

MINUTES = 5.0
"""Default time budget of automatic recipes (``training.minutes``)."""
_SHORT = 500
"""Maximum number of steps of the short form."""
_FEWEST = 300
_PATIENCE = 8


def short_form(steps: int) -> dict[str, Any]:
    """Return the overrides for the short form of a recipe, a quick trial; ``steps``: number of steps of the full
    recipe.
    """
    short = max(1, min(steps // 10, _SHORT))
    return {"training.steps": short, "training.validation.every": max(1, short // 4)}


def training_of(
    examples: int,
    rows: int,
    epochs: int,
    precision: Literal["fp32", "bf16"] = "fp32",
    most: int | None = None,
    warmup: int = 100,
    final: float = 0.01,
    validated: int | None = None,
    validations: int = 10,
) -> Training:
    """Build training settings for ``epochs`` epochs of ``examples`` rows in batches of ``rows``, within the budget of
    ``MINUTES``.

    Training makes at most ``most`` steps. Every epoch, and at least ``validations`` times, it validates on
    ``validated`` batches (None: all), and stops when the validation no longer improves. ``final``: learning rate at the
    end, as a share of the highest.
    """
    epoch = max(1, examples // rows)
    target = max(_FEWEST, epochs * epoch)
    steps = target if most is None else min(most, target)
    every = max(10, min(steps // validations, epoch))
    return Training(
        steps=steps,
        minutes=MINUTES,
        batch_size=rows,
        optimizer=AdamW(lr=1e-3, weight_decay=0.05),
        precision=precision,
        schedule=Cosine(warmup=min(warmup, steps // 10), final=final),
        validation=Validation(every=every, batches=validated, patience=_PATIENCE),
        checkpoints=Checkpoints(every=every),
    )
