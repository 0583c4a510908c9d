"""Hold out validation rows for data without its own split."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from qkv.spec.errors import UserError


class HoldOut(NamedTuple):
    """Row indices of the training and validation splits, shuffled."""

    train: list[int]
    validation: list[int]


def hold_out(
    count: int, fraction: float, seed: str, labels: Sequence[Hashable] = (), groups: Sequence[Hashable] = ()
) -> HoldOut:
    """Split ``count`` rows at random: the ``fraction`` at the end of a shuffle determined by ``seed`` is held out, at
    least one row and not all.

    With ``labels`` (one per row) the split is stratified: quotas sum to ``round(fraction · count)`` by largest
    remainders, and every label keeps a row in train. With ``groups`` of more than one value, whole groups are held out
    until the fraction is reached.

    Raises ``UserError`` for fewer than two rows.
    """
    if count < 2:
        raise UserError(
            f"there {'is one row' if count else 'are no rows'}; at least two are needed, "
            "one to train on and one to hold out"
        )
    order = _shuffled(count, seed)
    wanted = min(max(round(fraction * count), 1), count - 1)
    if len(set(groups)) > 1:
        held = _whole_groups(order, groups, wanted)
    elif len(set(labels)) < len(labels):
        held = _stratified(order, labels, wanted)
    else:
        held = set(order[count - wanted :])
    return HoldOut([i for i in order if i not in held], [i for i in order if i in held])


def _shuffled(count: int, seed: str) -> list[int]:
    """Row indices shuffled by sorting random keys: unlike ``shuffle``, ``random()`` is the same in every version of
    Python.
    """
    generator = random.Random(seed)
    keys = [generator.random() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def _stratified(order: Sequence[int], labels: Sequence[Hashable], wanted: int) -> set[int]:
    rows: dict[Hashable, list[int]] = defaultdict(list)
    for i in order:
        rows[labels[i]].append(i)
    shares = {label: wanted * len(members) / len(order) for label, members in rows.items()}
    quotas = {label: min(int(share), len(rows[label]) - 1) for label, share in shares.items()}
    by_remainder = sorted(shares, key=lambda label: shares[label] - quotas[label], reverse=True)
    while (missing := wanted - sum(quotas.values())) > 0:
        room = [label for label in by_remainder if quotas[label] < len(rows[label]) - 1]
        if not room:
            break
        for label in room[:missing]:
            quotas[label] += 1
    return {i for label, members in rows.items() for i in members[len(members) - quotas[label] :]}


def _whole_groups(order: Sequence[int], groups: Sequence[Hashable], wanted: int) -> set[int]:
    sizes: dict[Hashable, int] = defaultdict(int)
    for i in reversed(order):
        sizes[groups[i]] += 1
    held: set[Hashable] = set()
    size = 0
    for group in list(sizes)[:-1]:
        if size >= wanted:
            break
        held.add(group)
        size += sizes[group]
    return {i for i in order if groups[i] in held}
