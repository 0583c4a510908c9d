"""Sides of graphs and series: edges of the row that is shown, steps that each position reads."""

from __future__ import annotations

from pathlib import Path

from tests.lens.inspection.forms import graph_run, series_run

from qkv.lens.inspection.inspection import inspect_run


def test_a_graph_has_the_edges_of_its_row(tmp_path: Path) -> None:
    run = graph_run(tmp_path / "graphs")
    for row in range(2):
        inspection = inspect_run(run, row)
        side, signal = inspection.sides["model"], inspection.subject.read.signal
        place, count = inspection.subject.read.row, len(side["labels"])
        n = signal.values.shape[1]
        edges = signal.graph.edges.T.tolist()  # type: ignore[attr-defined]
        wanted = {(min(i, j) - place * n, max(i, j) - place * n) for i, j in edges if i // n == place}
        assert set(side["edges"]) == wanted
        assert len(wanted) in (count, count - 1)  # a ring, or a star
        assert max(j for _, j in wanted) == count - 1
        for name in ("attention", "influence"):
            for each in inspection.view(name)["data"]["maps"]:
                assert each["weights"]["shape"][1:] == [count, count]  # without padding
        assert {len(v) for v in inspection.view("words")["data"]["measures"].values()} == {count}


def test_positions_of_a_series_name_the_steps_that_they_read(tmp_path: Path) -> None:
    run = series_run(tmp_path / "series")
    inspection = inspect_run(run, 1)
    side, signal = inspection.sides["model"], inspection.subject.read.signal
    assert side["series"] == (tuple(signal.values[inspection.subject.read.row, :, 0].tolist()),)
    # patches of 4 steps at every second of 12; the last one reads the repeated last value too
    assert side["spans"] == ((0, 3), (2, 5), (4, 7), (6, 9), (8, 11), (10, 11))
    assert side["labels"] == ("0–3", "2–5", "4–7", "6–9", "8–11", "10–11")
