"""Damage: how much the loss of a model rises when a value inside it is replaced."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single

_RESAMPLES = 1000


class Rise(NamedTuple):
    """Loss after a change, its rise from the loss before, and the 95 % bootstrap interval of the rise over rows."""

    loss: float
    rise: float
    interval: tuple[float, float]


class Damage:
    """Loss of a model on rows, before and after a change, in nats per position.

    A causal language model: cross-entropy of the next token, of all tokens from position ``start`` on. Other heads with
    classes: KL(p ‖ p') of the outputs before and after; other outputs: mean squared difference.
    """

    def __init__(self, model: Transformer, signal: Signal, source: Signal | None = None, start: int = 0):
        self.model, self.signal, self.source, self.start = model, signal, source, start
        ids = signal.values
        self._next = model.spec.decodes and model.spec.head.predicts_tokens and ids.dim() == 2
        self._output = self._run(None)
        self.before = self._losses(self._output)
        """Loss of each row (B) before any change; NaN of a row without a position that counts."""

    @property
    def loss(self) -> float:
        """Mean loss before any change."""
        return float(self.before.nanmean())

    def after(self, tap: Tap | None = None) -> Rise:
        """Return the loss when ``tap`` changes values, or the taps of ``model.tapped`` do."""
        losses = self._losses(self._run(tap))
        rises = (losses - self.before)[~self.before.isnan()]
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(len(rises), (_RESAMPLES, len(rises)), generator=generator).to(rises.device)
        low, high = torch.quantile(rises[drawn].mean(1), torch.tensor([0.025, 0.975]).to(rises)).tolist()
        return Rise(float(losses.nanmean()), float(rises.mean()), (low, high))

    @torch.no_grad()
    def _run(self, tap: Tap | None) -> Tensor:
        with evaluating(self.model):
            memory = None if self.source is None else self.model.encode(self.source, tap)
            return self.model(self.signal, memory=memory, tap=tap)[0]

    def _losses(self, output: Tensor) -> Tensor:
        """Return the loss (B) of each row."""
        if self._next:
            logs = at_least_single(output[:, :-1]).log_softmax(-1)
            targets = self.signal.values[:, 1:]
            losses = -logs.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
            losses = losses.masked_fill(targets < 0, torch.nan)  # places of another input, such as an image
            return self._mean(losses, max(0, self.start - 1), 1)
        output, before = at_least_single(output), at_least_single(self._output)
        if self.model.spec.head.classes == 0 and not self.model.spec.head.predicts_tokens:
            return (output - before).square().flatten(1).mean(1)
        logs, old = output.log_softmax(-1), before.log_softmax(-1)
        losses = (old.exp() * (old - logs)).sum(-1)
        return losses if losses.dim() == 1 else self._mean(losses, self.start, 0)

    def _mean(self, losses: Tensor, first: int, without: int) -> Tensor:
        """Return the mean of losses (B, N) over real positions from ``first`` on; a row has ``without`` fewer."""
        steps = torch.arange(losses.shape[1], device=losses.device)
        real = (steps >= first).expand_as(losses)
        if self.signal.lengths is not None and losses.shape[1] + without == self.signal.values.shape[1]:
            real = real & (steps < self.signal.lengths[:, None] - without)
        return losses.masked_fill(~real, torch.nan).nanmean(1)
