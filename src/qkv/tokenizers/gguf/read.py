"""Read the tokenizer in the metadata of a GGUF file: the stored ``tokenizer.json``, else byte-level BPE or
SentencePiece's BPE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from qkv.system.errors import UserError
from qkv.tokenizers.chat import TOOL_USE, named_template
from qkv.tokenizers.gguf.file import Header, header
from qkv.tokenizers.gguf.words import (
    ADD_BOS,
    ADD_EOS,
    ADD_SPACE,
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
    splits,
)


def reads_tokenizer(file: Path) -> bool:
    """Return True if a GGUF file holds a tokenizer that qkv can read."""
    values = header(file).values
    words = {name for row in WORDS for name in row.names}
    kind = values.get(MODEL)
    return WHOLE in values or kind == "llama" or (kind == "gpt2" and values.get(PRE) in words)


def ends_of(file: Path) -> tuple[int, ...]:
    """Return the ids of the tokens that end a text according to a GGUF file."""
    values = header(file).values
    return tuple(dict.fromkeys(values[key] for key in ENDS if isinstance(values.get(key), int) and values[key] >= 0))


def template_of(file: Path) -> str | None:
    """Return the chat template of a GGUF file; None if it has none."""
    values = header(file).values
    return named_template({"default": values.get(CHAT), TOOL_USE: values.get(f"{CHAT}.{TOOL_USE}")})


def tokenizer_of(file: Path) -> tuple[str, dict[str, str]]:
    """Return the tokenizer of a GGUF file as (content of a ``tokenizer.json``, texts of special tokens by role).

    Raises ``UserError`` for kinds of tokenizers that qkv cannot read.
    """
    head = header(file)
    if WHOLE in head.values:
        return head.values[WHOLE], {}
    if not reads_tokenizer(file):
        kind = " ".join(str(head.values[key]) for key in (MODEL, PRE) if key in head.values) or "none"
        raise UserError(f"{file} has a tokenizer of the kind {kind}, which qkv does not read; give ids")
    tokens, types = _checked(head)
    core = _from_pairs(head, tokens) if head.values[MODEL] == "gpt2" else _from_scores(head, tokens, types)
    for index, kind in enumerate(types):
        if kind in (CONTROL, DEFINED):
            core.add_tokens([AddedToken(tokens[index], special=kind == CONTROL, normalized=False)])
    roles = {role: tokens[head.values[key]] for role, key in IDS.items() if 0 <= head.values.get(key, -1) < len(tokens)}
    _frame(core, head, roles)
    return core.to_str(), {role: token for role, token in roles.items() if role != "unk"}


def _checked(head: Header) -> tuple[list[str], list[int]]:
    """Return the tokens and their types. Raises ``UserError`` if tokens are missing or repeated, or if the number of
    types differs.
    """
    tokens = head.values.get(TOKENS)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{head.file} lacks the key {TOKENS!r}")
    types = head.values.get(TYPES, [NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise UserError(
            f"{head.file}: {TYPES} does not have one entry for each of the {len(tokens):,} tokens of {TOKENS}, or "
            "a token is repeated"
        )
    return tokens, types


def _from_pairs(head: Header, tokens: Sequence[str]) -> tokenizers.Tokenizer:
    words = next(row for row in WORDS if head.values[PRE] in row.names)
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in head.values.get(MERGES, ())]
    merges = [
        pair for pair in pairs if len(pair) == 2 and pair[0] in vocab and pair[1] in vocab and "".join(pair) in vocab
    ]
    core = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=words.whole))
    steps: list[Any] = []
    if words.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if words.regex:
        steps.append(pre_tokenizers.Split(tokenizers.Regex(words.regex), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not words.regex))
    core.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    core.decoder = decoders.ByteLevel()
    return core


def _from_scores(head: Header, tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    """Build BPE with the merges implied by SentencePiece's scores: all pairs of tokens whose concatenation is a token,
    best score first.
    """
    scores = head.values.get(SCORES, [])
    if len(scores) != len(tokens):
        raise UserError(f"{head.file}: {SCORES} has {len(scores):,} values for {len(tokens):,} tokens")
    vocab = {token: index for index, token in enumerate(tokens)}
    plain = {token: index for token, index in vocab.items() if types[index] in (NORMAL, UNUSED, DEFINED)}
    listed = [
        (-scores[index], index, plain[left], plain[right], left, right)
        for token, index in plain.items()
        if types[index] == NORMAL
        for left, right in splits(token, plain)
    ]
    merges = [(left, right) for *_, left, right in sorted(listed)]
    unknown = next((token for token, index in vocab.items() if types[index] == UNKNOWN), None)
    core = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = head.values.get(ADD_SPACE, True)
    replaced = normalizers.Replace(" ", SPACE)
    core.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replaced]) if prefix else replaced
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return core


def _frame(core: tokenizers.Tokenizer, head: Header, roles: Mapping[str, str]) -> None:
    """Add the template to ``core`` that puts the bos and eos tokens around texts, if the file asks for it.

    llama.cpp's defaults depend on the kind of tokenizer.
    """
    begins = head.values.get(MODEL) == "llama" or head.values.get(PRE) in WORDS[1].names
    before = "bos" in roles and head.values.get(ADD_BOS, begins)
    behind = "eos" in roles and head.values.get(ADD_EOS, False)
    if not before and not behind:
        return
    first, last = ([roles[role]] if adds else [] for role, adds in (("bos", before), ("eos", behind)))
    marks = [(token, core.token_to_id(token)) for token in dict.fromkeys([*first, *last])]
    core.post_processor = processors.TemplateProcessing(single=[*first, "$A", *last], special_tokens=marks)
