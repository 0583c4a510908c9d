"""Causal language modelling: each position predicts the next token."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from qkv.data.batch import IGNORED, Batch
from qkv.data.corpus import VALIDATION
from qkv.generation.text import generate_text
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap, receives, tapped
from qkv.models.cross_entropy import chunked_cross_entropy, cross_entropy
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import NextToken
from qkv.tasks.material import Material
from qkv.tasks.task import Scale, Totals
from qkv.tasks.text_task import TextTask

# Up to 64 MB of fp32 logits are faster unchunked; above, chunks of at least 256 rows are as fast.
_MOST_LOGITS = 1 << 24
_SHARE = 1 << 23
_FEWEST_ROWS = 256


def language_loss(model: Transformer, signal: Signal, targets: Tensor, smoothing: float = 0.0, **how: Any) -> Tensor:
    """-Σ log p(target) in nats over the targets (B, N) other than -100.

    ``how``: ``memory`` and ``tap`` of the model's call.
    """
    hidden, _ = model.features(signal, **how)
    return loss_of_vectors(model, hidden.flatten(0, 1), targets.flatten(), smoothing, how.get("tap"))


def loss_of_vectors(model: Transformer, vectors: Tensor, targets: Tensor, smoothing: float = 0.0, tap: Tap | None = None) -> Tensor:
    """-Σ log p(target) in nats, from the head's input ``vectors`` (T, D), over the targets (T) other than -100."""
    vocab = model.vocab_size
    assert vocab is not None  # a language model reads tokens
    rows = max(_FEWEST_ROWS, _SHARE // vocab)
    if receives(tap, "head"):
        shares = zip(vectors.split(rows), targets.split(rows), strict=True)
        return torch.stack([cross_entropy(tapped(tap, "head", "head", model.head(x)), t, smoothing) for x, t in shares]).sum()
    if targets.numel() * vocab <= _MOST_LOGITS:
        return cross_entropy(model.head(vectors), targets, smoothing)
    return chunked_cross_entropy(vectors, model.head, targets, rows, smoothing)


def at_targets(vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (T, D) at positions with a target, and these targets (T). vectors (B, N, D), targets (B, N).

    If few positions have targets, this saves evaluating the head elsewhere.
    """
    targets = targets.flatten()
    places = (targets != IGNORED).nonzero()[:, 0]
    return vectors.flatten(0, 1)[places], targets[places]


@implements(NextToken)
class NextTokenTask(TextTask):
    """Causal language modelling: -Σ log p(x_i | x_<i) over targets other than -100."""

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """-Σ log p(next token) over the batch, in nats."""
        return language_loss(model, batch.input, batch.targets, tap=tap)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return language_figures(seen, scale)

    def sample(self, model: Transformer, material: Material, recipe: Recipe) -> str | None:
        tokenizer = material.vocabulary.tokenizer
        prompt = ""
        if tokenizer.unknown("\n"):  # an empty prompt starts after a line break, which some tokenizers lack
            first = next(material.rows(VALIDATION, 1)).input.values[0, :1]
            prompt = tokenizer.decode(first.tolist())
        return prompt + generate_text(model, tokenizer, prompt, recipe.sample)


def exponential(loss: float) -> float:
    """exp(loss), the perplexity of a mean loss in nats; infinity on overflow."""
    return math.exp(loss) if loss < 700 else math.inf


def language_figures(seen: Totals, scale: Scale) -> dict[str, float]:
    """Loss (nats per token), perplexity = exp(loss), and bits per token, character and byte.

    ``scale``: average characters and bytes per token, which make results comparable across tokenizers.
    """
    loss = seen.loss / seen.count if seen.count else math.nan
    bits = loss / math.log(2)
    return {
        "loss": loss,
        "perplexity": exponential(loss),
        "bits_per_token": bits,
        "bits_per_character": bits / scale.characters_per_token,
        "bits_per_byte": bits / scale.bytes_per_token,
    }
