"""Causal language modelling: each position predicts the next token."""

from __future__ import annotations

import math

from torch import Tensor

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.corpora.corpus import VALIDATION
from qkv.generation.text import generate_text
from qkv.layers.tap import Tap
from qkv.models.heads.language_loss import language_loss
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import NextToken
from qkv.tasks.dataset import Dataset
from qkv.tasks.task import Scale, Totals
from qkv.tasks.text.text_task import TextTask


def at_targets(vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Select the vectors (T, D) at positions with a target, and these targets (T).

    vectors (B, N, D), targets (B, N). If few positions have targets, this saves evaluating the head elsewhere.
    """
    targets = targets.flatten()
    places = (targets != IGNORED).nonzero()[:, 0]
    return vectors.flatten(0, 1)[places], targets[places]


@implements(NextToken)
class NextTokenTask(TextTask):
    """Causal language modelling: -Σ log p(x_i | x_<i) over targets other than -100."""

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """Compute -Σ log p(next token) over the batch, in nats."""
        return language_loss(model, batch.input, batch.targets, tap=tap)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return language_figures(seen, scale)

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        tokenizer = dataset.vocabulary.tokenizer
        prompt = ""
        if tokenizer.unknown("\n"):  # an empty prompt starts after a line break, which some tokenizers lack
            first = next(dataset.rows(VALIDATION, 1)).input.values[0, :1]
            prompt = tokenizer.decode(first.tolist())
        return prompt + generate_text(model, tokenizer, prompt, recipe.sample)


def exponential(loss: float) -> float:
    """Compute exp(loss), the perplexity of a mean loss in nats; infinity on overflow."""
    return math.exp(loss) if loss < 700 else math.inf


def language_figures(seen: Totals, scale: Scale) -> dict[str, float]:
    """Compute the loss (nats per token), perplexity = exp(loss), and bits per token, character and byte.

    ``scale``: average characters and bytes per token, which make results comparable across tokenizers. The bits per
    byte and per character include 8 bits for each byte that an unknown token replaces, since the token does not encode
    it; otherwise, a tokenizer with fewer known words would seem better. ``unknown_tokens``: their share in %, if any.
    """
    loss = seen.loss / seen.count if seen.count else math.nan
    bits = loss / math.log(2)
    spelled = bits + 8 * scale.unknown_bytes
    return {
        "loss": loss,
        "perplexity": exponential(loss),
        "bits_per_token": bits,
        "bits_per_character": spelled / scale.characters_per_token,
        "bits_per_byte": spelled / scale.bytes_per_token,
        **({"unknown_tokens": 100 * scale.unknown} if scale.unknown else {}),
    }
