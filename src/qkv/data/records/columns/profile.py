"""Column statistics of a table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.data.cells.numbers import like_number
from qkv.data.records.columns.series_values import is_series
from qkv.data.records.images.clips import is_clip
from qkv.data.records.images.pictures import is_image, is_pixels
from qkv.data.records.lists import begins_list
from qkv.data.records.model import Kind
from qkv.data.records.sounds.cells import is_sound, is_sound_in_memory
from qkv.data.records.table import Row, Table

MOST_LABELS = 1000
"""Maximum number of distinct values that are counted."""
LABEL_LENGTH = 50
"""Maximum mean length of a label in characters."""
IDS = frozenset(("id", "ids", "idx", "index", "row", "nr", "no", "number", "uid", "uuid", "guid", "key"))
_UNNAMED = re.compile(r"unnamed\d+(level\d+)?")
"""Normalised name of a column without a name, as spreadsheets, pandas and the reader of CSV write it."""
_CODE = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # UUID
    r"|(?=\S*\d)(?=\S*[a-f])[0-9a-f]{12,}"  # digest
    r"|[a-z]{0,6}[-_#:/]?\d+([-_/.]\d+)*"  # ID_0012, T-17, INV/2023/4
    r"|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ t]\d{1,2}:\d\d\S*( ?[ap]m)?)?"  # date and time
    r"|https?://\S+|www\.\S+|[^\s@]+@[^\s@]+\.[a-z]+",  # addresses
    re.IGNORECASE,
)
_FLAGS = frozenset(("0", "1", "0.0", "1.0", "true", "false", "yes", "no", "y", "n", "x"))
_MANY = 10
"""Number of values from which a column whose values are all different is no label column."""


@dataclass
class Profile:
    """Statistics of one column.

    Counted are non-empty values, characters, values that are numbers, lists, objects, images, clips, sounds, series of
    numbers or codes (identifiers, dates, addresses), and distinct values.
    """

    name: str
    filled: int = 0
    characters: int = 0
    numbers: int = 0
    lists: int = 0
    objects: int = 0
    images: int = 0
    clips: int = 0
    sounds: int = 0
    series: int = 0
    codes: int = 0
    counts_up: bool = True
    distinct: set[str] = field(default_factory=set)
    _last: int | None = None

    @classmethod
    def of(cls, table: Table, name: str, enough: Callable[[Profile], bool]) -> Profile:
        """Compute the statistics of one column from its first rows, until ``enough`` is True."""
        profile = cls(name)
        for row in table.rows:
            if isinstance(row, Row):
                profile.add(_filled(row.values.get(name), table))
                if enough(profile):
                    break
        return profile

    def add(self, value: Any) -> None:
        """Count one value of the column; empty values are skipped."""
        if is_pixels(value) or is_clip(value):
            self.filled += 1
            self.images += is_pixels(value)
            self.clips += not is_pixels(value)
            return
        if is_sound_in_memory(value) or isinstance(value, bytes):
            self.filled += 1
            self.sounds += is_sound(value)
            return
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if value is None or value == "" or value == []:
            return
        self.filled += 1
        self.images += is_image(value)
        self.sounds += is_sound(value)
        self.lists += isinstance(value, str) and begins_list(value)
        self.series += is_series(value)
        if isinstance(value, (list, dict)):
            first = value[0] if isinstance(value, list) else value
            self.objects += isinstance(first, dict)
            self.lists += not isinstance(first, dict)
            value = " ".join(map(str, value)) if isinstance(value, list) else ""
        text = str(value).strip()
        self.codes += _CODE.fullmatch(text[: 4 * LABEL_LENGTH]) is not None
        self.numbers += like_number(text)
        self.counts_up = self.counts_up and self._follows(text)
        self.characters += len(text)
        if len(self.distinct) <= MOST_LABELS:
            self.distinct.add(text[: 4 * LABEL_LENGTH])

    def _follows(self, text: str) -> bool:
        """Return True if ``text`` is an integer one larger than the previous value, as in a column of row numbers."""
        before, self._last = self._last, int(text[:18]) if text.isdecimal() else None
        return self._last is not None and before in (None, self._last - 1)

    @property
    def length(self) -> float:
        """Mean number of characters of the column's non-empty values."""
        return self.characters / max(self.filled, 1)

    @property
    def is_number(self) -> bool:
        """True if at least 90 % of the non-empty values are numbers."""
        return self.filled > 0 and self.numbers >= 0.9 * self.filled

    @property
    def is_id(self) -> bool:
        """True if the column only identifies rows: by its name, because it has no name, or because its values count
        up.
        """
        name = plain(self.name)
        return (
            name in IDS
            or _UNNAMED.fullmatch(name) is not None
            or (self.filled > 2 and self.counts_up and len(self.distinct) == min(self.filled, MOST_LABELS + 1))
        )

    @property
    def is_clips(self) -> bool:
        """True if the values are clips in memory."""
        return self.filled > 0 and self.clips == self.filled

    @property
    def is_series(self) -> bool:
        """True if the values are series of numbers."""
        return self.filled > 0 and FITS["series"](self)

    @property
    def is_code(self) -> bool:
        """True if at least 90 % of the non-empty values are identifiers, dates or addresses rather than sentences."""
        return self.filled > 0 and self.codes >= 0.9 * self.filled

    @property
    def is_flag(self) -> bool:
        """True if the values are 0 and 1, or yes and no."""
        return self.filled > 0 and {value.casefold() for value in self.distinct} <= _FLAGS

    @property
    def is_label(self) -> bool:
        """True if the values are few, short and no numbers, as labels are."""
        return self.filled > 0 and not self.is_number and _is_label(self)

    def fits(self, kind: Kind) -> bool:
        """Return True if the values look like a column of ``kind``, for example few distinct values for a label."""
        return self.filled > 0 and not self.is_id and FITS[kind](self)

    def contradicts(self, kind: Kind) -> bool:
        """Return True if the values exclude a column of ``kind``, whatever the other columns are.

        This is so if there is no value; for a text, if values are objects, or nearly all are numbers or codes; for a
        label, if values are objects, or the same or different in every row.
        """
        if not self.filled:
            return True
        if kind == "text":
            return bool(self.objects) or self.is_number or self.is_code
        if kind == "label":
            constant = len(self.distinct) == 1 and self.filled > 1
            unique = self.filled >= _MANY and len(self.distinct) == min(self.filled, MOST_LABELS + 1)
            return constant or unique or bool(self.objects)
        return False


