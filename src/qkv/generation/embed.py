"""Text embeddings: pooled token vectors."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.pooling import SENTENCE_NAMES, pooled_over
from qkv.layers.signal import Signal
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.system.errors import UserError, nearest
from qkv.tokenizers.framing import Framed
from qkv.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Embedding:
    """Settings of a text embedding.

    poolings: names as in sentence-transformers; the results of several poolings are concatenated.
    normalise: scale to L2 norm 1.   max_length: truncate texts to this many tokens; None: the model's context length.
    lower_case: lower-case the texts first.   pools_prompt: include the prompt's tokens in the pooling.
    dimensions: truncate vectors to this many dimensions and scale them to L2 norm 1, for models that were trained for
    it (Matryoshka representations, Kusupati et al. 2022); None keeps all.   layers: modules that read the pooled
    vectors one after another, such as the Dense layers of sentence-transformers.
    """

    poolings: tuple[str, ...] = ("mean",)
    normalise: bool = False
    max_length: int | None = None
    lower_case: bool = False
    pools_prompt: bool = True
    dimensions: int | None = None
    layers: tuple[nn.Module, ...] = ()

    def __post_init__(self) -> None:
        for name in self.poolings:
            if name not in SENTENCE_NAMES:
                raise UserError(f"there is no pooling {name!r}; {nearest(name, SENTENCE_NAMES)}")
        if not self.poolings:
            raise UserError(f"no pooling is given; allowed: {', '.join(SENTENCE_NAMES)}")


def embed_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[str | Sequence[int]],
    how: Embedding,
    prompt: str = "",
    batch_size: int = 32,
) -> np.ndarray:
    """Return text embeddings (texts, D · poolings), with the size of the last one of ``how.layers`` or
    ``how.dimensions`` instead, as float32.

    ``prompt`` is prepended to each text. A text may be given as token ids, which are read without prompt or added
    special tokens.

    Batches group texts of similar length; padding does not change the result. Surrounding white space is stripped.
    Texts longer than ``how.max_length`` are truncated with a warning. Raises ``UserError`` for a text that is not a
    string or has no tokens, for ids outside the vocabulary, and if ``how.dimensions`` exceeds D · poolings.
    """
    pooled_width = model.spec.leaving(model.spec.width) * len(how.poolings)
    width = _through(how.layers, torch.zeros(1, pooled_width)).shape[1]
    if how.dimensions is not None and not 1 <= how.dimensions <= width:
        raise UserError(f"dimensions: {how.dimensions} given, but the vectors have {width}; allowed: 1 to {width}")
    most = _most(model, how)
    read = [
        _read(tokenizer, text, how, prompt, most, i) if isinstance(text, str) else _of_ids(model, text, most, i)
        for i, text in enumerate(texts)
    ]
    _tell_cuts(read, most)
    skipped = 0 if how.pools_prompt or not prompt else _prompt_tokens(tokenizer, prompt, how)
    vectors = np.zeros((len(read), how.dimensions or width), np.float32)
    order = sorted(range(len(read)), key=lambda i: len(read[i].ids))
    with torch.inference_mode(), evaluating(model):
        for begin in range(0, len(order), batch_size):
            places = order[begin : begin + batch_size]
            vectors[places] = _embedded(model, [read[i] for i in places], how, skipped).cpu().numpy()
    return vectors


def _embedded(model: Transformer, texts: Sequence[Framed], how: Embedding, skipped: int) -> Tensor:
    """Compute pooled embeddings of a batch, (B, D · poolings) or (B, ``how.dimensions``). ``skipped``: number of first
    tokens left out of the pooling.
    """
    device = model.device
    signal = Signal.of_rows([text.ids for text in texts], device)
    kinds = [(model.spec.encoder or model.spec).types_read(text.types) for text in texts]
    types = Signal.of_rows(kinds, device).values if any(kinds) else None
    x = at_least_single(_vectors(model, replace(signal, types=types)))
    steps, lengths = (
        torch.arange(signal.values.shape[1], device=device),
        torch.tensor([len(text.ids) for text in texts], device=device),
    )
    real = steps < lengths[:, None]
    counted = real & (steps >= torch.minimum(lengths - 1, lengths.new_tensor(skipped))[:, None])
    if (
        model.spec.num_outputs is not None
    ):  # latents or a fixed number of queries: outputs are not tokens, and none is padding
        counted = torch.ones(x.shape[:2], dtype=torch.bool, device=device)
    vectors = torch.cat([pooled_over(x, counted, SENTENCE_NAMES[name]) for name in how.poolings], -1)
    vectors = _through(how.layers, vectors)[:, : how.dimensions]
    return F.normalize(vectors, dim=-1) if how.normalise or how.dimensions else vectors


def _through(layers: Sequence[nn.Module], vectors: Tensor) -> Tensor:
    """Compute the vectors (B, D) behind ``layers``."""
    for layer in layers:
        vectors = layer.to(vectors.device)(vectors)
    return vectors


def _vectors(model: Transformer, signal: Signal) -> Tensor:
    """Compute final hidden states (B, N, D): the head's input, or the encoder's output of an encoder–decoder."""
    return model.features(signal)[0] if model.encoder is None else model.encode(signal).vectors[-1]


def _most(model: Transformer, how: Embedding) -> int:
    reader = model.spec.encoder or model.spec
    return min(how.max_length or reader.context_length, reader.context_length)


def _read(tokenizer: Tokenizer, text: str, how: Embedding, prompt: str, most: int | None, number: int = 0) -> Framed:
    if not isinstance(text, str):
        raise UserError(f"text {number + 1}: {text!r} is not a string")
    text = (prompt + text).strip()
    framed = tokenizer.encode_framed(text.lower() if how.lower_case else text, most)
    if not framed.ids:
        raise UserError(f"text {number + 1} has no tokens, so it has no embedding")
    return framed


def _of_ids(model: Transformer, ids: Any, most: int, number: int) -> Framed:
    """Check token ids, truncate them to ``most``, and give all of them token type 0. Raises ``UserError``."""
    if isinstance(ids, (bytes, Mapping)) or not isinstance(ids, Iterable):
        raise UserError(f"text {number + 1}: {ids!r} is not a string")
    ids = list(ids)
    vocab_size = (model.spec.encoder or model.spec).vocab_size or 0
    wrong = next((index for index in ids if not isinstance(index, Integral) or not 0 <= int(index) < vocab_size), None)
    if wrong is not None:
        subject = f"text {number + 1} has the token {wrong!r}"
        raise UserError(f"{subject}, which is outside the vocabulary (0 to {vocab_size - 1})")
    if not ids:
        raise UserError(f"text {number + 1} has no tokens, so it has no embedding")
    first = list(ids[:most])
    return Framed(first, [0] * len(first), [0], len(ids))


def _prompt_tokens(tokenizer: Tokenizer, prompt: str, how: Embedding) -> int:
    """Return the number of first tokens to leave out of the pooling: the prompt's, and special tokens before it."""
    ids = _read(tokenizer, "", how, prompt, None).ids
    ends = (tokenizer.specials.get("sep"), tokenizer.specials.get("eos"))
    return len(ids) - (ids[-1] in ends)


def _tell_cuts(read: Sequence[Framed], most: int) -> None:
    cut = [text.whole for text in read if text.whole > most]
    if cut:
        sentence = (
            f"{len(cut):,} of {len(read):,} texts were truncated to {most:,} tokens; the longest has {max(cut):,}"
        )
        warnings.warn(sentence, stacklevel=3)
