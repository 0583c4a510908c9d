"""``Batch``: what a model sees in one forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from qkv.layers.signal import Signal

INPUT, SOURCE = "input", "source"
"""Names of the signals of a model's own stack and of its encoder."""
IGNORED = -100
"""The target of a position that has no loss, as in ``torch.nn.functional.cross_entropy``."""


@dataclass(frozen=True)
class Batch:
    """What is read, what is to be predicted, and what else the task needs.

    signals: what is read, by name: ``INPUT`` by the model's own stack, ``SOURCE`` by its encoder.
    targets: (B, N), the id that follows each position or ``IGNORED``; or what else the task predicts.
    extras: what the loss or the figures need beside that, by name.
    count: number of targets, where it is not that of the integers in ``targets`` that are not ``IGNORED``.
    """

    signals: Mapping[str, Signal]
    targets: Tensor
    extras: Mapping[str, Any] = field(default_factory=dict)
    count: int | None = None

    @classmethod
    def of(cls, read: Signal | Tensor, targets: Tensor, source: Signal | None = None, count: int | None = None, **extras: Any) -> Self:
        """A batch of one signal, or of one and the source of an encoder."""
        signals = {INPUT: Signal.of(read)} | ({} if source is None else {SOURCE: source})
        return cls(signals, targets, extras, count)

    @property
    def input(self) -> Signal:
        """The signal of the model's own stack."""
        return self.signals[INPUT]

    @property
    def source(self) -> Signal | None:
        """The signal of the encoder, if there is one."""
        return self.signals.get(SOURCE)

    def to(self, device: torch.device | str) -> Self:
        """The same batch on ``device``."""
        signals = {name: signal.to(device) for name, signal in self.signals.items()}
        extras = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in self.extras.items()}
        return replace(self, signals=signals, targets=self.targets.to(device), extras=extras)

    @property
    def num_targets(self) -> int:
        """Positions, or rows, that have a loss."""
        return int((self.targets != IGNORED).sum()) if self.count is None else self.count

    @property
    def num_tokens(self) -> int:
        """Values that the model reads, padding left out."""
        return sum(signal.num_read for signal in self.signals.values())

    @property
    def computed(self) -> tuple[int, int, int]:
        """Rows, positions of their input and of all else that is read: what a forward pass computes, padding included."""
        read = sum(signal.num_positions for signal in self.signals.values())
        return self.input.num_rows, self.input.num_positions, read - self.input.num_positions
