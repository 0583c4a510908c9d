"""Metadata keys of a tokenizer in GGUF files, and the word splits for which llama.cpp has names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

WHOLE, MODEL, PRE = "tokenizer.huggingface.json", "tokenizer.ggml.model", "tokenizer.ggml.pre"
TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
MERGES, SCORES = "tokenizer.ggml.merges", "tokenizer.ggml.scores"
ADD_BOS, ADD_EOS, ADD_SPACE = (f"tokenizer.ggml.add_{what}" for what in ("bos_token", "eos_token", "space_prefix"))
IDS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "mask": "tokenizer.ggml.mask_token_id",
}
ENDS = (IDS["eos"], "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
"""Keys of the tokens that end a text, a turn or a message."""
CHAT = "tokenizer.chat_template"
NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types in GGUF files."""
SPACE = "▁"

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class WordSplit(NamedTuple):
    """Rule that splits a text into words before byte-level BPE.

    ``names``: llama.cpp's names of the rule, of which the first is written to files. ``regex``: pattern; "" stands for
    GPT-2's pattern, which the library tokenizers contains. ``digits``: every digit is a word. ``whole``: a word in the
    vocabulary becomes one token, whatever the merges give.
    """

    names: tuple[str, ...]
    regex: str = ""
    digits: bool = False
    whole: bool = False


WORDS = (
    WordSplit(("gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "gigachat", "modern-bert", "exaone4")),
    WordSplit(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"),
        rf"{_LETTERS}|\p{{N}}{{1,3}}{_REST}",
        whole=True,
    ),
    WordSplit(("dbrx", "smaug-bpe"), rf"{_LETTERS}|\p{{N}}{{1,3}}{_REST}"),
    WordSplit(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"), rf"{_LETTERS}|\p{{N}}{_REST}"),
    WordSplit(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), digits=True),
)
"""Word splits that both llama.cpp and the library tokenizers support."""


def splits(token: str, vocab: Mapping[str, int]) -> Iterable[tuple[str, str]]:
    """Return the pairs of tokens of ``vocab`` whose concatenation is ``token``."""
    pairs = ((token[:end], token[end:]) for end in range(1, len(token)))
    return ((left, right) for left, right in pairs if left in vocab and right in vocab)
