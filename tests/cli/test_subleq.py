"""``qkv subleq``: results, page, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call


def test_a_program_runs_and_is_compared(qkv: Call, tmp_path: Path) -> None:
    page = tmp_path / "add.html"
    result = qkv("subleq", "add", "--input", "x=5", "--bits", "5", "--out", str(page))
    assert result.code == 0
    assert "sum = 9\nended after 6 instructions; all 6 rows equal the interpreter's\n" in result.out
    text = page.read_text()
    assert "sum = 9" in text
    assert "memory[a]" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/", "")


def test_json_and_a_limit_of_steps(qkv: Call, tmp_path: Path) -> None:
    file = tmp_path / "count.subleq"
    file.write_text("output n\nloop: subleq one n loop\njump loop\nn: data 3\none: data 1\n")
    result = qkv("subleq", str(file), "--bits", "4", "--steps", "2", "--json", "--dtype", "fp64")
    values = json.loads(result.out)
    assert values["results"] == {"n": [2]}
    assert (values["instructions"], values["ended"], values["equal"]) == (2, False, True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("ad",), "there is no program or file 'ad'; did you mean 'add'?"),
        (("add", "--input", "x"), "--input: 'x' given; write a label and whole numbers"),
        (("add", "--input", "z=1"), "the program has no data with the label 'z'; allowed: sum, x, y"),
        (("add", "--bits", "40"), "bits: 40 given; allowed: 3 to 10"),
        (("add", "--sharpness", "1"), "sharpness: 1 gives the addressed one of 256 cells 0.08"),
        (("add", "--temperature", "0"), "--temperature: 0 given; allowed: above 0"),
        (("add", "--dtype", "fp8"), "--dtype: 'fp8' given; allowed: fp32, fp64"),
    ],
)
def test_refusals(qkv: Call, options: tuple[str, ...], sentence: str) -> None:
    result = qkv("subleq", *options)
    assert result.code == 2
    assert sentence in result.err
