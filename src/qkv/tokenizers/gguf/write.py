"""Write a tokenizer into the metadata of a GGUF file: byte-level BPE and SentencePiece's BPE, as llama.cpp reads them.

llama.cpp supports a fixed list of named rules that split a text into words before BPE. For a tokenizer that llama.cpp
cannot reproduce, the metadata says that there is no tokenizer, so that llama.cpp reads and writes ids only. The whole
``tokenizer.json`` is written as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qkv.tokenizers.byte_level import SYMBOLS
from qkv.tokenizers.coders import CHARACTERS
from qkv.tokenizers.gguf.words import (
    ADD_BOS,
    ADD_EOS,
    ADD_SPACE,
    BYTE,
    CHAT,
    CONTROL,
    DEFINED,
    ENDS,
    IDS,
    MERGES,
    MODEL,
    NORMAL,
    PRE,
    SCORES,
    SPACE,
    TOKENS,
    TYPES,
    UNKNOWN,
    UNUSED,
    WHOLE,
    WORDS,
    WordSplit,
    splits,
)
from qkv.tokenizers.tokenizer import Tokenizer


def metadata_of_tokenizer(
    tokenizer: Tokenizer | None, rows: int, ends: Sequence[int] = ()
) -> tuple[dict[str, Any], str]:
    """Return (metadata of a tokenizer for a model with ``rows`` token embeddings, limitation in llama.cpp).

    The limitation is a sentence, or "" if llama.cpp can use the tokenizer. ``ends``: ids of tokens that end a text.
    """
    if tokenizer is None:
        return {MODEL: "none"}, "no tokenizer: llama.cpp reads and writes ids only"
    metadata = _byte_pairs(tokenizer) or _characters(tokenizer) or _sentence_pieces(tokenizer)
    whole = {WHOLE: tokenizer.to_json(), **_chat(tokenizer, ends)}
    if metadata is None or tokenizer.vocab_size > rows:
        limitation = "llama.cpp cannot split text as this tokenizer does, so it reads and writes ids only"
        return {MODEL: "none", **whole}, limitation
    return {**metadata, **_listed(tokenizer, metadata[TOKENS], rows), **_framing(tokenizer), **whole}, ""


def _chat(tokenizer: Tokenizer, ends: Sequence[int]) -> dict[str, Any]:
    """Return the chat template, and the further tokens that end a turn and a message."""
    further_ends = [index for index in ends if index != tokenizer.specials.get("eos")]
    metadata: dict[str, Any] = dict(zip(ENDS[1:], further_ends, strict=False))
    return metadata if tokenizer.chat_template is None else {**metadata, CHAT: tokenizer.chat_template}


def _listed(tokenizer: Tokenizer, tokens: Sequence[str], rows: int) -> dict[str, Any]:
    """Return the tokens and their types in the order of ids, padded to ``rows``, and the ids of special tokens by
    role.
    """
    added = tokenizer.core.get_added_tokens_decoder()
    types = [NORMAL] * len(tokens)
    for index, token in enumerate(tokens):
        if index in added:
            types[index] = CONTROL if added[index].special else DEFINED
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            types[index] = BYTE
    roles = tokenizer.specials
    if "unk" in roles and types[roles["unk"]] != CONTROL:
        types[roles["unk"]] = UNKNOWN
    more = range(len(tokens), rows)
    ids = {IDS[role]: index for role, index in roles.items() if role in IDS}
    return {
        TOKENS: [*tokens, *(f"[PAD{index}]" for index in more)],
        TYPES: [*types, *(UNUSED for _ in more)],
        **ids,
        IDS["eos"]: _end(tokenizer),
    }


def _end(tokenizer: Tokenizer) -> int:
    """Return the id to write as the end-of-text token.

    llama.cpp assumes id 11 if the file names none. A tokenizer without an end token therefore gets the id of a token
    that never occurs in a text: the unknown token, or the byte 0xFF, which UTF-8 never uses.
    """
    roles = tokenizer.specials
    never = tokenizer.core.token_to_id(SYMBOLS[255])
    return next(index for index in (roles.get("eos"), roles.get("unk"), never, 0) if index is not None)


def _framing(tokenizer: Tokenizer) -> dict[str, bool]:
    """Return the settings that say whether llama.cpp puts the bos token before a text and the eos token after it."""
    roles, frame = tokenizer.specials, tokenizer.frame
    return {
        ADD_BOS: frame.before == (roles.get("bos"),),
        ADD_EOS: frame.behind == (roles.get("eos"),),
    }


def _spelled(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens in the order of their ids, with a placeholder for each id without a token."""
    tokens = [tokenizer.core.id_to_token(index) for index in range(tokenizer.vocab_size)]
    return [f"[PAD{index}]" if token is None else token for index, token in enumerate(tokens)]


