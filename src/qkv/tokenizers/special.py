"""Special tokens: their roles, and protection against special tokens in plain text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken

from qkv.system.errors import UserError, nearest

CONTENTS: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<PAD>"),
    "bos": ("<bos>", "<s>", "[BOS]", "<|bos|>", "<BOS>", "<|begin_of_text|>", "<|startoftext|>"),
    "eos": ("<eos>", "</s>", "[EOS]", "<|eos|>", "<EOS>", "<|end_of_text|>", "<|endoftext|>"),
    "cls": ("<cls>", "[CLS]", "<CLS>"),
    "sep": ("<sep>", "[SEP]", "<SEP>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>", "<MASK>"),
    "unk": ("<unk>", "[UNK]", "<UNK>"),
}
"""Usual texts of the special token for each role. ``with_specials`` adds the first text of a role, except for "unk",
which only a trained model provides.
"""


def special_ids(core: tokenizers.Tokenizer) -> dict[str, int]:
    """Return the id of each special token by its text, ordered by id."""
    return {token.content: index for index, token in sorted(core.get_added_tokens_decoder().items()) if token.special}


def roles_by_content(contents: Iterable[str]) -> dict[str, str]:
    """Recognise the roles ("bos", "eos", …) of special tokens by their usual texts; return role -> text.

    Roles for which no usual text is among ``contents`` are left out.
    """
    texts = set(contents)
    by_role = {role: next((content for content in usual if content in texts), None) for role, usual in CONTENTS.items()}
    return {role: content for role, content in by_role.items() if content is not None}


def missing(specials: Mapping[str, int], roles: Iterable[str]) -> list[str]:
    """Return the texts of the special tokens to add for the ``roles`` that ``specials`` lacks.

    Raises ``UserError`` for an unknown role, and for "unk" if the tokenizer has no unknown token.
    """
    names = list(dict.fromkeys(roles))
    for role in names:
        if role not in CONTENTS:
            raise UserError(f"there is no special token for the role {role!r}; {nearest(role, CONTENTS)}")
    if "unk" in names and "unk" not in specials:
        raise UserError("this tokenizer has no unknown token, and none can be added to it: it has ids for every text")
    return [CONTENTS[role][0] for role in names if role not in specials]


def with_added(core: tokenizers.Tokenizer, contents: Iterable[str]) -> tokenizers.Tokenizer:
    """Return a copy of ``core`` with the texts ``contents`` as special tokens; new tokens get ids at the end of the
    vocabulary.

    Raises ``UserError`` for an empty text.
    """
    copy = tokenizers.Tokenizer.from_str(core.to_str())
    for content in contents:
        if not content:
            raise UserError("a special token needs at least one character")
        before = copy.get_vocab(with_added_tokens=True)
        copy.add_special_tokens([AddedToken(content, special=True, normalized=False)])
        if content not in before and copy.token_to_id(content) in before.values():
            raise UserError(
                f"the special token {content!r} cannot be added: the vocabulary's ids have gaps, "
                "and the library would use one twice"
            )
    return copy


def deaf(core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Make a tokenizer read special tokens in a text as plain text: "<eos>" is five ordinary characters. Changes
    ``core`` or returns a copy.

    The library's option for this is not saved in files. It also has no effect if the vocabulary of the model itself
    includes the special token (T5's Unigram); such pieces are renamed to a string that no well-formed text contains.
    """
    core.encode_special_tokens = True
    vocabulary = core.get_vocab(with_added_tokens=False)
    heard = {
        content: index
        for content, index in special_ids(core).items()
        if content in vocabulary and _spelt(core, content, index)
    }
    return _renamed(core, heard) if heard else core


def _spelt(core: tokenizers.Tokenizer, content: str, index: int) -> bool:
    if content == getattr(core.model, "unk_token", None):
        return False
    try:
        return any(
            index in core.encode(text, add_special_tokens=False).ids
            for text in (content, f" {content} ", f"a{content}a")
        )
    except Exception:  # no unknown token, and the content has a piece outside the vocabulary
        return True


def _renamed(core: tokenizers.Tokenizer, contents: Iterable[str]) -> tokenizers.Tokenizer:
    names = {content: f"{content}\U0010ffff\U0010ffff" for content in contents}
    tree = json.loads(core.to_str())
    vocab, unknown = tree["model"]["vocab"], tree["model"].get("unk_id")
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["content"] not in names]
    tree["post_processor"] = _without_template(tree["post_processor"])
    if isinstance(vocab, dict):
        tree["model"]["vocab"] = {names.get(piece, piece): index for piece, index in vocab.items()}
    else:
        tree["model"]["vocab"] = [
            [piece if i == unknown else names.get(piece, piece), score] for i, (piece, score) in enumerate(vocab)
        ]
    renamed = tokenizers.Tokenizer.from_str(json.dumps(tree))
    renamed.encode_special_tokens = True
    return renamed


def _without_template(post_processor: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the post-processor without its special tokens: the byte-level post-processor, which only corrects offsets,
    is kept; any other becomes None.
    """
    return post_processor if post_processor and post_processor["type"] == "ByteLevel" else None


def written_roles(text: str) -> dict[str, str]:
    """Return the roles of special tokens that ``with_roles`` stored in the ``tokenizer.json`` ``text``: role -> text of
    the token.
    """
    if '"roles"' not in text:
        return {}
    return {role: token["content"] for token in json.loads(text)["added_tokens"] for role in token.get("roles", ())}


def with_roles(text: str, roles: Mapping[str, str], pretty: bool) -> str:
    """Return the ``tokenizer.json`` ``text`` with the key "roles" in each special token whose text does not tell its
    role.

    ``roles``: role -> text of the special token. Other tools ignore the key.
    """
    tree = json.loads(text)
    contents = [token["content"] for token in tree["added_tokens"] if token["special"]]
    by_role = roles_by_content(contents)
    for token in tree["added_tokens"]:
        token.pop("roles", None)
        if token_roles := [
            role for role, content in roles.items() if content == token["content"] and by_role.get(role) != content
        ]:
            token["roles"] = token_roles
    return json.dumps(tree, ensure_ascii=False, indent=2 if pretty else None)
