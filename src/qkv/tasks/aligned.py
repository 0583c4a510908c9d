"""What an encoder–decoder looks at while it writes, as a section of an exam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.data.vocabulary import Vocabulary
from qkv.models.alignment import alignment
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

MOST_TOKENS = 40
"""Of either side, so that the picture can be read."""


def aligned(model: Transformer, vocabulary: Vocabulary, source: Sequence[int], written: Sequence[int]) -> list[dict[str, Any]]:
    """The attention over ``source`` from which each token of ``written`` after its first was predicted: the last branch that reads the
    source, the mean of its heads. No section where nothing attends to a source, or where it would be too large to be read.
    """
    if model.encoder is None or max(len(source), len(written)) > MOST_TOKENS or len(written) < 2:
        return []
    try:
        _, weights = alignment(model, source, written[:-1])[-1]
    except UserError:  # the source is read, but not by attention
        return []
    names = {"source": _tokens(vocabulary.tokenizer, source), "target": _tokens(vocabulary.target, written[1:])}
    return [{"kind": "alignment", "title": "What it reads while it writes", **names, "weights": at_least_single(weights).mean(0).tolist()}]


def _tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Each token as text; what decodes to nothing, such as the end mark, by its own name."""
    return [tokenizer.decode([int(token)], skip_special=True).strip() or str(tokenizer.core.id_to_token(int(token))) for token in ids]
