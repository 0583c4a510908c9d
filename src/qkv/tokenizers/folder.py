"""Read a tokenizer from a Hugging Face folder: ``tokenizer.json``, or older vocabulary files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from qkv.system.errors import UserError
from qkv.tokenizers.byte_level import SYMBOLS
from qkv.tokenizers.chat import template_in
from qkv.tokenizers.gguf.file import is_gguf
from qkv.tokenizers.gguf.read import reads_tokenizer, template_of, tokenizer_of
from qkv.tokenizers.pieces.marian import TARGET, is_marian, marian_tokenizer
from qkv.tokenizers.special import CONTENTS

FILE_NAME = "tokenizer.json"
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")
"""Files with tokenizer settings; later ones take precedence."""

BYTE_BPE = ("GPT2", "Roberta", "Bart", "Longformer", "LED", "Mvp", "Blenderbot", "Deberta", "CodeGen")
"""Tokenizer families whose older files vocab.json and merges.txt (byte-level BPE) are supported."""
WORDPIECE = (
    "Bert",
    "DistilBert",
    "Electra",
    "MobileBert",
    "ConvBert",
    "LayoutLM",
    "Funnel",
    "MPNet",
    "Splinter",
    "Lxmert",
    "RetriBert",
)
"""Tokenizer families whose older file vocab.txt (WordPiece) is supported."""

BYTES = {"Perceiver": ("pad", "bos", "eos", "mask", "cls", "sep")}
"""Tokenizer families without a vocabulary file, with the roles of their special tokens. The special tokens have the
first ids; the 256 bytes follow.
"""

MARIAN = ("Marian",)
"""Tokenizer families with two SentencePiece models."""

CTC = ("Wav2Vec2CTC",)
"""Tokenizer families whose file vocab.json holds the characters that a model of speech writes."""

SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model")


class Found(NamedTuple):
    """Tokenizer read from a file or folder.

    text: content of its ``tokenizer.json``.   source: path, for messages.   roles: role ("bos", "eos", …) -> text of
    the special token.   chat_template: Jinja template, or None.
    """

    text: str
    source: str
    roles: dict[str, str]
    chat_template: str | None = None


def find(path: Path) -> Found:
    """Read the tokenizer in the file or Hugging Face folder ``path``. Raises ``UserError`` if there is no readable
    tokenizer.
    """
    if is_gguf(path):
        text, roles = tokenizer_of(path)
        return Found(text, str(path), roles, template_of(path))
    if path.name == TARGET and path.is_file():
        settings = _settings(path.parent)
        core = _make_core(
            path.parent, settings, MARIAN, lambda folder, settings: marian_tokenizer(folder, settings, True)
        )
        return Found(core.to_str(), str(path), _roles(settings))
    folder = path if path.is_dir() else path.parent
    settings = _settings(folder) if path.is_dir() or path.name == FILE_NAME else {}
    if path.is_dir() and not (path / FILE_NAME).exists():
        text = _from_vocabulary(path, settings).to_str()
        return Found(text, str(path), _roles(settings), template_in(folder, settings))
    file = path / FILE_NAME if path.is_dir() else path
    if file.name != FILE_NAME:
        return Found(_read(file), str(file), {})
    return Found(_read(file), str(file), _roles(settings), template_in(folder, settings))


def file_of_target(folder: Path) -> Path | None:
    """Return the file of the tokenizer of targets, which ``find`` reads; None if that of sources is for both."""
    return folder / TARGET if is_marian(folder) and not (folder / FILE_NAME).exists() else None


def holds_tokenizer(folder: Path) -> bool:
    """Return True if ``folder`` holds a tokenizer file of any format, even of a format that qkv cannot read.

    For a GGUF file: True if it holds a tokenizer that qkv can read.
    """
    if is_gguf(folder):
        return reads_tokenizer(folder)
    named = any((folder / name).is_file() for name in (FILE_NAME, "vocab.json", "vocab.txt", *SENTENCEPIECE))
    return named or _family(_settings(folder), "") in BYTES


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"the tokenizer {file} cannot be read: {reason}") from None


def _tree(file: Path) -> dict[str, Any]:
    """Parse a JSON file that holds a mapping; {} if the file does not exist."""
    if not file.is_file():
        return {}
    text = _read(file)
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{file} does not hold a mapping")
    return tree


def _settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in SETTINGS:
        settings |= {key: value for key, value in _tree(folder / name).items() if value is not None}
    return settings


def _roles(settings: dict[str, Any]) -> dict[str, str]:
    contents = {role: _content(settings.get(f"{role}_token")) for role in CONTENTS}
    return {role: content for role, content in contents.items() if content}


def _content(token: Any) -> str:
    """Return the text of a special token, which the settings hold as a string or as a mapping; "" if it is neither."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _from_vocabulary(folder: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    if _family(settings, "") in BYTES:
        return _make_core(folder, settings, tuple(BYTES), _bytes)
    if is_marian(folder):
        return _make_core(folder, settings, MARIAN, marian_tokenizer)
    if (folder / "vocab.json").is_file() and _family(settings, "") in CTC:
        return _make_core(folder, settings, CTC, _characters)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _make_core(folder, settings, BYTE_BPE, _byte_bpe)
    if (folder / "vocab.txt").is_file():
        return _make_core(folder, settings, WORDPIECE, _wordpiece)
    if model_file := next((name for name in SENTENCEPIECE if (folder / name).is_file()), None):
        sentence = "load it with transformers and save it again to get a tokenizer.json"
        raise UserError(f"{folder} holds a SentencePiece model ({model_file}) and no {FILE_NAME}; {sentence}")
    raise UserError(f"{folder} holds no tokenizer: neither {FILE_NAME}, nor vocab.json with merges.txt, nor vocab.txt")


