"""Common parts of the benchmarks: available peers, machine description, and timing of several sides in turns.

Speeds of one machine drift by tens of percent within minutes. Each repeat therefore runs every side once, A B C A B C,
and results are ratios of two sides of one run.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path
from types import MappingProxyType

import qkv  # before torch: enables huge pages for every side
from qkv.costs.measuring.turns import Times, in_turns, seconds_of
from qkv.report.table import print_table
from qkv.system.processor import processor_name

__all__ = ["Times", "in_turns", "seconds_of"]
"""Timing of the package, which the benchmarks import from here."""
TIE = 0.15
"""Differences below this are a tie: repeats of one side differ by as much."""


def compare(
    title: str,
    unit: str,
    amount: float,
    times: Mapping[str, Times],
    ours: Sequence[str] = ("qkv",),
    died: Mapping[str, str] = MappingProxyType({}),
) -> float | None:
    """Print ``amount`` per second of each side, then print and return best of ``ours`` / best of the others. died: how
    the sides died that have no times.
    """
    own = min((t.best for name, t in times.items() if name in ours), default=None)
    rows = [
        (
            name,
            _rate(amount / t.best),
            _rate(amount / t.middle),
            f"{t.spread:.0%}",
            f"{t.best / own:.2f}" if own else "",
        )
        for name, t in times.items()
    ]
    dead = [(name, how, "", "", "") for name, how in died.items() if name not in times]
    print_table(f"\n{title}", ["side", f"{unit}, best", "median", "spread", "ours is"], [*rows, *dead])
    return say_ratio({name: t.best for name, t in times.items()}, ours)


def _rate(value: float) -> float:
    return round(value) if value >= 100 else round(value, 1)


def say_ratio(seconds: Mapping[str, float], ours: Sequence[str] = ("qkv",)) -> float | None:
    """Print and return (best peer's seconds) / (qkv's best seconds).

    Above 1 qkv is faster. None if either is missing.
    """
    own = {name: s for name, s in seconds.items() if name in ours}
    peers = {name: s for name, s in seconds.items() if name not in ours}
    if not own or not peers:
        print("ratio: none, because there is no peer or no qkv side")
        return None
    mine, best = min(own, key=own.__getitem__), min(peers, key=peers.__getitem__)
    ratio = peers[best] / own[mine]
    print(f"ratio {mine} / {best} (best peer): {ratio:.2f}" + (" (a tie)" if abs(ratio - 1) < TIE else ""))
    return ratio


def say_where(*packages: str) -> None:
    """Print machine, versions, date and common settings."""
    import torch

    print(
        f"machine    {processor_name()}, {torch.get_num_threads()} threads used, "
        f"{platform.system()} {platform.release()}"
    )
    versions = [f"{name} {version(name) or '(not installed)'}" for name in ("torch", *packages)]
    print(f"versions   qkv {qkv.__version__}, Python {platform.python_version()}, {', '.join(versions)}")
    print(f"date       {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    print(
        f"settings   THP_MEM_ALLOC_ENABLE={os.environ.get('THP_MEM_ALLOC_ENABLE', '')} (huge pages), "
        "the same for every side"
    )


def version(package: str) -> str | None:
    """Version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def available(name: str, module: str, wanted: bool = True) -> bool:
    """True if a peer is available; otherwise print the reason."""
    if not wanted:
        print(f"left out: {name} (in a smoke run)")
        return False
    try:
        import_module(module)
    except ImportError as error:
        print(f"left out: {name} ({error}); install it to compare")
        return False
    return True


def parser(description: str) -> argparse.ArgumentParser:
    """Argument parser with the common options."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument(
        "--smoke", action="store_true", help="tiny sizes, qkv only: check that the script runs; timings are meaningless"
    )
    options.add_argument("--repeats", type=int, default=5, help="number of repeats per side")
    return options


def with_rows_of(page: Path, name: str, rows: Sequence[Sequence[str]], keys: int) -> list[list[str]]:
    """``rows``, and those of the table in a page whose first ``keys`` cells no new row has, in their order there."""
    begin, end = f"<!-- table {name} -->\n", f"<!-- end of table {name.partition(':')[0]} -->\n"
    lines = page.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].split("\n")
    known = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    new = {tuple(row[:keys]): [list(each) for each in rows if each[:keys] == row[:keys]] for row in rows}
    found: list[list[str]] = []
    for row in known:
        key = tuple(row[:keys])
        if key in new:
            found += new.pop(key)
        elif key not in {tuple(each[:keys]) for each in rows}:
            found.append(row)
    return [*found, *(row for each in new.values() for row in each)]


def write_table(page: Path, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
    """Write a table between its comments in a page: ``<!-- table NAME: PROGRAM -->``, ``<!-- end of table NAME -->``.

    ``name``: name and program.   ``note``: paragraph below the table.
    """
    begin, end = f"<!-- table {name} -->\n", f"<!-- end of table {name.partition(':')[0]} -->\n"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no place for the table: {begin.strip()} … {end.strip()}")
    drawn = "".join(f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *rows))
    below = f"{note}\n\n" if note else ""
    page.write_text(f"{before}{begin}\n{drawn}\n{below}{end}{after}", encoding="utf-8")
