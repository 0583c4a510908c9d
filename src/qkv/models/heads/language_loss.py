"""Summed cross entropy of a language model, in chunks where all logits would take too much memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.heads.cross_entropy import chunked_cross_entropy, cross_entropy
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single

# Up to 64 MB of fp32 logits are faster unchunked; above, chunks of at least 256 rows are as fast.
_MOST_LOGITS = 1 << 24
_SHARE = 1 << 23
_FEWEST_ROWS = 256


def language_loss(model: Transformer, signal: Signal, targets: Tensor, smoothing: float = 0.0, **how: Any) -> Tensor:
    """Return -Σ log p(target) in nats over the targets (B, N) other than -100.

    ``how``: keyword arguments ``memory`` and ``tap`` for ``model.features``.
    """
    hidden, _ = model.features(signal, **how)
    return loss_of_vectors(model, hidden.flatten(0, 1), targets.flatten(), smoothing, how.get("tap"))


def log_probabilities(model: Transformer, vectors: Tensor, targets: Tensor) -> Tensor:
    """Return log p(target) in nats (T) of each target (T), from the head's input ``vectors`` (T, D).

    Where all logits would take too much memory, the head computes a few rows at a time, and again for the gradient.
    """

    def of(some: Tensor, ids: Tensor) -> Tensor:
        return -F.cross_entropy(at_least_single(model.head(some)), ids, reduction="none")

    vocab = model.vocab_size
    assert vocab is not None  # a language model reads tokens
    if targets.numel() * vocab <= _MOST_LOGITS:
        return of(vectors, targets)
    rows = max(_FEWEST_ROWS, _SHARE // vocab)
    shares = zip(vectors.split(rows), targets.split(rows), strict=True)
    return torch.cat([checkpoint(of, *share, use_reentrant=False) for share in shares])


def loss_of_vectors(
    model: Transformer, vectors: Tensor, targets: Tensor, smoothing: float = 0.0, tap: Tap | None = None
) -> Tensor:
    """Return -Σ log p(target) in nats over targets (T) other than -100, from the head's input ``vectors`` (T, D)."""
    vocab, tap = model.vocab_size, model.taps(tap)
    assert vocab is not None  # a language model reads tokens
    rows = max(_FEWEST_ROWS, _SHARE // vocab)
    if model.offers(tap, "head.output"):
        shares = zip(vectors.split(rows), targets.split(rows), strict=True)
        return torch.stack(
            [cross_entropy(model.offer(tap, "head.output", model.head(x)), t, smoothing) for x, t in shares]
        ).sum()
    if targets.numel() * vocab <= _MOST_LOGITS:
        return cross_entropy(model.head(vectors), targets, smoothing)
    return chunked_cross_entropy(vectors, model.head, targets, rows, smoothing)
