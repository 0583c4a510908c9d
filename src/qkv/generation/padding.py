"""Right-padded batches of texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padded(texts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return ids (B, N), right-padded with 0, and lengths (B); None if no row is padded."""
    counts = list(map(len, texts))
    longest = max(counts)
    if min(counts) == longest:
        return torch.tensor(texts, device=device), None
    ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=device)
    return ids, torch.tensor(counts, device=device)
