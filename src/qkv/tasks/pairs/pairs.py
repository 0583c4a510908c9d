"""Source and target of text-to-text models, for an encoder–decoder or as one sequence with a prefix.

With an encoder:  source x eos         ids bos y          targets y eos
Without:                               ids x bos y        targets (none for x) y eos,  prefix len(x) + 1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.batching.padding import lengths_or_none, padded
from qkv.data.vocabulary import Vocabulary
from qkv.generation.decode.beam import beam_search
from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.heads.language_loss import loss_of_vectors
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.system.errors import UserError, nearest
from qkv.tasks.text.next_token import at_targets
from qkv.tokenizers.special import special_ids


def pair_loss(model: Transformer, batch: Batch, smoothing: float, tap: Tap | None = None) -> Tensor:
    """Compute -Σ log p(y_i | y_<i, x) of the batch's targets y with teacher forcing, in nats, with label smoothing."""
    memory = None if batch.source is None else model.encode(batch.source, tap)
    hidden, _ = model.features(batch.input, tap=tap, memory=memory)
    return loss_of_vectors(model, *at_targets(hidden, batch.targets), smoothing, tap)


def write_after(
    model: Transformer,
    vocabulary: Vocabulary,
    generation: Generation,
    sources: Sequence[np.ndarray],
    begin: Sequence[str] = (),
    inputs: Sequence[Mapping[str, Signal]] | None = None,
) -> Iterator[list[int]]:
    """Generate the target of each source, which ends with its end token; yield tokens without the end token.

    ``begin``: strings of the special tokens that start a target; default: the bos token. ``inputs``: signals of the
    other inputs of each source, by name.
    """
    first, _ = marks(vocabulary, begin)
    if model.encoder is None:
        prompts = [[*source[:-1].tolist(), *first] for source in sources]
        return _written(model, vocabulary, generation, prompts, begin, inputs=inputs)
    ids, lengths = padded(sources)
    return write_from(model, vocabulary, generation, Signal(ids, lengths), begin)


def write_from(
    model: Transformer, vocabulary: Vocabulary, generation: Generation, source: Signal, begin: Sequence[str] = ()
) -> Iterator[list[int]]:
    """Generate the target of each row of ``source``, the input of the encoder; see ``write_after``."""
    first, _ = marks(vocabulary, begin)
    with torch.inference_mode(), evaluating(model):
        memory = model.encode(source.to(model.device))
    return _written(model, vocabulary, generation, [list(first)] * source.num_rows, begin, memory)


def _written(
    model: Transformer,
    vocabulary: Vocabulary,
    generation: Generation,
    prompts: Sequence[Sequence[int]],
    begin: Sequence[str],
    memory: Memory | None = None,
    inputs: Sequence[Mapping[str, Signal]] | None = None,
) -> Iterator[list[int]]:
    _, end = marks(vocabulary, begin)
    drawn, ends = vocabulary.target.vocab_size, {end, *generation.stop_token_ids}
    with torch.inference_mode(), evaluating(model):
        for best in beam_search(model, prompts, generation, end, memory=memory, drawn=drawn, inputs=inputs):
            yield [token for token in best[0].tokens if token not in ends] if best else []


class TokenPair(NamedTuple):
    """Token ids of a source and its target; as the fields of an example, they include begin and end tokens."""

    source: np.ndarray
    target: np.ndarray
    values: tuple[Any, ...] = ()
    """Encoded values of other inputs whose placeholders are in the source."""


def paired(rows: Sequence[TokenPair]) -> Batch:
    """Build a batch for an encoder–decoder: sources for the encoder, targets for the decoder."""
    source = Signal(*padded([row.source for row in rows]))
    ids, lengths = padded([row.target[:-1] for row in rows])
    targets, _ = padded([row.target[1:] for row in rows], IGNORED)
    return Batch.of(Signal(ids, lengths_or_none(ids, lengths)), targets, source)


def joined(rows: Sequence[TokenPair], inputs: Mapping[str, Signal] | None = None) -> Batch:
    """Build a batch for a model without an encoder: each pair becomes one sequence of source, bos and target.

    bos replaces the end token of the source. Only the target and its end token are predicted. ``inputs``: signals of
    other inputs, by name.
    """
    ids, lengths = padded([np.concatenate((row.source[:-1], row.target[:-1])) for row in rows])
    targets, _ = padded(
        [np.concatenate((np.full(len(row.source) - 1, IGNORED), row.target[1:])) for row in rows], IGNORED
    )
    prefix = torch.tensor([len(row.source) for row in rows])
    return Batch.of(Signal(ids, lengths_or_none(ids, lengths), prefix=prefix, inputs=inputs), targets)


class Marks(NamedTuple):
    """Special token ids of targets.

    begin: ids that start a target.   end: id that ends it.
    """

    begin: tuple[int, ...]
    end: int


def marks(vocabulary: Vocabulary, begin: Sequence[str] = ()) -> Marks:
    """Return the special ids of the target's tokenizer. ``begin``: strings of special tokens used instead of bos."""
    bos, end = vocabulary.target.special("bos"), vocabulary.target.special("eos")
    if (bos is None and not begin) or end is None:
        raise UserError(
            "the tokenizer of the target has no special tokens that begin and end a text (bos, eos); "
            "train a tokenizer, or give a folder whose tokenizer has them"
        )
    optional_ids = (
        [bos] if bos is not None and not begin else [vocabulary.target.core.token_to_id(content) for content in begin]
    )
    ids = tuple(index for index in optional_ids if index is not None)
    if len(ids) < len(optional_ids):
        unknown = next(content for content, index in zip(begin, optional_ids, strict=True) if index is None)
        raise UserError(
            f"task.begin: the tokenizer of the target has no token {unknown!r}; "
            f"{nearest(unknown, special_ids(vocabulary.target.core))}"
        )
    return Marks(ids, end)
