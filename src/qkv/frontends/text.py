"""Token ids made into vectors with positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import Context
from qkv.layers.norms import build_norm
from qkv.layers.positions import build_positions
from qkv.ops.dropout import dropout
from qkv.spec.errors import UserError
from qkv.spec.model import Text
from qkv.spec.parts import Learned


class TextFrontend(nn.Module):
    """ids (B, N) -> vectors (B, N, D): E[id] · √D if scaled, + T[type] if there are types, joined by position vectors, normed, dropout.

    Joined by ``add``, both have width D; by ``concatenate``, each has D / 2. Types (BERT, Devlin et al. 2019) are 0 where none are given.
    """

    def __init__(self, part: Text, width: int, context_length: int, table: nn.Parameter | None = None):
        """``table``: the token vectors of another front end, to be shared."""
        super().__init__()
        if part.vocab_size is None:
            raise UserError("model.frontend.vocab_size is not known: give it, or build the model together with its tokenizer")
        self.part, self.limit = part, context_length if isinstance(part.positions, Learned) else None
        self.scale = width**0.5 if part.scale else 1.0
        self.norm = build_norm(part.norm, width)
        width = width if part.join == "add" else width // 2
        self.table = nn.Parameter(torch.empty(part.vocab_size, width)) if table is None else table
        self.types = nn.Parameter(torch.zeros(part.types, width)) if part.types else None
        self.positions = build_positions(part.positions, context_length, width)

    def forward(self, ids: Tensor, context: Context) -> Tensor:
        return self.placed(F.embedding(ids, self.table), context)

    def placed(self, x: Tensor, context: Context) -> Tensor:
        """Vectors (B, N, width of the table) with their types and positions."""
        if self.scale != 1.0:
            # Rounded to the vectors' precision, as Gemma was trained; in fp32 it is the same product.
            x = x * x.new_full((), self.scale)
        if self.types is not None:
            x = x + self._of_types(self.types, x, context)
        elif context.types is not None:
            raise UserError("types of tokens are given, and the front end has none; give frontend.types, or leave them out")
        if self.positions is not None:
            vectors = self.positions(context.positions).to(x.dtype)
            x = x + vectors if self.part.join == "add" else torch.cat((x, vectors.expand_as(x)), -1)
        return dropout(self.norm(x, context), self.part.dropout, self.training)

    @staticmethod
    def _of_types(table: Tensor, x: Tensor, context: Context) -> Tensor:
        """The vector of each token's type, (B or 1, N, D) or one for all."""
        if context.types is None:
            return table[0]
        if context.types.shape[-1] != x.shape[1] or context.types.shape[0] not in (1, x.shape[0]):
            given, needed = (" × ".join(map(str, shape)) for shape in (context.types.shape, x.shape[:2]))
            raise UserError(f"{given} types are given for {needed} tokens; give one for each")
        return F.embedding(context.types, table)
