"""Front end, blocks and head of a self-contained model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.interop.remote.pieces.common import ACTIVATIONS, Part, Place, at_least_single, make


class LearnedPositions(nn.Module):
    """Learned position embeddings: a table with one vector per position."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.offset, self.table = part["offset"], nn.Parameter(torch.zeros(part["rows"], width))

    def forward(self, positions: Tensor) -> Tensor:
        return F.embedding(positions + self.offset, self.table)


class Frontend(nn.Module):
    """Token embeddings with positions: ids (B, N) to vectors (B, N, D)."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.part, self.scale = part, part["scale"]
        self.norm = make("norm", part["norm"], width)
        self.width = width if part["join"] == "add" else width // 2
        self.table = nn.Parameter(torch.zeros(part["vocab_size"], self.width))
        learned = part["positions"]["kind"] == "learned"
        self.positions = LearnedPositions(part["positions"], self.width) if learned else None

    def forward(self, ids: Tensor, place: Place) -> Tensor:
        x = F.embedding(ids, self.table) * self.scale
        vectors = self._vectors(place.positions, at_least_single(x.dtype))
        if vectors is not None:
            vectors = vectors.to(x.dtype)
            x = x + vectors if self.part["join"] == "add" else torch.cat((x, vectors.expand_as(x)), -1)
        return self.norm(x)

    def _vectors(self, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        if self.positions is not None:
            return self.positions(positions)
        part = self.part["positions"]
        if part["kind"] == "none":
            return None
        steps = torch.arange(0, self.width, 2, device=positions.device, dtype=dtype)
        angles = positions[..., None] * part["base"] ** (-steps / self.width)
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., : self.width]


class Slot(nn.Module):
    """Branch ``j`` of a block (attention, feed-forward, …) with its norms and its residual connection."""

    def __init__(self, block: Part, j: int, width: int):
        super().__init__()
        self.order = block["order"]
        self.body = make("branch", block["branches"][j], width)
        self.residual = make("residual", block["residual"], width)
        own = self.order != "parallel" or block["own_norms"]
        self.norm = make("norm", block["norms"][j], width) if own else None
        if self.order == "sandwich":
            self.norm_after = make("norm", block["norms"][j], width)

    def forward(self, x: Tensor, read: Tensor, place: Place) -> Tensor:
        """Output of the residual connection; ``x`` (B, N, D): residual stream, ``read``: input of the branch."""
        if self.order == "post":
            return self.norm(self.residual(x, self.body(read, place)))  # type: ignore[misc]
        y = self.body(read if self.norm is None else self.norm(read), place)
        return self.residual(x, self.norm_after(y) if self.order == "sandwich" else y)


class Block(nn.Module):
    """Transformer block: a list of branches, sequential or parallel."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.parallel = part["order"] == "parallel"
        self.branches = nn.ModuleList(Slot(part, j, width) for j in range(len(part["branches"])))
        self.norm = make("norm", part["norms"][0], width) if self.parallel and not part["own_norms"] else None

    def forward(self, x: Tensor, place: Place) -> Tensor:
        shared = x if self.norm is None else self.norm(x)
        for slot in self.branches:
            x = slot(x, shared if self.parallel else x, place)
        return x


class Transform(nn.Module):
    """Hidden layer norm(φ(x W + b)) of a language model head, before the logits (Devlin et al. 2019)."""

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.dense = nn.Linear(width, width, bias=part["transform_bias"])
        self.activation, self.norm = ACTIVATIONS[part["transform"]], make("norm", part["norm"], width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class Head(nn.Module):
    """Language model head: logits of the next token, from its own matrix or, if tied, the token table."""

    def __init__(self, part: Part, width: int, vocab_size: int):
        super().__init__()
        self.scale, self.cap = part["scale"], part["softcap"]
        self.transform = Transform(part, width) if part["transform"] else None
        self.weight = None if part["tied"] else nn.Parameter(torch.zeros(vocab_size, width))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if part["bias"] else None

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x if self.transform is None else self.transform(x)
        logits = F.linear(x * self.scale, table if self.weight is None else self.weight, self.bias)
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits
