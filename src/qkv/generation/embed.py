"""One vector for a text: the vectors of its tokens, pooled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.generation.reading import padded
from qkv.generation.sample import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError, nearest
from qkv.tokenizers.framing import Framed
from qkv.tokenizers.tokenizer import Tokenizer

Pool = Callable[[Tensor, Tensor], Tensor]


def _first(x: Tensor, real: Tensor) -> Tensor:
    return x[:, 0]


def _last(x: Tensor, real: Tensor) -> Tensor:
    places = torch.arange(real.shape[1], device=x.device)
    return x[torch.arange(len(x), device=x.device), (places * real).argmax(1)]


def _max(x: Tensor, real: Tensor) -> Tensor:
    return x.masked_fill(~real[..., None], -torch.inf).amax(1)


def _weighted(x: Tensor, weights: Tensor, power: float = 1.0) -> Tensor:
    """Σ_i w_i x_i / (Σ_i w_i) ** power."""
    return (x * weights[..., None]).sum(1) / weights.sum(1, keepdim=True) ** power


POOLINGS: dict[str, Pool] = {
    "cls": _first,
    "max": _max,
    "mean": lambda x, real: _weighted(x, real.to(x.dtype)),
    "mean_sqrt_len": lambda x, real: _weighted(x, real.to(x.dtype), 0.5),
    "weightedmean": lambda x, real: _weighted(x, real * torch.arange(1, real.shape[1] + 1, device=x.device, dtype=x.dtype)),
    "lasttoken": _last,
}
"""x (B, N, D) and which of the N count (B, N), at least one of a row, -> (B, D).

The vector at the first place; the largest of each feature; Σ x_i / n; Σ x_i / √n; Σ i x_i / Σ i, i = 1, 2, … (Muennighoff 2022); the
vector at the last place. Under the names that sentence-transformers (Reimers & Gurevych 2019) gives them.
"""


@dataclass(frozen=True)
class Embedding:
    """How the vectors of tokens become that of their text. Several ``poolings`` stand one behind the other.

    ``normalise``: to length 1.   ``max_length``: tokens that are read; default: as many as the model reads.
    ``pools_prompt``: whether the tokens of what stands before every text count.
    """

    poolings: tuple[str, ...] = ("mean",)
    normalise: bool = False
    max_length: int | None = None
    lower_case: bool = False
    pools_prompt: bool = True

    def __post_init__(self) -> None:
        for name in self.poolings:
            if name not in POOLINGS:
                raise UserError(f"there is no pooling {name!r}; {nearest(name, POOLINGS)}")
        if not self.poolings:
            raise UserError(f"no pooling is given; known: {', '.join(POOLINGS)}")


def embed_texts(
    model: Transformer, tokenizer: Tokenizer, texts: Sequence[str], how: Embedding, prompt: str = "", batch_size: int = 32
) -> np.ndarray:
    """(texts, D · poolings) float32: a row for each text, with ``prompt`` before it.

    Texts of a like length are read together; what is padded changes nothing. Spaces round a text are dropped. A text that is longer than
    the model reads is cut, which a warning tells. Raises ``UserError`` for what is no text, or has no token.
    """
    most = _most(model, how)
    read = [_read(tokenizer, text, how, prompt, most, i) for i, text in enumerate(texts)]
    _tell_cuts(read, most)
    skipped = 0 if how.pools_prompt or not prompt else _prompt_tokens(tokenizer, prompt, how)
    found = np.zeros((len(read), model.spec.leaving(model.spec.width) * len(how.poolings)), np.float32)
    order = sorted(range(len(read)), key=lambda i: len(read[i].ids))
    with torch.inference_mode(), evaluating(model):
        for begin in range(0, len(order), batch_size):
            places = order[begin : begin + batch_size]
            found[places] = _embedded(model, [read[i] for i in places], how, skipped).cpu().numpy()
    return found


def _embedded(model: Transformer, texts: Sequence[Framed], how: Embedding, skipped: int) -> Tensor:
    """(B, D · poolings) of texts."""
    device = model.frontend.table.device
    ids, lengths = padded([text.ids for text in texts], device)
    kinds = [(model.spec.encoder or model.spec).types_read(text.types) for text in texts]
    types = padded(kinds, device)[0] if any(kinds) else None
    steps = torch.arange(ids.shape[1], device=device)
    real = steps < lengths[:, None]
    x = at_least_single(_vectors(model, ids, None if bool(real.all()) else lengths, types))
    counted = real & (steps >= torch.minimum(lengths - 1, lengths.new_tensor(skipped))[:, None])
    if model.spec.answers is not None:  # latents, or queries of a fixed number: all of them are real, and none is a token's
        counted = torch.ones(x.shape[:2], dtype=torch.bool, device=device)
    pooled = torch.cat([POOLINGS[name](x, counted) for name in how.poolings], -1)
    return F.normalize(pooled, dim=-1) if how.normalise else pooled


def _vectors(model: Transformer, ids: Tensor, lengths: Tensor | None, types: Tensor | None) -> Tensor:
    """(B, N, D): what the head would read; of an encoder–decoder what the decoder would."""
    if model.encoder is not None:
        return model.encode(ids, lengths).vectors[-1]
    return model.features(ids, lengths=lengths, types=types)[0]


def _most(model: Transformer, how: Embedding) -> int:
    reader = model.spec.encoder or model.spec
    return min(how.max_length or reader.context_length, reader.context_length)


def _read(tokenizer: Tokenizer, text: str, how: Embedding, prompt: str, most: int | None, number: int = 0) -> Framed:
    if not isinstance(text, str):
        raise UserError(f"text {number + 1}: {text!r} is not a text")
    text = (prompt + text).strip()
    found = tokenizer.encode_framed(text.lower() if how.lower_case else text, most)
    if not found.ids:
        raise UserError(f"text {number + 1} has no token, so there is no vector of it")
    return found


def _prompt_tokens(tokenizer: Tokenizer, prompt: str, how: Embedding) -> int:
    """How many tokens at the beginning are those of the prompt, and of what stands before it."""
    ids = _read(tokenizer, "", how, prompt, None).ids
    ends = (tokenizer.specials.get("sep"), tokenizer.specials.get("eos"))
    return len(ids) - (ids[-1] in ends)


def _tell_cuts(read: Sequence[Framed], most: int) -> None:
    cut = [text.whole for text in read if text.whole > most]
    if cut:
        sentence = f"{len(cut):,} of {len(read):,} texts were cut to the {most:,} tokens that are read; the longest has {max(cut):,}"
        warnings.warn(sentence, stacklevel=3)
