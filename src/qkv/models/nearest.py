"""Texts of the training rows, found by the similarity of simple features: the rival of a model that writes texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from qkv.models.wide import WidePath
from qkv.spec.models import wide as spec
from qkv.spec.register import implements
from qkv.system.errors import UserError


@implements(spec.Nearest)
class Nearest(WidePath):
    """Texts of N rows, and a vector for each: v = (x - mean) / deviation of its features x (F), divided by its norm.

    vectors (N, F), in fp16.   texts (S), uint8: all texts in UTF-8, of which text i ends before ends[i].   Rows from
    ``kept`` on are empty.
    """

    mean: Tensor
    deviation: Tensor
    vectors: Tensor
    texts: Tensor
    ends: Tensor
    kept: Tensor

    def __init__(self, part: spec.Nearest, num_outputs: int):
        super().__init__()
        if part.count is None or part.rows is None or part.size is None:
            raise UserError("wide.count and wide.rows are unknown: set them, or build the path together with its data")
        self.register_buffer("mean", torch.zeros(part.count))
        self.register_buffer("deviation", torch.ones(part.count))
        self.register_buffer("vectors", torch.zeros(part.rows, part.count, dtype=torch.float16))
        self.register_buffer("texts", torch.zeros(part.size, dtype=torch.uint8))
        self.register_buffer("ends", torch.zeros(part.rows, dtype=torch.long))
        self.register_buffer("kept", torch.tensor(0))

    def place(self, features: np.ndarray, texts: Sequence[str]) -> None:
        """Keep the features (n, F) and texts of n ≤ N rows."""
        contents = [text.encode() for text in texts]
        self.mean.copy_(torch.from_numpy(features.mean(0)))
        self.deviation.copy_(torch.from_numpy(features.std(0) + 1e-6))
        self.kept.fill_(len(texts))
        self.vectors[: len(texts)] = self._unit(features).to(torch.float16)
        self.texts[: sum(map(len, contents))] = torch.from_numpy(np.frombuffer(b"".join(contents), np.uint8).copy())
        self.ends[: len(texts)] = torch.from_numpy(np.cumsum([*map(len, contents)]))

    def nearest(self, features: np.ndarray) -> list[str]:
        """Return the text of the most similar row, by cosine, for each row of features (n, F)."""
        rows = (self._unit(features) @ self.vectors[: int(self.kept)].to(torch.float32).T).argmax(1).tolist()
        content, ends = self.texts.cpu().numpy().tobytes(), [0, *self.ends.tolist()]
        return [content[ends[row] : ends[row + 1]].decode() for row in rows]

    def _unit(self, features: np.ndarray) -> Tensor:
        x = torch.from_numpy(features.astype(np.float32)).to(self.mean.device)
        return torch.nn.functional.normalize((x - self.mean) / self.deviation, dim=-1)
