"""A spec as plain data with one to three mistakes in it, such as a person, a program or an attacker would make."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        "x" * 5000,
        "\x00",
        "é😀",
        "attention(",
        "causal & ",
        "window(0)",
        "nothing_known(1)",
        "-" * 300 + "1",
    ),
    *(-1, 0, 1, 7, 2**31 - 1, 2**31, 10**30, 10**5000, -(10**30), 0.5, -0.0, 1e-300, 1e300, float("inf"), float("nan")),
    *(
        [],
        {},
        [[]],
        [{}],
        {"kind": "nothing_known"},
        {"kind": []},
        {"kind": None},
        ["causal"],
        {"": 1},
        {1: 2},
        [None] * 3,
    ),
)

Place = tuple[Any, Any]


def spoiled(chance: random.Random, data: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``data`` with mistakes."""
    root = {"": deepcopy(data)}
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        holder, key = chance.choice(list(places(root)))
        chance.choice(_WAYS)(chance, root, holder, key)
        if not isinstance(root[""], dict):
            return {"model": root[""]}
    return root[""]


def places(value: Any) -> Iterator[Place]:
    """(holder, key) of everything inside."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, child in inner:
        yield value, key
        yield from places(child)


def _odd(chance: random.Random, root: Any, holder: Any, key: Any) -> None:
    holder[key] = deepcopy(chance.choice(ODD))


def _moved(chance: random.Random, root: Any, holder: Any, key: Any) -> None:
    """What stands somewhere else in the spec."""
    other, name = chance.choice(list(places(root)))
    holder[key] = deepcopy(other[name])


def _lost(chance: random.Random, root: Any, holder: Any, key: Any) -> None:
    if holder is not root:
        del holder[key]


def _misspelt(chance: random.Random, root: Any, holder: Any, key: Any) -> None:
    if isinstance(key, str) and key and holder is not root:
        at = chance.randrange(len(key))
        holder[key[:at] + key[at + 1 :]] = holder.pop(key)


def _added(chance: random.Random, root: Any, holder: Any, key: Any) -> None:
    if isinstance(holder[key], dict):
        holder[key][chance.choice(["kind", "widht", "num_heads", "", "0", "k" * 1000])] = deepcopy(chance.choice(ODD))


def _nudged(chance: random.Random, root: Any, holder: Any, key: Any) -> None:
    """A size that no longer fits the others, or a flag turned."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = value + chance.choice([-1, 1, 3])


_WAYS: tuple[Callable[[random.Random, Any, Any, Any], None], ...] = (
    _odd,
    _odd,
    _odd,
    _moved,
    _moved,
    _lost,
    _misspelt,
    _added,
    _nudged,
)
