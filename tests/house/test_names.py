"""One meaning a name."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.house.source import PACKAGE, package


def places() -> dict[str, list[str]]:
    """Modules that define a public class, by its name."""
    found = defaultdict[str, list[str]](list)
    for source in package():
        parts = source.path.relative_to(PACKAGE).parts
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append("/".join(parts))
    return found


def test_a_class_and_its_description_alone_share_a_name() -> None:
    twice = {name: paths for name, paths in places().items() if len(paths) > 1}
    assert len(twice) > 40  # specs and what implements them
    wrong = {
        name: paths
        for name, paths in twice.items()
        if len(paths) > 2 or sum(path.startswith("spec/") for path in paths) != 1
    }
    assert not wrong, f"classes of one name: {wrong}"


def test_the_glossary_is_short_and_sorted() -> None:
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text().partition("## Glossary")[2].partition("\n## ")[0]
    words = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    assert 30 < len(words) <= 60
    assert words == sorted(set(words))
