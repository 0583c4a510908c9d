"""Report section of the cross-attention of an encoder–decoder over the source during generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.data.vocabulary import Vocabulary
from qkv.models.alignment import alignment
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

MOST_TOKENS = 40
"""Maximum number of source or target tokens in the picture, so that it stays readable."""


def aligned(
    model: Transformer, vocabulary: Vocabulary, source: Sequence[int], written: Sequence[int]
) -> list[dict[str, Any]]:
    """Build the report section of attention weights over ``source`` when each token of ``written`` is predicted.

    The first token of ``written`` is not predicted. The weights are those of the last cross-attention branch, averaged
    over heads. Empty if no branch attends to the source, or if the picture would be too large.
    """
    if model.encoder is None or max(len(source), len(written)) > MOST_TOKENS or len(written) < 2:
        return []
    try:
        _, weights = alignment(model, source, written[:-1])[-1]
    except UserError:  # the model reads the source without attention
        return []
    names = {"source": _tokens(vocabulary.tokenizer, source), "target": _tokens(vocabulary.target, written[1:])}
    return [
        {
            "kind": "alignment",
            "title": "Attention over the source",
            **names,
            "weights": at_least_single(weights).mean(0).tolist(),
        }
    ]


def _tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Decode each token of ``ids``; a token that decodes to "", such as the end token, is shown by its name."""
    return [
        tokenizer.decode([int(token)], skip_special=True).strip() or str(tokenizer.core.id_to_token(int(token)))
        for token in ids
    ]
