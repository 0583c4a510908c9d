"""Find rows with equal inputs, after normalisation of white space, and report inputs that several splits share."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qkv.data.records.conversations.check import prompt_text
from qkv.data.records.model import Role
from qkv.data.records.values import Unusable

Rows = Sequence[Mapping[str, Any]]
INPUTS = ("text", "words")
"""Kinds of roles that are inputs, unless the model generates the role (``Role.written``)."""
SIGNALS = ("image", "sound", "signal", "series", "cell")
"""Kinds of inputs that are compared only in addition to a text."""


def input_keys(rows: Rows, roles: Sequence[Role]) -> list[bytes]:
    """Return a key of each row's inputs, or an empty list if no role is a text.

    Keys are equal for equal texts (both texts of a pair), where a run of white space counts as one space, and equal
    values of the other inputs. The input of a conversation is its prompt: the messages before the last answer.
    """
    if any(role.kind == "messages" for role in roles):
        return [_digest(_prompt(row)) for row in rows]
    texts = [role.name for role in roles if _is_input(role)]
    signals = [role.name for role in roles if role.kind in SIGNALS]
    return [_key(row, texts, signals) for row in rows] if texts else []


def _prompt(row: Mapping[str, Any]) -> str:
    """Return the text of a conversation's prompt; of a row that is none, all of it."""
    try:
        return prompt_text(row)
    except Unusable:
        return repr(row)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(" ".join(text.split()).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _is_input(role: Role) -> bool:
    return role.kind in INPUTS and not role.written


def _key(row: Mapping[str, Any], texts: Sequence[str], signals: Sequence[str]) -> bytes:
    total = hashlib.blake2b(digest_size=16)
    for name in signals:
        value = row.get(name)
        total.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    for name in texts:
        value = row.get(name)
        text = value if isinstance(value, str) else " ".join(value or ())
        total.update(" ".join(text.split()).encode("utf-8", "surrogatepass") + b"\n")  # "\n" cannot occur in it
    return total.digest()


def repeated(rows: Rows, roles: Sequence[Role]) -> str:
    """Return a sentence on the rows that repeat the input of an earlier row, which stay in the same split; "" if there
    are none.
    """
    keys = input_keys(rows, roles)
    truths = _truths(rows, roles, keys)
    copies = len(keys) - len(truths)
    if not copies:
        return ""
    mixed = sum(count for key, count in Counter(keys).items() if len(truths[key]) > 1)
    beside = f"; {mixed:,} rows share their input with a row of {_other(roles)}" if mixed else ""
    return (
        f"{copies:,} of {len(rows):,} rows repeat the input of an earlier row; "
        f"rows with the same input are in the same split{beside}"
    )


def shared(held_out: Rows, split: str, train: Rows, roles: Sequence[Role]) -> str:
    """Return a sentence on the rows of ``held_out`` whose input also occurs in training; "" if there are none.

    ``split``: name of the held-out split.
    """
    keys = input_keys(held_out, roles)
    truths = _truths(train, roles, input_keys(train, roles)) if keys else {}
    both = [(row, key) for row, key in zip(held_out, keys, strict=True) if key in truths] if keys else []
    if not both:
        return ""
    other = sum(_truth(row, roles) not in truths[key] for row, key in both)
    beside = f" ({other:,} of them with {_other(roles)})" if other else ""
    return (
        f"{len(both):,} of {len(held_out):,} rows of {split} have the same input as a training row{beside}, "
        "so they do not test the model on new inputs"
    )


def _truths(rows: Rows, roles: Sequence[Role], keys: Sequence[bytes]) -> dict[bytes, set[str]]:
    """Collect the targets that occur with each input."""
    targets: dict[bytes, set[str]] = defaultdict(set)
    for row, key in zip(rows, keys, strict=False):
        targets[key].add(_truth(row, roles))
    return targets


def _truth(row: Mapping[str, Any], roles: Sequence[Role]) -> str:
    return repr([row.get(role.name) for role in roles if not _is_input(role)])


def _other(roles: Sequence[Role]) -> str:
    """Return a phrase such as "another label", with the name of the target's role."""
    if any(role.kind == "messages" for role in roles):
        return "another answer"
    name = next((role.name for role in roles if not _is_input(role)), "target")
    return f"other {name}" if name.endswith("s") else f"another {name}"
