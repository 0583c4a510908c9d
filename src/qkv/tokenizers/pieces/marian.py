"""Tokenizers of Marian (OPUS-MT, Tiedemann and Thottingal 2020): two SentencePiece models, and ids in another file.

    source.spm   target.spm   pieces of source and target
    vocab.json                id of each piece of either; target_vocab.json: of the target, if it has ids of its own

A text is split into the pieces of its side that have the greatest sum of scores (unigram model, Kudo 2018). The ids of
both sides are the same unless the settings say ``separate_vocabs``. A token ``>>deu<<`` before a source names the
language of the translation. Two cases differ from the published tokenizer, whose pieces have no ids of their own: it
reads a piece without an id as unknown, where here the next best pieces are read, and it reads a run of several
characters that are no pieces as one unknown token, where here those that have an id are read as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from qkv.system.errors import UserError
from qkv.tokenizers.pieces.file import PieceModel, read_pieces

SOURCE, TARGET = "source.spm", "target.spm"
IDS, TARGET_IDS = "vocab.json", "target_vocab.json"
_LANGUAGE = re.compile(r">>[^<>]+<<")
_UNKNOWN_PENALTY = 10.0
"""Difference between the lowest score of a piece and that of a character that is no piece."""
_ABSENT = -1e4
"""Score of tokens that are no pieces of this side, below that of any text."""


def is_marian(folder: Path) -> bool:
    """Return True if ``folder`` holds a tokenizer of this form."""
    return (folder / SOURCE).is_file() and (folder / TARGET).is_file() and (folder / IDS).is_file()


def marian_tokenizer(folder: Path, settings: Mapping[str, Any], target: bool = False) -> tokenizers.Tokenizer:
    """Build the tokenizer of the source, or of the target, in ``folder``. Raises ``UserError``."""
    separate = target and bool(settings.get("separate_vocabs", False))
    ids, pieces = _ids(folder / (TARGET_IDS if separate else IDS)), read_pieces(folder / (TARGET if target else SOURCE))
    if pieces.kind != "unigram":
        raise UserError(f"{folder} has a SentencePiece model of the kind {pieces.kind!r}; allowed: 'unigram'")
    end, unknown, padding = (_named(settings, role) for role in ("eos", "unk", "pad"))
    for token in (end, unknown):
        if token not in ids:
            raise UserError(f"{folder / IDS} has no token {token!r}")
    tokens = sorted(ids, key=ids.__getitem__)
    core = tokenizers.Tokenizer(models.Unigram([(token, _score(token, pieces)) for token in tokens], ids[unknown]))
    _read_as(core, pieces)
    core.post_processor = processors.TemplateProcessing(f"$A {end}", f"$A $B {end}", [(end, ids[end])])
    core.add_special_tokens([token for token in (end, unknown, padding) if token in ids])
    core.add_tokens([AddedToken(token, normalized=False) for token in tokens if _LANGUAGE.fullmatch(token)])
    return core


def _read_as(core: tokenizers.Tokenizer, pieces: PieceModel) -> None:
    """Make ``core`` replace characters and spaces as the SentencePiece model does."""
    spaces = [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")] if pieces.joins_spaces else []
    characters = [normalizers.Precompiled(pieces.characters)] if pieces.characters else []
    core.normalizer = normalizers.Sequence([*characters, *spaces])
    scheme, split = "always" if pieces.space_before else "never", not any("▁" in piece[1:] for piece in pieces.scores)
    core.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split)
    core.decoder = decoders.Metaspace("▁", scheme, split)


def _score(token: str, pieces: PieceModel) -> float:
    """Return the score of a token in the model of this side; of a character, at least that of an unknown one."""
    if token in pieces.scores:
        return pieces.scores[token]
    return min(pieces.scores.values()) - _UNKNOWN_PENALTY if len(token) == 1 else _ABSENT


def _named(settings: Mapping[str, Any], role: str) -> str:
    token = settings.get(f"{role}_token")
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}[role]


def _ids(file: Path) -> dict[str, int]:
    """Read the id of each token. Raises ``UserError`` unless they are 0, 1, 2 and so on."""
    try:
        ids = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if not isinstance(ids, dict) or sorted(map(repr, ids.values())) != sorted(map(repr, range(len(ids)))):
        raise UserError(f"{file} should hold the id of each token, from 0 on and without gaps")
    return ids
