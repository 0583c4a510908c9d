"""Tables of the tests that list everything of a kind: a failure names the table, what it lacks, and what it invents."""

from __future__ import annotations

from collections.abc import Iterable


def assert_lists(table: str, listed: Iterable[str], known: Iterable[str]) -> None:
    """Assert that a table, given by its file and name, lists all that is known and nothing else."""
    inside, outside = {*listed}, {*known}
    lacks = f" lacks {', '.join(sorted(outside - inside))}" if outside - inside else ""
    invents = f" lists {', '.join(sorted(inside - outside))}, unknown here" if inside - outside else ""
    assert inside == outside, f"{table}:{lacks}{' and' if lacks and invents else ''}{invents}"
