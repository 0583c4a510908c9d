"""Assign columns to roles: as set by the user, by format, by name, or by content. Ambiguities raise ``UserError``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from qkv.data.cells.numbers import like_number
from qkv.data.records.columns.profile import MOST_LABELS, Profile, plain, profiles
from qkv.data.records.model import Role
from qkv.data.records.table import Row, Table
from qkv.data.records.values import separator_of
from qkv.system.errors import UserError, nearest

_LOOKED_AT = 100
"""Number of values that are read to check that the content of a column does not contradict its name."""
_LONGEST_NAME = 100
"""Maximum number of characters of the name of a column that may be guessed."""
CLEARLY = 1.5
"""Minimum ratio of the mean lengths of two columns for the longer column to be chosen as the text."""
SHOWN = 20
"""Maximum number of columns listed in an error."""


class ColumnChoice(NamedTuple):
    """Column of the table chosen for each role; ``note``: sentence on the guessed columns, "" if none was guessed.

    ``separator``: text between several labels in one cell, "" if no role has several labels.
    """

    columns: dict[str, str]
    note: str
    separator: str = ""


def choose(
    table: Table, roles: Sequence[Role], settings: Mapping[str, str], where: str = "data", reserved: str | None = None
) -> ColumnChoice:
    """Choose the column of the table for each role (input text, label, …): as in ``settings``, else by format, name,
    then content.

    ``reserved``: column with another purpose, which is not guessed. Raises ``UserError`` for an unknown column and if
    several columns are possible.
    """
    guess = _Guess(table, roles, where, reserved)
    guess.take_given(settings)
    guess.by_format()
    guess.by_name()
    guess.by_content()
    columns = {role.name: guess.taken[role.name] for role in roles if role.name in guess.taken}
    guessed = [(role, column) for role, column in columns.items() if role not in settings]
    parts = [f"{column!r} {'as' if i else 'is taken as'} {role}" for i, (role, column) in enumerate(guessed)]
    note = f"{', '.join(parts)} (guessed){guess.describe_others()}" if parts else ""
    several = next((columns[role.name] for role in roles if role.kind == "labels"), None)
    if several is None:
        return ColumnChoice(columns, note)
    return ColumnChoice(
        columns, note, separator_of(row.values.get(several) for row in table.rows if isinstance(row, Row))
    )


class _Guess:
    def __init__(self, table: Table, roles: Sequence[Role], where: str, reserved: str | None):
        self.table, self.reserved = table, reserved
        self.roles = roles
        self.option = f"{where}.columns"
        self.taken: dict[str, str] = {}
        self.alternatives: dict[str, list[str]] = {}

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """Statistics of each column's values, computed only if names are not sufficient."""
        return profiles(self.table)

    @property
    def open_roles(self) -> list[Role]:
        return [role for role in self.roles if role.name not in self.taken and not role.optional]

    @property
    def free(self) -> list[str]:
        used_columns = {self.reserved, *self.taken.values()}
        return [name for name in self.table.columns if name not in used_columns]

    def take_given(self, settings: Mapping[str, str]) -> None:
        names = [role.name for role in self.roles]
        for role, column in settings.items():
            if role not in names:
                raise UserError(f"{self.option}: there is no role {role!r}; {nearest(role, names)}")
            if column not in self.table.columns:
                raise UserError(
                    f"{self.option}.{role}: {self.table.name} has no column {column!r}; {self._near(column)}"
                )
            if column in self.taken.values():
                raise UserError(f"{self.option}.{role}: the column {column!r} is given twice; each role needs its own")
            self.taken[role] = column
        if len(self.free) < len(self.open_roles):
            needed = [role.name for role in self.roles if not role.optional or role.name in self.taken]
            raise UserError(
                f"{self.table.name} has {len(self.table.columns)} column{'s' * (len(self.table.columns) != 1)} "
                f"({self._listed()}), but {len(needed)} are needed: {', '.join(needed)}"
            )

    def by_format(self) -> None:
        for kind, columns in self.table.defaults.items():
            free = [column for column in columns if column in self.free]
            roles = [role for role in self.open_roles if role.kind == kind]
            self.taken.update((role.name, column) for role, column in zip(roles, free, strict=False))

    def by_name(self) -> None:
        """Assign roles to columns by full name, then by a word of the name.

        A word counts only if the content fits: ``review_text`` is a text if its content looks like one.
        """
        for role in self.roles:
            names = [plain(name) for name in (role.name, *role.names)]
            columns = sorted((c for c in self.free if plain(c) in names), key=lambda c: names.index(plain(c)))
            if role.by_name and role.name not in self.taken and columns:
                self.taken[role.name] = columns[0]
                self.alternatives[role.name] = columns[1:]
        for role in self.open_roles:
            names = [plain(name) for name in (role.name, *role.names)]
            named = [column for column in self.free if plain(column) in names and not self._contradicts(column, role)]
            best = [column for name in names[:2] for column in named if plain(column) == name]
            if named:
                self.taken[role.name] = best[0] if best else named[0] if len(named) == 1 else self._one(role, named)
        for role in self.open_roles:
            words = {plain(name) for name in (role.name, *role.names)}
            named = [column for column in self.free if words & _words(column) and self.profiles[column].fits(role.kind)]
            if len(named) == 1:
                self.taken[role.name] = named[0]

    def _contradicts(self, column: str, role: Role) -> bool:
        """Return True if the content of a column refutes its name.

        A text column is refuted if its values are identifiers and another column has texts; a label column, if its
        labels are all different. Only as many rows are read as the decision needs.
        """

        def enough(profile: Profile) -> bool:
            if role.kind == "label":
                return 1 < len(profile.distinct) < profile.filled or len(profile.distinct) > MOST_LABELS
            return profile.filled >= _LOOKED_AT

        profile = Profile.of(self.table, column, enough)
        if role.kind == "text":
            return profile.is_code and any(
                self.profiles[name].fits("text") and not self.profiles[name].is_label for name in self.free
            )
        return role.kind == "label" and len(profile.distinct) > 1 and profile.contradicts("label")

    def describe_others(self) -> str:
        """Return a clause on the columns that could have a role by their name, but of which another was chosen."""
        columns = [(role, name) for role, names in self.alternatives.items() for name in names if name in self.free]
        return "".join(f"; {name!r} could be {role}, too, and is not read" for role, name in columns)

    def by_content(self) -> None:
        if self.open_roles:
            self._expect_header()
        self._texts([role for role in self.open_roles if role.kind == "text"])
        for kind in ("image", "sound", "signal", "series", "answers", "label", "labels", "number"):
            for role in [role for role in self.open_roles if role.kind == kind]:
                self.taken[role.name] = self._one(role, self.free)
                self._not_a_row(self.taken[role.name], role)
        self._lists([role for role in self.open_roles if role.kind in ("words", "tags")])

    def _texts(self, roles: list[Role]) -> None:
        """Assign text roles to the columns with the longest values, in table order.

        Raises ``UserError`` if these columns are not clearly longer than the others.
        """
        if not roles:
            return
        most = max((self.profiles[name].filled for name in self.free), default=0)
        fitting = [name for name in self.free if self.profiles[name].fits("text") and self._is_filled(name, most)]
        if not most and len(self.free) == len(roles):  # no row can be read, which is reported when the rows are read
            fitting = self.free
        fitting.sort(key=self._length, reverse=True)
        enough = len(fitting) >= len(roles)
        if not enough or (
            fitting[len(roles) :]
            and self._length(fitting[len(roles) - 1]) < CLEARLY * self._length(fitting[len(roles)])
        ):
            raise self._doubt(roles[0], fitting)
        chosen = [name for name in self.free if name in fitting[: len(roles)]]
        self.taken.update((role.name, column) for role, column in zip(roles, chosen, strict=True))

    def _is_filled(self, name: str, most: int) -> bool:
        """Return True if the column has at least half as many non-empty cells as the fullest column, which has
        ``most``.
        """
        return 2 * self.profiles[name].filled >= most

    def _lists(self, roles: list[Role]) -> None:
        """Assign the roles of words and tags to the columns of lists: the column with fewer distinct values holds the
        tags.

        Raises ``UserError`` if the numbers of roles and columns differ.
        """
        if not roles:
            return
        lists = [name for name in self.free if self.profiles[name].fits("words")]
        if len(lists) != len(roles):
            raise self._doubt(roles[0], lists)
        lists.sort(key=lambda name: len(self.profiles[name].distinct), reverse=True)
        for role, column in zip(sorted(roles, key=lambda role: role.kind == "tags"), lists, strict=True):
            self.taken[role.name] = column

    def _one(self, role: Role, candidates: Sequence[str]) -> str:
        """Return the only candidate column, or the only one whose content fits the role.

        Raises ``UserError`` if there is not exactly one.
        """
        fitting = [name for name in candidates if self.profiles[name].fits(role.kind)]
        if len(candidates) == 1 and not self._is_refuted(candidates[0], role):
            fitting = list(candidates)
        if len(fitting) != 1:
            raise self._doubt(role, fitting)
        return fitting[0]

    def _is_refuted(self, name: str, role: Role) -> bool:
        """Return True if the only remaining column cannot have the role, because it only numbers rows or its content
        contradicts.
        """
        profile = self.profiles[name]
        return profile.filled > 0 and ((role.kind == "label" and profile.is_id) or profile.contradicts(role.kind))

    def _length(self, name: str) -> float:
        return self.profiles[name].length

    def _expect_header(self) -> None:
        number = next((name for name in self.free if like_number(name)), None)
        if self.table.header and number is not None:
            raise self._no_header(f"it contains {number!r}")
        sentence = next((name for name in self.free if len(name) > _LONGEST_NAME), None)
        if self.table.header and sentence is not None:
            raise self._no_header(f"{sentence[:_LONGEST_NAME]!r}… is too long for a name")

    def _not_a_row(self, column: str, role: Role) -> None:
        """Raise ``UserError`` if the name of a label column is also one of its values: line 1 is then a row, not a
        header.
        """
        if self.table.header and role.kind in ("label", "labels") and column in self.profiles[column].distinct:
            raise self._no_header(f"{column!r} is also a value of its column")

    def _no_header(self, why: str) -> UserError:
        numbers = ", ".join(f"{role.name}: {i}" for i, role in enumerate(self.roles, 1))
        return UserError(
            f"line 1 of {self.table.name} looks like a row and not like a header: {why}; "
            f"add a header, or give the columns by number, such as {self.option}={{{numbers}}}"
        )

    def _doubt(self, role: Role, candidates: Sequence[str]) -> UserError:
        """Build the ``UserError`` for a role without a clear column: it lists the columns and shows how to choose
        one.
        """
        if candidates:
            what = f"{', '.join(map(repr, candidates[:SHOWN]))} could be {role.name}"
        else:
            what = f"no column looks like {role.name}"
        flags = role.kind == "label" and len(candidates) > 1 and all(self.profiles[name].is_flag for name in candidates)
        hint = "; for several labels of one text, use the task multilabel" if flags else ""
        return UserError(
            f"{self.table.name}: {what}; its columns are {self._listed()}; "
            f"say which with {self.option}={{{role.name}: {(candidates or self.table.columns)[0]}}}{hint}"
        )

    def _listed(self) -> str:
        more = len(self.table.columns) - SHOWN
        return ", ".join(map(repr, self.table.columns[:SHOWN])) + (f" and {more} more" if more > 0 else "")

    def _near(self, column: str) -> str:
        hint = nearest(column, self.table.columns)
        return hint if hint.startswith("did you mean") else f"its columns are {self._listed()}"


def _words(name: str) -> set[str]:
    """Split a column name into words: ``reviewText``, ``review_text`` and ``Review Text`` give ``{"review",
    "text"}``.
    """
    return {word.casefold() for word in re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])", name)}
