"""``qkv quantize``: a folder that opens as any run, its figures, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import qkv
from qkv.cli.main import main
from qkv.layers.linear.quantized import QuantizedLinear, QuantizedTable
from qkv.runs.evaluation import evaluate
from qkv.runs.storage.checkpoint import weights
from qkv.system.errors import UserError


@pytest.fixture(scope="module", params=[16, 8, 4])
def small(straight: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A quantised run, by the command line."""
    out = tmp_path_factory.mktemp("quantised") / "run"
    assert main(["quantize", str(straight), str(out), "--bits", str(request.param)]) == 0
    return out


def test_the_new_folder_is_a_run(small: Path, straight: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, before = qkv.load(small), qkv.load(straight)
    assert run.recipe.quantized is not None
    assert all(isinstance(m, QuantizedLinear) for m in run.model.modules() if isinstance(m, torch.nn.Linear))
    rate = {16: 1e-3, 8: 1e-2, 4: 0.1}[run.recipe.quantized.bits]
    losses = [evaluate(each).figures["loss"] for each in (run, before)]
    assert losses[0] == pytest.approx(losses[1], rel=rate)
    with safe_open(small / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(weights(run.model))
    again = qkv.load(small, copy=True)
    for name, tensor in weights(run.model).items():
        assert torch.equal(tensor, weights(again.model)[name])
    capsys.readouterr()
    for command in (
        ["generate", str(small), "a", "--max-new-tokens", "3"],
        ["evaluate", str(small)],
        ["info", str(small)],
    ):
        assert main(command) == 0
    assert f"{run.recipe.quantized.bits} bits" in capsys.readouterr().out
    assert main(["why", str(small)]) == 0
    assert f"weights in {run.recipe.quantized.bits} bits" in capsys.readouterr().out


def test_figures_before_and_after(straight: Path, tmp_path: Path) -> None:
    found = qkv.quantize(straight, tmp_path / "new", bits=4, batches=2)
    before, after = found.figures["before"], found.figures["after"]
    assert before["loss"] == pytest.approx(evaluate(qkv.load(straight), batches=2).figures["loss"])
    assert after["loss"] == pytest.approx(evaluate(qkv.load(tmp_path / "new"), batches=2).figures["loss"])
    assert before["bytes"] == sum(t.nbytes for t in weights(qkv.load(straight).model).values())
    assert after["bytes"] < 0.6 * before["bytes"]
    page = (tmp_path / "new" / "report.html").read_text()
    assert all(cell in page for row in found.rows for cell in row[:3])


def test_a_text_shorter_than_the_context_is_measured_in_its_own_windows_and_this_is_said(
    straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("ab")
    assert main(["quantize", str(straight), str(tmp_path / "new"), "--data", str(tmp_path / "short.txt")]) == 0
    note = "; it is read in windows of "
    assert capsys.readouterr().out.count(note) == 1
    assert note in (tmp_path / "new" / "report.html").read_text()


def test_training_it_is_refused(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = {path: path.read_bytes() for path in small.iterdir() if path.is_file()}
    assert main(["train", str(small)]) == 2
    assert "cannot be trained" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in small.iterdir() if path.is_file()} == contents
    start = tmp_path / "start.yaml"
    start.write_text((small / "spec.yaml").read_text().split("quantized:")[0])
    assert main(["train", str(start), f"start={small}", "--out", str(tmp_path / "tuned")]) == 2
    assert "cannot be trained" in capsys.readouterr().err


def test_other_uses_are_one_sentence(
    small: Path, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, sentence in (
        (["quantize", str(small), str(tmp_path / "a")], "is already quantised"),
        (["export", str(small), "--out", str(tmp_path / "b")], "quantised"),
        (["quantize", str(straight), str(small)], "is not empty"),
        (["quantize", str(straight), str(tmp_path / "c"), "--bits", "3"], "bits"),
        (["quantize", str(straight), str(tmp_path / "c"), "--bits", "4", "--group", "20"], "multiple of 32"),
    ):
        assert main(command) == 2
        assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_edited_bits_are_noticed(straight: Path, tmp_path: Path) -> None:
    qkv.quantize(straight, tmp_path / "new", bits=8, batches=1)
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "new", other)
    spec = other / "spec.yaml"
    spec.write_text(spec.read_text().replace("bits: 8", "bits: 16").replace("quantized: {}", "quantized: {bits: 16}"))
    with pytest.raises(UserError):
        qkv.load(other)


def test_a_table_is_shared_after_loading(straight: Path, tmp_path: Path) -> None:
    model = qkv.quantize(straight, tmp_path / "new", batches=1).run.model
    tables = {id(module) for module in model.modules() if isinstance(module, QuantizedTable)}
    assert model.head.weight is model.frontend.table
    assert id(model.frontend.table) in tables
