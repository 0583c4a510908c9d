"""``qkv particles``: the simulation, its page, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Call


def test_particles_cluster(qkv: Call, tmp_path: Path) -> None:
    page = tmp_path / "particles.html"
    result = qkv("particles", "--beta", "1", "--count", "8", "--time", "20", "--out", page)
    assert result.code == 0, result.err
    lines = [line.split() for line in result.out.splitlines()]
    assert [lines[1][:2], lines[13][:2]] == [["0.00", "8"], ["20.00", "1"]]
    assert "energy" in page.read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--dynamics", "MA"), "--dynamics: 'MA' given; allowed: SA, USA"),
        (("--text", "a b"), "give --run and --text together"),
    ],
)
def test_refusals(qkv: Call, options: tuple[str, ...], sentence: str) -> None:
    result = qkv("particles", *options)
    assert result.code == 2
    assert sentence in result.err
