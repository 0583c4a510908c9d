"""Sections of docs/choosing.md: which mixer for which length, task and memory, from recorded comparisons."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pages import Section, entry_models, interval, origin, table
from qkv.models.build import build
from qkv.report.figures import fixed, short, size
from qkv.spec.recipes.comparison import factor_name

GROWTH = Path(__file__).resolve().parents[1] / "docs" / "growth.md"
BUDGETS = (1_000, 10_000, 20_000, 100_000, 1_000_000)
"""Bytes of decoding state of one row."""
RIGHT = 0.9
"""Share of right answers from which a mixer is said to recall rows of a size."""


class Held(NamedTuple):
    """Decoding state of an entry: bytes for a row of ``length`` positions, and whether they are constant."""

    length: int
    bytes: int
    constant: bool


def held(name: str) -> dict[str, Held]:
    """Decoding state of every entry of a shipped comparison, at its recipe's context length."""
    found = dict[str, Held]()
    for entry, model in entry_models(name).items():
        built = build(model)  # the state does not depend on the number of words and classes
        half, whole = (built.state_bytes(length) for length in (model.context_length // 2, model.context_length))
        found[entry] = Held(model.context_length, whole, half == whole)
    return found


def characters(results: Mapping[str, Any], states: Mapping[str, Held]) -> str:
    """Table and sentences of the comparison on characters."""
    rows = sorted((row for row in results["entries"] if not row["failed"]), key=lambda row: row["mean"])
    lines = [
        [
            row["name"],
            interval(row["mean"], row["interval"]),
            "" if row["difference"] is None else interval(row["difference"], row["difference_interval"], "+"),
            "" if row["p_corrected"] is None else f"{row['p_corrected']:.2g}",
            factor_name(row["rate"]),
            short(row["training_flops"]),
            size(states[row["name"]].bytes),
            "constant" if states[row["name"]].constant else "grows",
        ]
        for row in rows
    ]
    columns = ["mixer", "loss", "difference", "p (Holm)", "rate", "training FLOPs", "decoding state", "with length"]
    said = [*results["conclusions"], *_best_constant(rows, states), *_at_the_end(rows)]
    return f"{table(columns, lines)}\n{' '.join(said)}\n\n{origin(results)}\n"


def _best_constant(rows: Sequence[Mapping[str, Any]], states: Mapping[str, Held]) -> list[str]:
    constant = [row for row in rows if states[row["name"]].constant]
    if not constant:
        return []
    best = constant[0]
    held = states[best["name"]]
    return [
        f"Lowest loss with a decoding state of constant size: {best['name']}, {fixed(best['mean'])}, "
        f"{size(held.bytes)} for a row of any length."
    ]


def _at_the_end(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentence on entries whose chosen learning rate is the smallest or largest that was tried."""
    ends = {
        row["name"]: (min(tried), max(tried)) for row in rows if len(tried := list(map(float, row["rates_tried"]))) > 1
    }
    found = [row["name"] for row in rows if row["rate"] in ends.get(row["name"], ())]
    return (
        [f"Best at the smallest or largest rate tried, so that others may be better: {', '.join(found)}."]
        if found
        else []
    )


def memory(results: Mapping[str, Any], states: Mapping[str, Held]) -> str:
    """Table of the entry that answers best, over all sizes, within a number of bytes of decoding state."""
    rows = sorted((row for row in results["entries"] if not row["failed"]), key=lambda row: -row["mean"])
    best = [next((row for row in rows if states[row["name"]].bytes <= budget), None) for budget in BUDGETS]
    lines = [
        [size(budget), row["name"], f"{100 * row['mean']:.1f}", size(states[row["name"]].bytes)]
        for budget, row in zip(BUDGETS, best, strict=True)
        if row is not None
    ]
    length = next(iter(states.values())).length
    return f"{table([f'state of {length} positions, at most', 'best mixer', '% right', 'its state'], lines)}"


def by_size(results: Mapping[str, Any], states: Mapping[str, Held]) -> str:
    """Table and sentences of a comparison on a generated task: right answers by size of the row."""
    rows = [row for row in results["entries"] if not row["failed"]]
    sizes = sorted(int(name.rpartition("_")[2]) for name in rows[0]["figures"] if name.startswith("accuracy_at_"))
    share = {row["name"]: [row["figures"][f"accuracy_at_{n}"] for n in sizes] for row in rows}
    lines = [
        [
            name,
            *(f"{100 * value:.1f}" for value in found),
            size(states[name].bytes),
            "constant" if states[name].constant else "grows",
        ]
        for name, found in sorted(share.items(), key=lambda item: -sum(item[1]))
    ]
    reach = {name: _reach(sizes, found) for name, found in share.items()}
    said = [_reaching(reach, states, constant) for constant in (False, True)]
    columns = ["mixer", *(f"% at {n}" for n in sizes), "decoding state", "with length"]
    return f"{table(columns, lines)}\n{' '.join(said)}\n\n{origin(results)}\n"


def _reach(sizes: Sequence[int], shares: Sequence[float]) -> int:
    """Largest size up to which all shares of right answers are at least ``RIGHT``; 0 if the first is not."""
    return max((n for i, n in enumerate(sizes) if min(shares[: i + 1]) >= RIGHT), default=0)


def _reaching(reach: Mapping[str, int], states: Mapping[str, Held], constant: bool) -> str:
    """Sentence on the largest rows that mixers with one kind of state answer."""
    kind = "of constant size" if constant else "that grows"
    found = {name: n for name, n in reach.items() if states[name].constant is constant}
    told = "; ".join(
        f"{', '.join(name for name, m in found.items() if m == n)} up to {n}"
        for n in sorted({n for n in found.values() if n}, reverse=True)
    )
    none = ", ".join(name for name, n in found.items() if not n)
    told = "; ".join(part for part in (told, f"{none} at no size" if none else "") if part)
    return f"With a state {kind}, {100 * RIGHT:.0f} % or more of the answers are right: {told or 'no entry'}."


def lengths() -> str:
    """Sentences on time by length, from the table of docs/growth.md."""
    rows = growth_rows(GROWTH.read_text(encoding="utf-8"))
    sooner = {row[0]: row[9] for row in rows if re.fullmatch(r"[\d,]+", row[9])}
    by_length = sorted(sooner.items(), key=lambda item: int(item[1].replace(",", "")))
    never = [row[0] for row in rows if row[9] == "never"]
    told = "; ".join(f"{name} from {length}" for name, length in by_length)
    said = f"A training pass is faster than that of exact attention, in positions: {told}." if told else ""
    late = f" At no measured length: {', '.join(never)}." if never else ""
    return f"{said}{late}\n" if rows else "Not measured yet.\n"


def growth_rows(page: str) -> list[list[str]]:
    """Rows of the table of growth."""
    inside = page.partition("<!-- table growth")[2].partition("<!-- end of table growth")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in inside.split("\n") if line.startswith("|")
    ]
    return rows[2:]


SECTIONS: dict[str, Section] = {
    "characters": ("compare_char_lm", lambda results: characters(results, held("compare_char_lm"))),
    "recall": ("compare_recall", lambda results: by_size(results, held("compare_recall"))),
    "memory": ("compare_recall", lambda results: memory(results, held("compare_recall"))),
    "copying": ("compare_copying", lambda results: by_size(results, held("compare_copying"))),
    "lengths": ("", lambda results: lengths()),
}
