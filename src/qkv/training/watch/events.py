"""Events of a run, which ``train`` passes to ``on_event``."""

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
    """Event: ``recipe`` will be trained in ``folder``, which may hold a run that is resumed."""

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
    """Event: the number of steps for the time budget ``minutes`` was planned, after update ``step`` (0: before
    training).

    ``steps``: planned steps, of at most ``most`` in the recipe; ``seconds``: expected time of the whole run, of which
    ``after`` seconds follow the last step.
    """

    step: int
    steps: int
    most: int
    minutes: float
    seconds: float
    after: float


@dataclass(frozen=True)
class Stepped:
    """Event: one update was made. ``loss`` in nats per token; ``tokens``: targets so far; ``seconds``: training time so
    far, including earlier starts.
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
    """Event: the held-out loss was measured after ``step`` updates. ``best``: True if the weights are the best so far
    by the run's metric.

    ``figures``: the task's metrics, such as perplexity and bits per character, the loss included; ``decides``: name of
    the metric that selects the weights to keep.
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
    """Event: the final evaluation of the weights of ``step`` on one split is done; ``figures``: the task's metrics."""

    step: int
    split: str
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Saved:
    """Event: a checkpoint was written after ``step`` updates."""

    step: int


@dataclass(frozen=True)
class Ended:
    """Event: training is over: ``finished``, ``stopped`` (by a signal) or ``failed``; ``message``: the reason, unless
    finished.
    """

    status: str
    step: int
    message: str


Event = Notice | Prepared | Started | Planned | Stepped | Validated | Sampled | Evaluated | Saved | Ended
OnEvent = Callable[[Event], object]
