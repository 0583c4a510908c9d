"""Front end for text: token embeddings with positions."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.frontends.border import check_ids, check_vocabulary
from qkv.frontends.frontend import Past
from qkv.frontends.placed import PlacedFrontend
from qkv.layers.context import Context, Memories
from qkv.layers.layout import ROWS, Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.linear.quantized import QuantizedTable, matrix_of
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.ops.quantized.reference import lookup
from qkv.spec.frontends import Text
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.image_sequences import CodeTokens
from qkv.system.errors import UserError

MASKED_SHARE = 0.15 * 0.8
"""Share of mask tokens in training: of 15 % of the tokens, 80 % are replaced by one (Devlin et al. 2019)."""


@implements(Text, CodeTokens)
class TextFrontend(PlacedFrontend):
    """Front end for text: token ids (B, N) -> vectors (B, N, D).

    E[id], times √D if scaled and times ``multiplier``, plus T[type] if there are types, with position vectors, norm and
    dropout. D is ``width`` of the front end if it is set, else the width of the stack. Position vectors are added with
    width D, or concatenated with width D / 2. Types (BERT, Devlin et al. 2019) default to 0. If the front end has a
    query vector, id -1 selects it (XLNet, Yang et al. 2019).
    """

    part: Text
    table: nn.Parameter | QuantizedTable

    def __init__(self, part: Text, stack: Stack, width: int, table: nn.Parameter | None = None):
        """Create the tables. ``table``: token embeddings shared with another front end; None to create new ones."""
        if part.vocab_size is None:
            raise UserError(
                "model.frontend.vocab_size is not set: set it, or build the model together with its tokenizer"
            )
        inner = part.placed_width(width)
        super().__init__(part, stack, inner)
        self.scale = part.multiplier * (inner**0.5 if part.scale else 1.0)
        self.typed = stack.reads_types or part.types > 0
        self.fill_length = stack.context_length
        self.projection = Linear(inner, part.own_width(width)) if part.embedding_width else None
        width = part.vector_width(inner)
        self.table = nn.Parameter(torch.empty(part.vocab_size, width)) if table is None else table
        self.types = nn.Parameter(torch.zeros(part.types, width)) if part.types else None
        self.query = nn.Parameter(torch.zeros(1, 1, width)) if part.query else None

    @property
    def device(self) -> torch.device:
        return self.table.device

    def layouts(self) -> Layouts:
        return {"table": ROWS, "types": ROWS}

    def initialise(self, std: float) -> None:
        for vectors in (self.table, self.types, self.query):
            if isinstance(vectors, nn.Parameter):
                nn.init.normal_(vectors, std=std)

    def embed(
        self, signal: Signal, past: Past | None = None, tap: Tap | None = None, memories: Memories | None = None
    ) -> tuple[Tensor, Context]:
        return super().embed(
            signal if self.part.fill is None else self._filled(signal, self.part.fill), past, tap, memories
        )

    def _filled(self, signal: Signal, fill: int) -> Signal:
        """Fill rows of a signal up to the context length with the id ``fill``, of type 0, which is no padding."""
        ids, lengths = signal.values, signal.lengths
        if lengths is not None:
            ids = ids.masked_fill(torch.arange(ids.shape[1], device=ids.device) >= lengths[:, None], fill)
        missing = max(0, self.fill_length - ids.shape[1])
        types = None if signal.types is None else F.pad(signal.types, (0, missing))
        return replace(signal, values=F.pad(ids, (0, missing), value=fill), types=types, lengths=None)

    def check(self, signal: Signal) -> None:
        check_ids(signal.values, self.device)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randint(self.table.shape[0], (rows, length), generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        x = self.placed(self.embedded(signal, context), context)
        return x if self.projection is None else self.projection(x)

    def embedded(self, signal: Signal, context: Context) -> Tensor:
        """Embed tokens and types, without positions -> (B, N, D)."""
        x = self.token_vectors(signal)
        if self.part.mask_token is not None:
            x = x * self._token_factors(signal.values == self.part.mask_token, context.valid)[..., None].to(x.dtype)
        if self.scale != 1.0:
            # The scale is rounded to the vectors' precision, as in Gemma's training; in fp32 nothing changes.
            x = x * x.new_full((), self.scale)
        if context.types is not None:
            self._check(context.types, x)
        if self.types is not None:
            x = x + (self.types[0] if context.types is None else F.embedding(context.types, self.types))
        return x

    def token_vectors(self, signal: Signal) -> Tensor:
        """Look up token embeddings (B, N, width of the table), without scale, types and positions."""
        return self._vectors(signal.values)

    def _vectors(self, ids: Tensor) -> Tensor:
        """Look up token embeddings E[id], (B, N, width of the table); id -1 gives the query vector."""
        check_vocabulary(ids, self.table.shape[0], 0 if self.query is None else -1)
        if self.query is None:
            return lookup(ids, matrix_of(self.table))
        return torch.where(ids[..., None] < 0, self.query, lookup(ids.clamp(min=0), matrix_of(self.table)))

    @staticmethod
    def _token_factors(masked: Tensor, valid: Tensor | None) -> Tensor:
        """Compute factors (B, N) of token vectors: 0 at ``masked`` tokens and at padding, else
        0.88 / (1 - their share).
        """
        real = torch.ones_like(masked) if valid is None else valid
        share = (masked & real).sum(1, keepdim=True) / real.sum(1, keepdim=True)
        return ((1 - MASKED_SHARE) / (1 - share)).masked_fill(masked | ~real, 0.0)

    def _check(self, types: Tensor, x: Tensor) -> None:
        """Raise ``UserError`` if the model reads no token types, or if their shape does not match the tokens."""
        if not self.typed:
            raise UserError("token types are given, but the front end reads none; set frontend.types, or omit them")
        if types.shape[-1] != x.shape[1] or types.shape[0] not in (1, x.shape[0]):
            actual, needed = (" × ".join(map(str, shape)) for shape in (types.shape, x.shape[:2]))
            raise UserError(f"{actual} types are given for {needed} tokens; give one type per token")
