"""Events of a run, which ``train`` passes to its argument ``on_event``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qkv.spec.recipe import Recipe


@dataclass(frozen=True)
class Notice:
    """Event: a message for the user."""

    text: str


@dataclass(frozen=True)
class Prepared:
    """Event: ``recipe`` is about to be trained in ``folder``, or the run in that folder to be resumed."""

    recipe: Recipe
    folder: Path


@dataclass(frozen=True)
class Started:
    """Event: training starts, or resumes after ``step`` of ``steps`` updates. ``counted``: unit of the speed, such as
    tokens or examples.
    """

    step: int
    steps: int
    parameters: int
    tokens_per_step: int
    counted: str = "tokens"


@dataclass(frozen=True)
class Planned:
    """Event: the number of steps was planned for a time budget of ``minutes``, after update ``step`` (0: before
    training).

    ``steps``: planned steps; ``most``: steps in the recipe, the upper bound; ``seconds``: expected time of the whole
    run; ``after``: the share of these seconds that follows the last step.
    """

    step: int
    steps: int
    most: int
    minutes: float
    seconds: float
    after: float


@dataclass(frozen=True)
class Stepped:
    """Event: one update was made. ``loss`` in nats per target; ``tokens``: number of targets so far; ``seconds``:
    training time so far, including the time before the run was resumed.
    """

    step: int
    steps: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    tokens_per_second: float
    seconds: float


@dataclass(frozen=True)
class Validated:
    """Event: the held-out loss was measured after ``step`` updates. ``best``: True if these weights are the best so far
    by the run's metric.

    ``figures``: the task's metrics, such as perplexity and bits per character, including the loss; ``decides``: name of
    the metric that selects the best weights.
    """

    step: int
    loss: float
    best: bool
    seconds: float
    figures: Mapping[str, float]
    decides: str = "loss"


@dataclass(frozen=True)
class Sampled:
    """Event: the model generated a sample text after ``step`` updates."""

    step: int
    text: str


@dataclass(frozen=True)
class Evaluated:
    """Event: the weights of ``step`` were evaluated on one split, after training; ``figures``: the task's metrics."""

    step: int
    split: str
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Saved:
    """Event: a checkpoint was written after ``step`` updates."""

    step: int


@dataclass(frozen=True)
class Ended:
    """Event: training has ended. ``status``: ``finished``, ``stopped`` (by a signal) or ``failed``; ``message``: the
    reason, unless finished.
    """

    status: str
    step: int
    message: str


Event = Notice | Prepared | Started | Planned | Stepped | Validated | Sampled | Evaluated | Saved | Ended
OnEvent = Callable[[Event], object]
