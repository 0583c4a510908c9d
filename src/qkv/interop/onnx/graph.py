"""Models as functions from tensors to tensors with named inputs and outputs, to be traced for an ONNX file."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch
from qkv.layers.context import Context
from qkv.layers.pooling import SENTENCE_NAMES, pooled
from qkv.layers.signal import Signal
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError

IDS, MASK, TYPES, TARGET = "input_ids", "attention_mask", "token_type_ids", "decoder_input_ids"
BATCH, LENGTH, TARGET_LENGTH = "batch", "length", "target_length"


class TextPooling(NamedTuple):
    """Pooling of a text embedding.

    poolings: names as in sentence-transformers; their results are concatenated. normalise: whether the result is scaled
    to L2 norm 1.
    """

    poolings: tuple[str, ...]
    normalise: bool


class TensorFunction(nn.Module):
    """Function of tensors that is exported to an ONNX file. Inputs, and axes of variable size, have names.

    axes: input -> axis -> name of its size.   limits: name of a size -> its maximum.   output: name of the result.
    """

    output = "logits"

    def __init__(self, axes: dict[str, dict[int, str]], limits: dict[str, int]):
        super().__init__()
        self.axes, self.limits = axes, limits

    def sample(self, sizes: dict[str, int], generator: torch.Generator) -> dict[str, Tensor]:
        """Generate random inputs of these ``sizes``, in the order of ``axes``.

        Rows after the first are padded on the right.
        """
        raise NotImplementedError


class TextFunction(TensorFunction):
    """Function from ids (B, N) and ``attention_mask`` (B, N) to outputs of the head or, with ``pooled``, to embeddings.

    The mask is 1 at tokens and 0 at padding, which is on the right. Embeddings: (B, D · poolings).
    """

    def __init__(self, model: Transformer, pooled: TextPooling | None):
        places, limit = {0: BATCH, 1: LENGTH}, model.limit
        names = (IDS, MASK, TYPES) if model.frontend.typed else (IDS, MASK)
        super().__init__({name: places for name in names}, {} if limit is None else {LENGTH: limit})
        self.model, self.pooled = model, pooled
        self.output = "logits" if pooled is None else "embeddings"

    def sample(self, sizes: dict[str, int], generator: torch.Generator) -> dict[str, Tensor]:
        rows, length = sizes[BATCH], sizes[LENGTH]
        ids = self.model.frontend.random(rows, length, generator).values
        types = (torch.arange(length) >= length // 2).long().expand(rows, -1).contiguous()
        inputs = {IDS: ids, MASK: _ragged(rows, length), TYPES: types}
        return {name: inputs[name] for name in self.axes}

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        lengths = attention_mask.sum(1)
        signal = Signal(input_ids, lengths, types=token_type_ids)
        if self.pooled is None:
            return self.model(signal)[0]
        x, _ = self.model.features(signal)
        vectors = torch.cat([pooled(x, lengths, SENTENCE_NAMES[name]) for name in self.pooled.poolings], -1)
        return F.normalize(vectors, dim=-1) if self.pooled.normalise else vectors


class PairFunction(TensorFunction):
    """Function from a source (B, N), its mask and target ids (B, M) to logits (B, M, V) of an encoder–decoder."""

    def __init__(self, model: Transformer):
        places = {0: BATCH, 1: LENGTH}
        assert model.encoder is not None
        limits = {LENGTH: model.encoder.limit, TARGET_LENGTH: model.limit}
        super().__init__(
            {IDS: places, MASK: places, TARGET: {0: BATCH, 1: TARGET_LENGTH}},
            {name: limit for name, limit in limits.items() if limit is not None},
        )
        self.model = model

    def sample(self, sizes: dict[str, int], generator: torch.Generator) -> dict[str, Tensor]:
        rows, encoder = sizes[BATCH], self.model.encoder
        assert encoder is not None
        source = encoder.frontend.random(rows, sizes[LENGTH], generator).values
        target = self.model.frontend.random(rows, sizes[TARGET_LENGTH], generator).values
        return {IDS: source, MASK: _ragged(rows, sizes[LENGTH]), TARGET: target}

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        memory = self.model.encode(Signal(input_ids, attention_mask.sum(1)))
        return self.model(Signal(decoder_input_ids), memory=memory)[0]


class ValuesFunction(TensorFunction):
    """Function from values of a front end with a fixed number of positions, such as pixels (B, C, H, W), to outputs."""

    def __init__(self, model: Transformer):
        self.name = "pixel_values" if model.frontend.part.kind == "patches" else "values"
        super().__init__({self.name: {0: BATCH}}, {})
        self.model = model

    def sample(self, sizes: dict[str, int], generator: torch.Generator) -> dict[str, Tensor]:
        spec = self.model.spec
        return {self.name: self.model.frontend.random(sizes[BATCH], spec.context_length, generator).values}

    def forward(self, values: Tensor) -> Tensor:
        return self.model(Signal(values))[0]


class Alone(nn.Module):
    """One branch of a model as a module, x (B, N, D) -> (B, N, D) for rows of ``lengths`` (B).

    Branches are traced alone to identify the one that cannot be traced.
    """

    def __init__(self, branch: Branch):
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1], device=x.device)[None]
        return self.branch(x, Context(steps, lengths))[0]


def graph_of(model: Transformer, pooled: TextPooling | None = None) -> TensorFunction:
    """Return the function to trace for ``model``. Raises ``UserError`` if its input is not tensors of one shape."""
    frontend = model.spec.frontend
    if model.encoder is not None:
        readers = (frontend, model.encoder.frontend.part)
        if pooled is not None or not all(part.reads_tokens for part in readers):
            raise UserError("an encoder–decoder can be exported to ONNX only if it reads and writes text")
        return PairFunction(model)
    if frontend.reads_tokens and not frontend.inputs_read:
        return TextFunction(model, pooled)
    if frontend.num_positions is None:
        raise UserError(
            f"model.frontend: the input of {frontend.kind!r} is not one tensor of one size, which an ONNX file "
            "requires; models of text and of images, videos and series of one size can be exported"
        )
    return ValuesFunction(model)


def _ragged(rows: int, length: int) -> Tensor:
    """Return a mask (rows, length), 1 at tokens.

    The first row is full, and each later row has two tokens less, but at least one.
    """
    lengths = torch.tensor([max(1, length - 2 * row) for row in range(rows)])
    return (torch.arange(length) < lengths[:, None]).long()
