"""Front end of sound as an image: patches of log-mel frames."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qkv.frontends.patches import PatchFrontend
from qkv.layers.context import Context
from qkv.layers.signal import Signal
from qkv.spec.register import implements
from qkv.spec.signals.sound import MelPatches
from qkv.system.errors import UserError


@implements(MelPatches)
class MelPatchFrontend(PatchFrontend):
    """Front end for log-mel frames (B, T, bins): patches of the image (B, 1, bins, T), see ``PatchFrontend``."""

    part: MelPatches

    def check(self, signal: Signal) -> None:
        values, needed = signal.values, (self.part.width, self.part.height)
        if values.dim() != 3 or tuple(values.shape[1:]) != needed or not values.is_floating_point():
            shape = tuple(values.shape)
            raise UserError(
                f"sounds have the shape {shape}, and the model reads log-mel frames (B, {needed[0]}, {needed[1]})"
            )

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, self.part.width or 1, self.part.height or 1, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return super().forward(replace(signal, values=signal.values.mT[:, None]), context)
