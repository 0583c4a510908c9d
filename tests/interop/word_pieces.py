"""A small WordPiece tokenizer, as published encoders have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import CLIPTokenizer


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


def write_clip_tokenizer(folder: Path, words: Sequence[str]) -> int:
    """Write a tokenizer of CLIP over the characters of ``words``, merged to whole words; return the id of its end
    token, the last. The token before it begins texts.
    """
    pieces = sorted({piece for word in words for piece in (*word, f"{word[-1]}</w>")})
    merges = list[tuple[str, str]]()
    for word in words:
        left = word[0] if len(word) > 1 else f"{word}</w>"
        for i, letter in enumerate(word[1:], 1):
            right = letter if i < len(word) - 1 else f"{letter}</w>"
            merges += [] if (left, right) in merges else [(left, right)]
            left += right
    joined = dict.fromkeys((*pieces, *(f"{one}{two}" for one, two in merges), "<|startoftext|>", "<|endoftext|>"))
    vocabulary = {piece: i for i, piece in enumerate(joined)}
    CLIPTokenizer(vocab=vocabulary, merges=merges, pad_token="<|endoftext|>").save_pretrained(folder)
    return len(vocabulary) - 1