def _byte_pairs(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return the metadata of byte-level BPE; None for other tokenizers, and if llama.cpp cannot split text in the same
    way.
    """
    tree = json.loads(tokenizer.core.to_str())
    model = tree["model"]
    if model["type"] != "BPE" or (tree["decoder"] or {}).get("type") != "ByteLevel" or model.get("byte_fallback"):
        return None
    if model.get("unk_token") or model.get("dropout") or (tree["normalizer"] or {"type": "NFC"})["type"] != "NFC":
        return None
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    words = _words_of(tree["pre_tokenizer"], bool(model.get("ignore_merges")), bool(merges))
    if words is None:
        return None
    return {MODEL: "gpt2", PRE: words.names[0], TOKENS: _spelled(tokenizer), MERGES: merges or [f"{SPACE} {SPACE}"]}


def _words_of(tree: Mapping[str, Any] | None, whole: bool, merged: bool) -> WordSplit | None:
    """Return the row of ``WORDS`` that corresponds to a pre-tokenizer, or None. Without merges, every row gives the
    same ids.
    """
    steps = [] if tree is None else tree["pretokenizers"] if tree["type"] == "Sequence" else [tree]
    last = steps[-1] if steps else {}
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if not merged and not whole:
        return WORDS[0]
    before = [{key: step[key] for key in step if key != "trim_offsets"} for step in steps[:-1]]
    return next(
        (
            words
            for words in WORDS
            if before == _before(words) and whole == words.whole and last["use_regex"] == (not words.regex)
        ),
        None,
    )


def _before(words: WordSplit) -> list[dict[str, Any]]:
    """Return the steps of the pre-tokenizer for ``words`` that precede the byte-level step, as serialised by the
    library.
    """
    if words.digits:
        return [{"type": "Digits", "individual_digits": True}]
    pattern = {"Regex": words.regex}
    return [{"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}] if words.regex else []


def _characters(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return the metadata of a character tokenizer, written as byte-level BPE whose merges join the bytes of each
    character.

    None for other tokenizers.
    """
    tree = json.loads(tokenizer.core.to_str())
    if tree["model"]["type"] != "WordLevel" or tree["pre_tokenizer"] != CHARACTERS or tree["normalizer"]:
        return None
    special = {*tokenizer.core.get_added_tokens_decoder(), tokenizer.unknown_id}
    spelled = [
        token if index in special else "".join(SYMBOLS[byte] for byte in token.encode())
        for index, token in enumerate(_spelled(tokenizer))
    ]
    pairs = dict.fromkeys(
        f"{word[:end]} {word[end]}"
        for index, word in enumerate(spelled)
        if index not in special
        for end in range(1, len(word))
    )
    return {MODEL: "gpt2", PRE: WORDS[0].names[0], TOKENS: spelled, MERGES: list(pairs) or [f"{SPACE} {SPACE}"]}


def _sentence_pieces(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return the metadata of BPE as in SentencePiece (Kudo and Richardson 2018), where a token's score is minus the
    rank of its merge.

    None for other tokenizers, and if some token could be merged from a pair that the tokenizer does not list.
    """
    tree = json.loads(tokenizer.core.to_str())
    model = tree["model"]
    if model["type"] != "BPE" or not model.get("byte_fallback") or model.get("ignore_merges"):
        return None
    prefix = _space_prefix(tree)
    ranks = _ranks(model["vocab"], model["merges"])
    if prefix is None or ranks is None:
        return None
    tokens = _spelled(tokenizer)
    scores = [float(-ranks.get(token, len(ranks))) for token in tokens]
    return {MODEL: "llama", TOKENS: tokens, SCORES: scores, ADD_SPACE: prefix}


def _space_prefix(tree: Mapping[str, Any]) -> bool | None:
    """Return True if a tokenizer puts a space before a text, False if not; None if it does not handle spaces like
    SentencePiece.
    """
    normalizer, before = tree["normalizer"], tree["pre_tokenizer"]
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    kinds = [step["type"] for step in steps]
    if kinds == ["Prepend", "Replace"] and before is None:
        return True
    if kinds == ["Replace"] and before is None:
        return False
    if not kinds and before is not None and before["type"] == "Metaspace" and not before.get("split", True):
        return {"first": True, "always": True, "never": False}.get(before.get("prepend_scheme", "always"))
    return None


def _ranks(vocab: Mapping[str, int], merges: Sequence[Any]) -> dict[str, int] | None:
    """Return the rank of each merged token.

    None if the merges are not exactly all pairs that the vocabulary allows, or if merges that give the same token are
    not adjacent.
    """
    ranks = dict[str, int]()
    listed = set[tuple[str, str]]()
    last = ""
    for each in merges:
        left, right = each.split(" ") if isinstance(each, str) else each
        listed.add((left, right))
        if left + right != last and left + right in ranks:
            return None
        last = left + right
        ranks.setdefault(last, len(ranks))
    allowed = {pair for token in vocab for pair in splits(token, vocab)}
    return ranks if allowed == listed else None
