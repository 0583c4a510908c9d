"""Tables and HTML page of a benchmark."""

from __future__ import annotations

from qkv.report.charts.bars import BarChart
from qkv.report.comparison import TableOf, add_tables
from qkv.report.figures import short, size
from qkv.report.page import Page
from qkv.runs.bench.measure import DECODE, FIRST, OURS, UNITS, Bench, Figure

_WHAT = {DECODE: "greedy decoding", FIRST: "time to the first token of one row"}


def tables(bench: Bench) -> list[TableOf]:
    """Build one table for each measured quantity, with one row of text for each measurement."""
    all_tables = []
    for quantity, unit in UNITS.items():
        rows = [_row(each) for each in bench.figures if each.quantity == quantity]
        limited = any(each.limit for each in bench.figures if each.quantity == quantity)
        bound = ["memory limit", "share of it"] if limited else []
        columns = ["library", "precision", "rows", "positions", unit, *bound]
        all_tables.append(TableOf(_WHAT.get(quantity, "forward pass"), columns, [row[: len(columns)] for row in rows]))
    rows = [[precision, path] for precision, path in bench.paths.items()]
    all_tables.append(TableOf("decoding path", ["precision", "path"], rows))
    return [table for table in all_tables if table.rows]


def _row(figure: Figure) -> list[str]:
    limit = ["", ""] if figure.limit is None else [short(figure.limit), f"{figure.reached:.0%}"]
    return [figure.side, figure.precision, f"{figure.batch:,}", f"{figure.prompt:,}", short(figure.value), *limit]


def page(bench: Bench) -> str:
    """Build a self-contained HTML page: bar charts of the speeds of qkv and of transformers, tables, machine and
    versions.
    """
    document = Page(f"Speed of {bench.name}")
    document.data["bench"] = bench.plain()
    document.header(f"{bench.parameters:,} parameters · {bench.about['machine']} · {bench.about['date']}")
    document.prose(bench.about["versions"])
    rates = [each for each in bench.figures if each.quantity != FIRST]
    with document.section("Rates"):
        document.charts([_bars(rates, batch) for batch in sorted({each.batch for each in rates})])
    add_tables(document, tables(bench))
    weights = [[name, size(count)] for name, count in bench.weights.items()]
    add_tables(document, [TableOf("weights", ["precision", "bytes"], weights)])
    document.prose(
        "The memory limit is the speed of a machine that only reads the weights and the decoding state once per "
        "token; it is derived from the time of a sum over as many bytes. Weights in int8 and int4 are quantised as by "
        "qkv quantize. Speeds of one machine vary by tens of percent over time: only compare numbers on the same page."
    )
    return document.html()


def _bars(rates: list[Figure], batch: int) -> BarChart:
    several = len({each.prompt for each in rates}) > 1
    bars = [
        (f"{each.side} {each.precision}" + f", {each.prompt:,} positions" * several, each.value)
        for each in rates
        if each.batch == batch
    ]
    best = max((bar for bar in bars if bar[0].startswith(OURS)), key=lambda bar: bar[1])
    return BarChart(f"{batch:,} {'row' if batch == 1 else 'rows'} at once", bars, UNITS[rates[0].quantity], best[0])
