"""A small WordPiece tokenizer, as published encoders have."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece


def word_pieces(specials: Sequence[str], words: Sequence[str], one: str, two: str) -> tokenizers.Tokenizer:
    """Tokenizer of ``specials`` (padding, unknown, cls, sep, …; ids from 0) and ``words``, lower-cased.

    one, two: templates of a text and of a pair, with {cls} and {sep}.
    """
    _, unknown, cls, sep = specials[:4]
    core = tokenizers.Tokenizer(WordPiece({word: i for i, word in enumerate([*specials, *words])}, unk_token=unknown))
    core.normalizer, core.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single=one.format(cls=cls, sep=sep), pair=two.format(cls=cls, sep=sep), special_tokens=[(cls, 2), (sep, 3)]
    )
    return core
