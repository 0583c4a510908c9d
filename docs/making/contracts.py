"""Write the tables of docs/contracts.md from the registered parts and tests: ``python docs/making/contracts.py``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "contracts.md"
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "reference": ("equation",),
    "gradients": ("gradients",),
    "causality": ("causality",),
    "state": (
        "cut anywhere",
        "fixed capacity",
        "growth by doubling",
        "state bytes",
        "rows: reorder, drop, fork",
        "rewind",
    ),
    "padding": ("padding",),
    "packed": ("packed documents",),
    "saved": ("save, load, convert",),
}
"""Columns of the table: checks of the battery."""


def page() -> str:
    """docs/contracts.md with its tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("contracts", _contracts()), ("ranks", _ranks())):
        begin, end = f"<!-- table {name}: docs/making/contracts.py -->\n", f"<!-- end of table {name} -->\n"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return text


def _contracts() -> str:
    """Table of the checks that each part is under."""
    from tests.contracts.battery import CHECKS, NOT_OF_DECODING
    from tests.contracts.limits import LIMITS
    from tests.contracts.samples import BIDIRECTIONAL, SAMPLES

    from qkv.mixers.registry import branches

    unknown = [check for checks in COLUMNS.values() for check in checks if check not in CHECKS]
    assert not unknown, f"the battery has no checks {unknown}"
    rows = []
    for kind in sorted(spec.kind for spec in branches() if spec.__module__.startswith("qkv.")):
        decoding, other = len(SAMPLES.get(kind, ())), sum(part.kind == kind for part in BIDIRECTIONAL)
        cells = [_cell(decoding, other, set(checks) <= set(NOT_OF_DECODING)) for checks in COLUMNS.values()]
        limit = LIMITS[kind]
        shown = f"[{limit.what}](../tests/{limit.test.partition('::')[0]})" if limit.test else limit.what
        rows.append(f"| `{kind}` | {' | '.join(cells)} | {shown} |\n")
    head = f"| part | {' | '.join(COLUMNS)} | limit |\n|{'---|' * (len(COLUMNS) + 2)}\n"
    return f"{head}{''.join(rows)}"


def _ranks() -> str:
    """Table of how each part computes rows that ranks share, with the number of specs for each way."""
    from tests.contracts.samples import BIDIRECTIONAL, SAMPLES, WIDTH

    from qkv.mixers.registry import branches, build_branch
    from qkv.parallel.context.ways import WAYS, way_of

    rows = []
    for kind in sorted(spec.kind for spec in branches() if spec.__module__.startswith("qkv.")):
        parts = [*SAMPLES.get(kind, ()), *(part for part in BIDIRECTIONAL if part.kind == kind)]
        ways = [way_of(build_branch(part, WIDTH)) for part in parts]
        counts = [sum(way.name == name for way in ways) for name in WAYS]
        reasons = "; ".join(sorted({way.reason for way in ways if not way.name}))
        cells = [*(str(count or "") for count in counts), reasons]
        rows.append(f"| `{kind}` | {' | '.join(cells)} |\n")
    return f"| part | {' | '.join(WAYS)} | other specs not: a spec that |\n|{'---|' * (len(WAYS) + 2)}\n{''.join(rows)}"


def _cell(decoding: int, other: int, every: bool) -> str:
    """Number of specs under a check; ``every``: it is asked of parts that see later positions too."""
    if every:
        return str(decoding + other)
    return str(decoding) if decoding else "two-way"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), encoding="utf-8")
