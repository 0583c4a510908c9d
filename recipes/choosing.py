"""Write docs/choosing.md from recorded comparisons: ``python recipes/choosing.py``; ``--check`` only compares.

    python recipes/choosing.py --record runs/compare_char_lm runs/compare_recall

``--record`` copies the results of finished comparisons to recipes/results, with machine, versions and date. Every
sentence and table of the page between two comments is made from these files and from the table of docs/growth.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pages import placed, settled
from qkv.models.build import build
from qkv.report.figures import fixed, short, size
from qkv.spec.comparison import base_recipe, entry_recipe, factor_name, read_comparison
from qkv.spec.shipped import shipped_comparisons
from qkv.training.surroundings import read_surroundings

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, GROWTH = ROOT / "recipes" / "results", ROOT / "docs" / "choosing.md", ROOT / "docs" / "growth.md"
RIGHT = 0.9
"""Share of right answers from which a mixer is said to recall rows of a size."""


class Held(NamedTuple):
    """Decoding state of an entry: bytes for a row of ``length`` positions, and whether they are constant."""

    length: int
    bytes: int
    constant: bool


def record(folder: Path, into: Path) -> Path:
    """Copy the results of the comparison in ``folder`` to ``into``, with the machine of its first run."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    run = next(folder.glob("*/rate-*/seed-*/resume"))
    found = read_surroundings(run)
    if found is None:
        raise SystemExit(f"{run.parent} does not record machine and date; carry the comparison out again")
    machine = {"processor": found["processor"], "threads": found["threads"]}
    versions = {name: found[name] for name in ("qkv", "torch", "python")}
    content = {"machine": machine, "versions": versions, "date": found["date"], **results}
    path = into / f"{folder.name}.json"
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def held(name: str) -> dict[str, Held]:
    """Decoding state of every entry of a shipped comparison, at its recipe's context length."""
    compared = read_comparison(shipped_comparisons()[name])
    base, found = base_recipe(compared), dict[str, Held]()
    for entry, overrides in compared.entries.items():
        model = entry_recipe(base, entry, overrides).model
        # The state does not depend on the number of words and classes, which the data would say.
        head = model.head.changed(num_classes=2) if "num_classes" in type(model.head).model_fields else model.head
        built = build(model.changed(frontend=model.frontend.changed(vocab_size=2), head=head))
        half, whole = (built.state_bytes(length) for length in (model.context_length // 2, model.context_length))
        found[entry] = Held(model.context_length, whole, half == whole)
    return found


def characters(results: Mapping[str, Any], states: Mapping[str, Held]) -> str:
    """Table and sentences of the comparison on characters."""
    rows = sorted((row for row in results["entries"] if not row["failed"]), key=lambda row: row["mean"])
    lines = [
        [
            row["name"],
            _interval(row["mean"], row["interval"]),
            "" if row["difference"] is None else _interval(row["difference"], row["difference_interval"], "+"),
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
    return f"{_table(columns, lines)}\n{' '.join(said)}\n\n{_origin(results)}\n"


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
    return f"{_table(columns, lines)}\n{' '.join(said)}\n\n{_origin(results)}\n"


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


SECTIONS: dict[str, tuple[str, Callable[[Mapping[str, Any], Mapping[str, Held]], str]]] = {
    "characters": ("compare_char_lm", characters),
    "recall": ("compare_recall", by_size),
    "copying": ("compare_copying", by_size),
}


def written(page: str) -> str:
    """``page`` with every section made anew. Raises ``ValueError`` if the comments around one are missing."""
    for name, (comparison, make) in SECTIONS.items():
        path = RESULTS / f"{comparison}.json"
        if path.exists():
            content = make(json.loads(path.read_text(encoding="utf-8")), held(comparison))
            page = _section(page, name, content)
    return _section(page, "lengths", lengths())


def _section(page: str, name: str, content: str) -> str:
    begin, end = f"<!-- section {name}: recipes/choosing.py -->", f"<!-- end of section {name} -->"
    return placed(page, begin, content, end)


def _interval(mean: float, ends: Sequence[float] | None, sign: str = "") -> str:
    plus = sign if mean > 0 else ""
    return f"{plus}{fixed(mean)}" + ("" if ends is None else f" ± {(ends[1] - ends[0]) / 2:.2g}")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *rows))


def _origin(results: Mapping[str, Any]) -> str:
    machine, versions = results["machine"], results["versions"]
    seeds, threads = len(results["seeds"]), machine["threads"]
    rates = ", ".join(dict.fromkeys(rate for row in results["entries"] for rate in row["rates_tried"]))
    return (
        f"{seeds} seeds, factors of the learning rate {rates}, equal {results['equal']}; {machine['processor']}, "
        f"{threads} {'thread' if threads == 1 else 'threads'} a run, torch {versions['torch']}, {results['date']}."
    )


def main() -> int:
    """Record comparisons, then write the page or compare it with ``--check``."""
    parser = argparse.ArgumentParser(description="Write docs/choosing.md from recorded comparisons.")
    parser.add_argument("--record", nargs="+", type=Path, default=[], metavar="FOLDER", help="finished comparisons")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the page differs")
    given = parser.parse_args()
    for folder in given.record:
        print(record(folder, RESULTS))
    return settled(PAGE, written(PAGE.read_text(encoding="utf-8")), given.check, "the results")


if __name__ == "__main__":
    sys.exit(main())
