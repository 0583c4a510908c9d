"""Write docs/choosing.md and docs/claims.md from recorded comparisons: ``python recipes/comparisons.py``.

    python recipes/comparisons.py --record runs/compare_char_lm runs/compare_recall

``--record`` copies the results of finished comparisons to recipes/results, with machine, versions and date; ``--check``
only compares. Every sentence and table of the pages between two comments is made from these files and from the table
of docs/growth.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import choosing
import claims
from pages import Section, placed, settled
from qkv.comparison.compare import RESULTS as RANKING
from qkv.comparison.scaling import RESULTS as SCALING
from qkv.training.environment import read_environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "recipes" / "results"
PAGES: dict[Path, Mapping[str, Section]] = {
    ROOT / "docs" / "choosing.md": choosing.SECTIONS,
    ROOT / "docs" / "claims.md": claims.SECTIONS,
}


def record(folder: Path, into: Path) -> Path:
    """Copy the results of the comparison in ``folder`` to ``into``, with the machine of its first run."""
    source = folder / RANKING if (folder / RANKING).exists() else folder / SCALING
    results = json.loads(source.read_text(encoding="utf-8"))
    run = next(folder.rglob("rate-*/seed-*/resume"))
    found = read_environment(run)
    if found is None:
        raise SystemExit(f"{run.parent} does not record machine and date; carry the comparison out again")
    machine = {"processor": found["processor"], "threads": found["threads"]}
    versions = {name: found[name] for name in ("qkv", "torch", "python")}
    content = {"machine": machine, "versions": versions, "date": found["date"], **results}
    path = into / f"{folder.name}.json"
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def written(page: str, sections: Mapping[str, Section]) -> str:
    """``page`` with every section made anew whose results are recorded. Raises ``ValueError`` if the comments around
    one are missing.
    """
    for name, (comparison, make) in sections.items():
        path = RESULTS / f"{comparison}.json"
        if not comparison or path.exists():
            content = make(json.loads(path.read_text(encoding="utf-8")) if comparison else {})
            begin, end = f"<!-- section {name}: recipes/comparisons.py -->", f"<!-- end of section {name} -->"
            page = placed(page, begin, content, end)
    return page


def main() -> int:
    """Record comparisons, then write the pages or compare them with ``--check``."""
    parser = argparse.ArgumentParser(description="Write docs/choosing.md and docs/claims.md from recorded comparisons.")
    parser.add_argument("--record", nargs="+", type=Path, default=[], metavar="FOLDER", help="finished comparisons")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page differs")
    given = parser.parse_args()
    for folder in given.record:
        print(record(folder, RESULTS))
    pages = {path: written(path.read_text(encoding="utf-8"), sections) for path, sections in PAGES.items()}
    return max(settled(path, page, given.check, "the results") for path, page in pages.items())


if __name__ == "__main__":
    sys.exit(main())
