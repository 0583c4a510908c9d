"""Tables and HTML page of a benchmark."""

from __future__ import annotations

from qkv.report.charts.bars import BarChart
from qkv.report.comparison import TableOf, add_tables
from qkv.report.figures import short, size
from qkv.report.page import Page
from qkv.runs.bench.measure import DECODE, FIRST, OURS, UNITS, Bench, Figure

_WHAT = {DECODE: "greedy decoding", FIRST: "time to the first token of one row"}


def tables(found: Bench) -> list[TableOf]:
    """Build one table for each measured quantity, with one row of text for each measurement."""
    made = []
    for quantity, unit in UNITS.items():
        rows = [_row(each) for each in found.figures if each.quantity == quantity]
        limited = any(each.limit for each in found.figures if each.quantity == quantity)
        bound = ["memory limit", "share of it"] if limited else []
        columns = ["library", "precision", "rows", "positions", unit, *bound]
        made.append(TableOf(_WHAT.get(quantity, "forward pass"), columns, [row[: len(columns)] for row in rows]))
    rows = [[precision, path] for precision, path in found.paths.items()]
    made.append(TableOf("decoding path", ["precision", "path"], rows))
    return [table for table in made if table.rows]


def _row(figure: Figure) -> list[str]:
    limit = ["", ""] if figure.limit is None else [short(figure.limit), f"{figure.reached:.0%}"]
    return [figure.side, figure.precision, f"{figure.batch:,}", f"{figure.prompt:,}", short(figure.value), *limit]


def page(found: Bench) -> str:
    """Build a self-contained HTML page: bar charts of the speeds of qkv and of transformers, tables, machine and
    versions.
    """
    made = Page(f"Speed of {found.name}")
    made.data["bench"] = found.plain()
    made.header(f"{found.parameters:,} parameters · {found.about['machine']} · {found.about['date']}")
    made.prose(found.about["versions"])
    rates = [each for each in found.figures if each.quantity != FIRST]
    with made.section("Rates"):
        made.charts([_bars(rates, batch) for batch in sorted({each.batch for each in rates})])
    add_tables(made, tables(found))
    weights = [[name, size(count)] for name, count in found.weights.items()]
    add_tables(made, [TableOf("weights", ["precision", "bytes"], weights)])
    made.prose(
        "The memory limit is the speed of a machine that only reads the weights and the decoding state once per "
        "token; it is derived from the time of a sum over as many bytes. Weights in int8 and int4 are quantised as by "
        "qkv quantize. Speeds of one machine vary by tens of percent over time: only compare numbers on the same page."
    )
    return made.html()


def _bars(rates: list[Figure], batch: int) -> BarChart:
    several = len({each.prompt for each in rates}) > 1
    bars = [
        (f"{each.side} {each.precision}" + f", {each.prompt:,} positions" * several, each.value)
        for each in rates
        if each.batch == batch
    ]
    best = max((bar for bar in bars if bar[0].startswith(OURS)), key=lambda bar: bar[1])
    return BarChart(f"{batch:,} {'row' if batch == 1 else 'rows'} at once", bars, UNITS[rates[0].quantity], best[0])