Make = Callable[[Path, dict[str, Any]], tokenizers.Tokenizer]


def _make_core(folder: Path, settings: dict[str, Any], families: tuple[str, ...], make: Make) -> tokenizers.Tokenizer:
    if _family(settings, families[0]) not in families:
        sentence = f"load it with transformers and save it again to get a {FILE_NAME}"
        named = settings["tokenizer_class"]
        raise UserError(
            f"{folder} holds no {FILE_NAME}, and the older files of a {named} are not supported; {sentence}"
        )
    try:
        core = make(folder, settings)
        _add_tokens(core, folder, settings)
        return core
    except UserError:
        raise
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"the vocabulary in {folder} cannot be used: {error}") from None


def _family(settings: dict[str, Any], default: str) -> str:
    """Return the tokenizer family named in the settings: "BertTokenizerFast" gives "Bert"."""
    return str(settings.get("tokenizer_class", default)).removesuffix("Fast").removesuffix("Tokenizer")


def _bytes(folder: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Build a byte tokenizer (Perceiver IO, Jaegle et al. 2022): special tokens have the first ids, then come the 256
    bytes. Its template puts ``cls`` before a text and ``sep`` after it.
    """
    roles = BYTES[_family(settings, "")]
    specials = [_content(settings.get(f"{role}_token")) or f"[{role.upper()}]" for role in roles]
    core = tokenizers.Tokenizer(models.BPE({token: index for index, token in enumerate([*specials, *SYMBOLS])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    before, behind = (specials[roles.index(role)] for role in ("cls", "sep"))
    marks = [(token, specials.index(token)) for token in (before, behind)]
    core.post_processor = processors.TemplateProcessing(
        f"{before} $A {behind}", f"{before} $A {behind} $B {behind}", marks
    )
    return core


def _characters(folder: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Build the character tokenizer of wav2vec 2.0 (Baevski et al. 2020) from vocab.json.

    A token, usually "|", stands for the space between words.
    """
    vocab = _tree(folder / "vocab.json")
    if not all(isinstance(index, int) for index in vocab.values()):
        language = settings.get("target_lang")
        vocab = vocab.get(language) if isinstance(language, str) else None
        if not isinstance(vocab, dict):
            raise UserError(f"{folder / 'vocab.json'} holds the characters of several languages, and none is chosen")
    space = _content(settings.get("word_delimiter_token")) or "|"
    unknown = _content(settings.get("unk_token")) or "<unk>"
    added = settings.get("added_tokens_decoder", {})
    settings["added_tokens_decoder"] = {i: token for i, token in added.items() if _content(token) != space}
    characters = {" " if token == space else token: index for token, index in vocab.items()}
    core = tokenizers.Tokenizer(models.WordLevel(characters, unk_token=unknown))
    core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    named = (_content(settings.get(f"{role}_token")) for role in CONTENTS)
    core.add_special_tokens([token for token in dict.fromkeys((*named, unknown)) if token in vocab])
    return core


def _byte_bpe(folder: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Build the byte-level BPE tokenizer of GPT-2 (Radford et al. 2019) and later models from vocab.json and
    merges.txt.
    """
    vocab, merges = models.BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    if not vocab.keys() >= set(SYMBOLS) or any(piece.endswith("</w>") for piece in vocab):
        raise UserError(
            f"the vocabulary in {folder} is not byte-level byte-pair encoding, "
            f"and there is no {FILE_NAME} that describes it"
        )
    core = tokenizers.Tokenizer(models.BPE(vocab, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space", False)))
    core.decoder = decoders.ByteLevel()
    return core


def _wordpiece(folder: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Build the WordPiece tokenizer of BERT (Devlin et al. 2019) from vocab.txt, with one piece per line."""
    vocab = {piece: index for index, piece in enumerate(_read(folder / "vocab.txt").removesuffix("\n").split("\n"))}
    unknown = _content(settings.get("unk_token")) or "[UNK]"
    core = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown))
    core.normalizer = normalizers.BertNormalizer(
        lowercase=bool(settings.get("do_lower_case", True)),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return core


def _add_tokens(core: tokenizers.Tokenizer, folder: Path, settings: dict[str, Any]) -> None:
    """Add to ``core`` the added tokens that the folder's files list, with their ids.

    Also mark as special each usual special token (``CONTENTS``) that is in the vocabulary.
    """
    added = {
        int(index): {"content": content, "special": True}
        for content, index in _tree(folder / "added_tokens.json").items()
    }
    added |= {int(index): token for index, token in settings.get("added_tokens_decoder", {}).items()}
    for index, token in sorted(added.items()):
        flags = {name: token[name] for name in ("single_word", "lstrip", "rstrip", "normalized") if name in token}
        core.add_tokens([AddedToken(token["content"], special=token.get("special", False), **flags)])
        if core.token_to_id(token["content"]) != index:
            raise UserError(
                f"the added token {token['content']!r} in {folder} cannot have the id {index}: "
                "the ids before it have gaps"
            )
    usual = [content for contents in CONTENTS.values() for content in contents if core.token_to_id(content) is not None]
    core.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in usual])
