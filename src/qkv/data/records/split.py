"""Hold out validation rows for data without a validation split."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from qkv.system.errors import UserError


class HoldOut(NamedTuple):
    """Row indices of the training and validation splits, shuffled."""

    train: list[int]
    validation: list[int]


def hold_out(
    count: int,
    fraction: float,
    seed: str,
    labels: Sequence[Hashable] = (),
    groups: Sequence[Hashable] = (),
    inputs: Sequence[Hashable] = (),
) -> HoldOut:
    """Split ``count`` rows at random: ``fraction`` of the rows, at the end of a shuffle that ``seed`` determines, is
    held out.

    At least one row is held out, and not all rows are. With ``labels`` (one per row) the split is stratified: quotas
    sum to ``round(fraction · count)`` by largest remainders, and every label keeps a row in train. With ``groups`` of
    more than one value, whole groups are held out until the fraction is reached. Without groups, rows with equal
    ``inputs`` (one per row) stay in the same split. ``inputs`` are ignored if all are different, if all are equal, or
    if a label would have no row in train.

    Raises ``UserError`` for fewer than two rows.
    """
    if count < 2:
        raise UserError(
            f"there {'is one row' if count else 'are no rows'}; at least two are needed, "
            "one to train on and one to hold out"
        )
    if len(set(groups)) < 2 and 1 < len(set(inputs)) < count:
        split = _distinct(inputs, fraction, seed, labels)
        if not labels or {labels[i] for i in split.train} == set(labels):
            return split
    order = _shuffled(count, seed)
    target = min(max(round(fraction * count), 1), count - 1)
    if len(set(groups)) > 1:
        validation = _whole_groups(order, groups, target)
    elif len(set(labels)) < len(labels):
        validation = _stratified(order, labels, target)
    else:
        validation = set(order[count - target :])
    return HoldOut([i for i in order if i not in validation], [i for i in order if i in validation])


def hold_out_last(times: Sequence[float], fraction: float) -> HoldOut:
    """Split rows by ``times``, one per row: the last ``fraction`` is held out. Both splits are in the order of time.

    Rows with the same time stay in the same split: the border lies between two different times, as close to the
    fraction as possible. Raises ``UserError`` if all times are equal.
    """
    order = sorted(range(len(times)), key=times.__getitem__)
    borders = [i for i in range(1, len(order)) if times[order[i]] != times[order[i - 1]]]
    if not borders:
        raise UserError("all rows have the same time, so none can be held out as the last")
    target = min(max(round(fraction * len(order)), 1), len(order) - 1)
    border = min(borders, key=lambda i: abs(len(order) - target - i))
    return HoldOut(order[:border], order[border:])


def _shuffled(count: int, seed: str) -> list[int]:
    """Shuffle row indices by sorting random keys: unlike ``shuffle``, ``random()`` is the same in every version of
    Python.
    """
    generator = random.Random(seed)
    keys = [generator.random() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def _stratified(order: Sequence[int], labels: Sequence[Hashable], target: int) -> set[int]:
    rows: dict[Hashable, list[int]] = defaultdict(list)
    for i in order:
        rows[labels[i]].append(i)
    shares = {label: target * len(members) / len(order) for label, members in rows.items()}
    quotas = {label: min(int(share), len(rows[label]) - 1) for label, share in shares.items()}
    by_remainder = sorted(shares, key=lambda label: shares[label] - quotas[label], reverse=True)
    while (missing := target - sum(quotas.values())) > 0:
        room = [label for label in by_remainder if quotas[label] < len(rows[label]) - 1]
        if not room:
            break
        for label in room[:missing]:
            quotas[label] += 1
    return {i for label, members in rows.items() for i in members[len(members) - quotas[label] :]}


def _whole_groups(order: Sequence[int], groups: Sequence[Hashable], target: int) -> set[int]:
    sizes: dict[Hashable, int] = defaultdict(int)
    for i in reversed(order):
        sizes[groups[i]] += 1
    validation_groups: set[Hashable] = set()
    size = 0
    for group in list(sizes)[:-1]:
        if size >= target:
            break
        validation_groups.add(group)
        size += sizes[group]
    return {i for i in order if groups[i] in validation_groups}


def _distinct(inputs: Sequence[Hashable], fraction: float, seed: str, labels: Sequence[Hashable]) -> HoldOut:
    """Split the distinct inputs; all rows with the same input are in the same split.

    An input with more rows than are to be held out stays in train if there are at least two other inputs with fewer
    rows, since it would fill the whole validation split. An input with several labels counts as its rarest label, so
    that this label keeps a row in train.
    """
    copies: dict[Hashable, list[int]] = defaultdict(list)
    for i, key in enumerate(inputs):
        copies[key].append(i)
    target = max(1, round(fraction * len(inputs)))
    units = [rows for rows in copies.values() if len(rows) <= target]
    units = units if len(units) > 1 else list(copies.values())
    share = min(fraction * len(inputs) / sum(map(len, units)), 1.0)
    split = hold_out(len(units), share, seed, _rarest(units, labels) if labels else ())
    training, validation = ([i for unit in part for i in units[unit]] for part in split)
    placed = {*training, *validation}
    return HoldOut(training + [i for i in range(len(inputs)) if i not in placed], validation)


def _rarest(units: Sequence[Sequence[int]], labels: Sequence[Hashable]) -> list[Hashable]:
    """Return, for each unit, the label among its labels that occurs in the fewest units."""
    label_sets = [dict.fromkeys(labels[i] for i in unit) for unit in units]
    sizes: dict[Hashable, int] = defaultdict(int)
    for names in label_sets:
        for name in names:
            sizes[name] += 1
    return [min(names, key=sizes.__getitem__) for names in label_sets]
