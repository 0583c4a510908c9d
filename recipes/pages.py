"""Pages with parts that programs write, and the tables of recorded comparisons."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.report.figures import fixed
from qkv.spec.files.shipped import shipped_comparisons
from qkv.spec.model import Model
from qkv.spec.recipes.comparison import base_recipe, entry_recipe, read_comparison

Section = tuple[str, Callable[[Mapping[str, Any]], str]]
"""Name of a recorded comparison, or "", and the text that is made of its results."""


def entry_models(name: str) -> dict[str, Model]:
    """Models of a shipped comparison by entry, with two words and two classes, which otherwise its data would say."""
    compared = read_comparison(shipped_comparisons()[name])
    base, found = base_recipe(compared), dict[str, Model]()
    for entry, overrides in compared.entries.items():
        model = entry_recipe(base, entry, overrides).model
        head = model.head.changed(num_classes=2) if "num_classes" in type(model.head).model_fields else model.head
        found[entry] = model.changed(frontend=model.frontend.changed(vocab_size=2), head=head)
    return found


def placed(page: str, begin: str, content: str, end: str) -> str:
    """``page`` with ``content`` between the lines ``begin`` and ``end``. Raises ``ValueError`` if one is missing."""
    before, first, rest = page.partition(f"{begin}\n")
    _, last, after = rest.partition(f"{end}\n")
    if not (first and last):
        raise ValueError(f"the page has no place for this part: {begin} … {end}")
    return f"{before}{begin}\n\n{content}\n{end}\n{after}"


def settled(path: Path, after: str, check: bool, source: str) -> int:
    """Write a page if it changes; with ``check`` change nothing, and return 1 if it would differ from ``source``."""
    changes = path.read_text(encoding="utf-8") != after
    if changes and check:
        sys.stderr.write(f"{path} differs from {source}; run make tables\n")
        return 1
    if changes:
        path.write_text(after, encoding="utf-8")
    return 0


def interval(mean: float, ends: Sequence[float] | None, sign: str = "") -> str:
    """A mean and half of its interval; ``sign``: before a positive mean."""
    plus = sign if mean > 0 else ""
    return f"{plus}{fixed(mean)}" + ("" if ends is None else f" ± {(ends[1] - ends[0]) / 2:.2g}")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Table in Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *rows))


def origin(results: Mapping[str, Any]) -> str:
    """Settings of a recorded comparison, with machine, version and date."""
    seeds = len(results["seeds"])
    rates = ", ".join(dict.fromkeys(rate for row in results["entries"] for rate in row["rates_tried"]))
    settings = f"{seeds} seeds, factors of the learning rate {rates}, equal {results['equal']}"
    return f"{settings}; {made_on(results)}"


def made_on(results: Mapping[str, Any]) -> str:
    """Machine, version and date of recorded results."""
    machine, threads = results["machine"], results["machine"]["threads"]
    processor = f"{machine['processor']}, {threads} {'thread' if threads == 1 else 'threads'} a run"
    return f"{processor}, torch {results['versions']['torch']}, {results['date']}."