def profiles(table: Table) -> dict[str, Profile]:
    """Compute the statistics of every column of the table, by name."""
    by_name = {name: Profile(name) for name in table.columns}
    for row in table.rows:
        if isinstance(row, Row):
            for name, profile in by_name.items():
                profile.add(_filled(row.values.get(name), table))
    return by_name


def _filled(value: Any, table: Table) -> Any:
    """Return the value of a cell; None for a text that means an empty cell in this table."""
    return None if isinstance(value, str) and value.strip() in table.missing else value


def plain(name: str) -> str:
    """Normalise a column name: lower-case, without spaces and punctuation."""
    return "".join(sign for sign in name.casefold() if sign.isalnum())


def _is_label(p: Profile) -> bool:
    few = 2 <= len(p.distinct) <= min(MOST_LABELS, max(20, p.filled // 20)) and len(p.distinct) < p.filled
    return few and p.length <= LABEL_LENGTH and not p.lists and not p.objects


FITS: dict[Kind, Callable[[Profile], bool]] = {
    "text": lambda p: not p.contradicts("text"),
    "label": _is_label,
    "labels": lambda p: not p.is_number and not p.objects and (p.lists > 0 or p.length <= 2 * LABEL_LENGTH),
    "number": lambda p: p.is_number,
    "words": lambda p: p.lists > 0,
    "tags": lambda p: p.lists > 0,
    "answers": lambda p: p.objects > 0,
    "image": lambda p: p.images == p.filled or p.is_clips,
    "sound": lambda p: p.sounds == p.filled,
    "signal": lambda p: p.objects > 0,
    "series": lambda p: p.series >= 0.9 * p.filled,
    "messages": lambda p: p.objects > 0,
    "cell": lambda p: not p.objects and not p.lists,
}
"""Function that tests whether a column fits a kind; a label column has at most 20 distinct values, or one per 20
rows.
"""
