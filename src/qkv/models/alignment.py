"""Which words of a source each word of a target looks at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.layers.tap import Recorder
from qkv.models.transformer import Transformer
from qkv.spec.errors import UserError


@torch.no_grad()
def alignment(model: Transformer, source: Sequence[int], target: Sequence[int]) -> list[tuple[str, Tensor]]:
    """(path of the branch, weights (H, N, M)) of every branch that attends to the encoder's output, in the order of the layers.

    ``source``: the M ids that the encoder reads.   ``target``: the N ids that the model reads; row i holds the weights of the position that
    has read ``target[i]`` and predicts what follows. Each row sums to 1; H is 1 for additive attention. Weights are those without
    dropout, whatever mode the model is in. Raises ``UserError`` where there is no encoder, or nothing attends to its output.
    """
    device = model.device
    ids, written = (torch.as_tensor(list(row), dtype=torch.long, device=device)[None] for row in (source, target))
    tap, training = Recorder("weights"), model.training
    model.eval()
    try:
        model.features(written, memory=model.encode(ids), tap=tap)
    finally:
        model.train(training)
    seen = {name.removesuffix(".weights"): weights[0] for name, weights in tap.seen.items()}
    found = [(branch.name, seen[branch.name]) for branch in model.branches if branch.spec.reads_memory and branch.name in seen]
    if not found:
        raise UserError("no branch of the model attends to the encoder's output; an alignment needs cross_attention or additive_attention")
    return found
