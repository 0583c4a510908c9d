"""``qkv bench``: every figure that is asked for, its limit, and the files; timings themselves are not looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.cli.main import main
from qkv.costs.measuring import turns
from qkv.models.build import build
from qkv.models.families.gpt import gpt
from qkv.models.transformer import Transformer
from qkv.runs.bench import measure
from qkv.runs.bench.measure import DECODE, FIRST, FORWARD, BenchPlan
from qkv.runs.bench.sides import lowered
from qkv.spec.heads import LanguageModelHead

SPEC = {
    "width": 32,
    "num_layers": 1,
    "context_length": 24,
    "frontend": {"kind": "text", "vocab_size": 64},
    "blocks": [{"branches": ["attention(2)", "feed_forward"]}],
}
ENCODER = {**SPEC, "blocks": [{"branches": ["attention(2, mask=full)"]}], "head": "classification(num_classes=3)"}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SPEC))
    return path


def tiny(**head: Any) -> Transformer:
    return build(gpt(width=32, num_layers=1, num_heads=2, context_length=24, vocab_size=64).changed(**head)).eval()


def test_every_figure_is_measured_and_written(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--batch", "1,3", "--prompt", "4,9,500", "--precision", "fp32,int8", "--new", "3", "--repeats", "1"]
    assert main(["bench", str(spec), *words, "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found == json.loads((tmp_path / "small-bench" / "bench.json").read_text())
    keys = [(each["precision"], each["quantity"], each["batch"], each["prompt"]) for each in found["figures"]]
    wanted = [(DECODE, 1, 4), (DECODE, 3, 4), (FIRST, 1, 4), (FIRST, 1, 9)]
    assert keys == [(precision, *each) for precision in ("fp32", "int8") for each in wanted]
    assert all(each["reached"] == each["value"] / each["limit"] for each in found["figures"] if each["limit"])
    assert shown.err.count("decode") == 4
    assert found["about"].keys() == {"machine", "versions", "date"}
    page = (tmp_path / "small-bench" / "bench.html").read_text()
    assert "memory limit" in page
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_a_model_that_does_not_decode_is_measured_by_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "encoder.json"
    path.write_text(json.dumps(ENCODER))
    words = ["--batch", "2", "--prompt", "5,7", "--precision", "fp32", "--repeats", "1", "--out", str(tmp_path / "out")]
    assert main(["bench", str(path), *words]) == 0
    figures = json.loads((tmp_path / "out" / "bench.json").read_text())["figures"]
    assert [(each["quantity"], each["batch"], each["prompt"]) for each in figures] == [
        (FORWARD, 2, 5),
        (FORWARD, 2, 7),
    ]
    assert "rows/s" in capsys.readouterr().out


def test_the_limit_counts_what_a_step_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights and the state; of a table that is not the output matrix, a step reads only some rows."""
    read = list[int]()
    monkeypatch.setattr(measure, "reading_seconds", lambda count: read.append(count) or 0.5)
    plan = BenchPlan((2,), (6,), ("fp32",), new=4, repeats=1)
    for model, apart in ((tiny(), 0), (tiny(head=LanguageModelHead(tied=False)), 64 * 32 * 4)):
        (decoded, _) = measure.bench("tiny", model, plan).figures
        weights = sum(4 * weight.numel() for weight in model.parameters())
        keys_and_values = 2 * (6 + 2) * 2 * 32 * 4
        assert read.pop() == weights - apart + keys_and_values
        assert decoded.limit == 2 / 0.5


def test_the_rate_counts_all_rows_and_the_best_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([2.0, 0.5, 1.0, *[9.0] * 40])
    monkeypatch.setattr(turns, "seconds_of", lambda run: (run(), next(times))[1])
    decoded, _ = measure.bench("tiny", tiny(), BenchPlan((2,), (6,), ("fp32",), new=4, repeats=3)).figures
    assert decoded.value == 2 * 4 / 0.5


def test_precisions_are_those_of_quantised_weights() -> None:
    model, ids = tiny(), torch.arange(8)[None]
    with torch.no_grad():
        wanted = model(ids)[0]
        errors = {name: float((lowered(model, name)(ids)[0] - wanted).abs().max()) for name in ("fp32", "int8", "int4")}
    assert errors["fp32"] == 0
    assert 0 < errors["int8"] < errors["int4"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--precision", "int5"], "there is no precision 'int5'"),
        (["--batch", "1,x"], "--batch: '1,x' is not a list of positive integers"),
        (["--prompt", "0"], "--prompt: '0'"),
        (["model.width=x"], "model.width"),
    ],
)
def test_bad_options_are_refused(
    spec: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(spec), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not Path("small-bench").exists()


@pytest.mark.slow
def test_the_peer_has_the_same_weights(tmp_path: Path) -> None:
    plan = BenchPlan((1,), (4,), ("fp32", "int8"), new=3, repeats=1, peers=True)
    sides = [(each.side, each.precision, each.quantity) for each in measure.bench("tiny", tiny(), plan).figures]
    assert sides == [
        ("qkv", "fp32", DECODE),
        ("transformers", "fp32", DECODE),
        ("qkv", "fp32", FIRST),
        ("transformers", "fp32", FIRST),
        ("qkv", "int8", DECODE),
        ("qkv", "int8", FIRST),
    ]
    theirs, ids = measure.other_model(tiny()), torch.arange(8)[None]
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, tiny()(ids)[0], atol=1e-5)
