"""What a run tells while it goes on; ``train`` calls ``on_event`` with each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """A sentence that a person should see once."""

    text: str


@dataclass(frozen=True)
class Started:
    """Training begins, or goes on after ``step`` of ``steps`` updates. ``counted``: what the speed counts, such as tokens or examples."""

    step: int
    steps: int
    parameters: int
    tokens_per_step: int
    counted: str = "tokens"


@dataclass(frozen=True)
class Planned:
    """Plan for ``training.minutes``: ``steps`` of at most ``most``, decided after ``step`` of them, and the seconds of the whole run.

    ``after``: how many of these seconds come after the last step.
    """

    step: int
    steps: int
    most: int
    minutes: float
    seconds: float
    after: float


@dataclass(frozen=True)
class Stepped:
    """One update. Loss in nats a token; ``seconds`` is the training time so far, earlier starts included."""

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
    """The held-out loss after ``step`` updates; ``best`` if it is the lowest so far.

    ``figures`` are the task's own: perplexity, bits per character and others.
    """

    step: int
    loss: float
    best: bool
    seconds: float
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Sampled:
    """What the model writes after ``step`` updates."""

    step: int
    text: str


@dataclass(frozen=True)
class Examined:
    """The weights of ``step`` were examined on a split; ``figures`` are the task's."""

    step: int
    split: str
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Saved:
    """A checkpoint is complete."""

    step: int


@dataclass(frozen=True)
class Ended:
    """Training is over: ``finished``, ``stopped`` (by a signal) or ``failed``; ``message`` says why if it is not finished."""

    status: str
    step: int
    message: str


Event = Notice | Started | Planned | Stepped | Validated | Sampled | Examined | Saved | Ended
OnEvent = Callable[[Event], object]
