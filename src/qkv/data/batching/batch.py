"""``Batch``: inputs and targets of one forward pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.spec.processors import INPUT as INPUT

SOURCE = "source"
"""Name of the encoder's input signal; ``INPUT`` is the name of the input signal of the model's own stack."""
IGNORED = -100
"""Target of a position without loss, as in ``torch.nn.functional.cross_entropy``."""


@dataclass(frozen=True)
class Batch:
    """Batch: inputs, targets and further data of one forward pass.

    signals: inputs by name: ``INPUT`` for the model's own stack, ``SOURCE`` for its encoder.
    targets: (B, N), the next id at each position or ``IGNORED``; or other targets of the task.
    extras: further data for the loss or the metrics, by name.
    count: number of targets; None: the integers in ``targets`` other than ``IGNORED``.
    """

    signals: Mapping[str, Signal]
    targets: Tensor
    extras: Mapping[str, Any] = field(default_factory=dict)
    count: int | None = None

    @classmethod
    def of(
        cls,
        read: Signal | Tensor,
        targets: Tensor,
        source: Signal | None = None,
        count: int | None = None,
        **extras: Any,
    ) -> Self:
        """Build a batch of the input signal ``read``, ids (B, N) or a ``Signal``, and optionally an encoder's
        ``source``.

        ``extras`` and ``count``: as in the class.
        """
        signals = {INPUT: Signal.of(read)} | ({} if source is None else {SOURCE: source})
        return cls(signals, targets, extras, count)

    @property
    def input(self) -> Signal:
        """Input signal of the model's own stack (the decoder, if there is an encoder)."""
        return self.signals[INPUT]

    @property
    def source(self) -> Signal | None:
        """Input signal of the encoder; None if there is no encoder."""
        return self.signals.get(SOURCE)

    def to(self, device: torch.device | str) -> Self:
        """Return a copy of the batch on ``device``."""
        signals = {name: signal.to(device) for name, signal in self.signals.items()}
        extras = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in self.extras.items()}
        return replace(self, signals=signals, targets=self.targets.to(device), extras=extras)

    def part(self, index: int, count: int, extras: Collection[str] = ()) -> Self | None:
        """Return part ``index`` of ``count`` parts of the rows, whose sizes differ by at most one; the part has no rows
        if there are fewer rows than parts.

        extras: names of the tensors among the extras with one entry per row. Returns None if the batch cannot be
        divided, because its rows share edges, named inputs or other extras.
        """
        rows = self.input.num_rows
        first, last = rows * index // count, rows * (index + 1) // count
        signals = {name: signal.some_rows(first, last) for name, signal in self.signals.items()}
        several = {name for name, value in self.extras.items() if isinstance(value, Tensor) and value.dim()}
        if None in signals.values() or not several <= set(extras) or len(self.targets) != rows:
            return None
        cut = {name: value[first:last] if name in several else value for name, value in self.extras.items()}
        targets = None if self.count is None else round(self.count * (last - first) / rows)
        return replace(self, signals=signals, targets=self.targets[first:last], extras=cut, count=targets)

    @property
    def num_targets(self) -> int:
        """Number of targets that enter the loss: ``count``, or if it is None the number of targets other than
        ``IGNORED``.
        """
        return int((self.targets != IGNORED).sum()) if self.count is None else self.count
