"""Head of connectionist temporal classification (CTC)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.models.heads.head import PredictionHead
from qkv.ops.at_least_single import at_least_single
from qkv.spec.heads import CTCHead
from qkv.spec.register import implements
from qkv.system.errors import UserError


@implements(CTCHead)
class CTCTranscriber(PredictionHead):
    """Head of CTC (Graves et al. 2006): logits (B, N, C) of each position, of the tokens and the blank.

    Loss: -log Σ_π Π_i p(π_i | x_i) over the alignments π of the text, which merge to it: equal neighbours become one,
    then blanks are removed. Targets (B, L) are token ids, padded on the right with negative numbers.
    """

    def __init__(self, part: CTCHead, width: int, table: object):
        if part.num_classes is None or part.blank is None:
            raise UserError(
                "model.head.num_classes and blank are unknown: set them, or build the model together with its data"
            )
        super().__init__(part, width, part.num_classes)
        self.blank = part.blank

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        if self.num_outputs == 1:  # the blank alone
            return torch.full((rows, 1), -1)
        drawn = torch.randint(self.num_outputs - 1, (rows, max(1, length // 4)), generator=generator)
        return drawn + (drawn >= self.blank)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the loss summed over rows, all of whose positions are read; targets are not smoothed."""
        return self.loss_within(outputs, None, targets)

    def loss_within(self, outputs: Tensor, lengths: Tensor | None, targets: Tensor) -> Tensor:
        """Return the loss summed over rows; lengths (B): positions of each row, None for all.

        The loss and the gradient of a row whose text has no alignment, as it is too long, are 0.
        """
        count, read = outputs.shape[1], targets >= 0
        if lengths is None:
            lengths = torch.full((len(outputs),), count, device=outputs.device)
        chances = at_least_single(outputs).log_softmax(-1).transpose(0, 1)
        if chances.is_meta:  # torch has no kernel without values; the recursion is small beside the model
            return chances.sum()
        arguments = targets.clamp(min=0), lengths.clamp(max=count), read.sum(1)
        return F.ctc_loss(chances, *arguments, self.blank, "sum", zero_infinity=True)
