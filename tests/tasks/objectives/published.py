"""A tokenizer for the collators of the transformers library, which ask one for its special tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

SPECIALS = {
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
    "mask_token": "[MASK]",
}
"""In the order of their ids, 0 to 4."""


@cache
def collator_tokenizer(vocab_size: int) -> Any:
    """``vocab_size`` tokens: the five of ``SPECIALS``, then words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIALS.values(), *(f"w{i}" for i in range(5, vocab_size))]
    model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), **SPECIALS)
