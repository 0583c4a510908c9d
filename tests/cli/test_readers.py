"""``qkv evaluate``, ``qkv info``, ``qkv why`` and ``qkv demo``."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.ops.clock import inject_times, new_table

from qkv.interop.files import safetensors_file
from qkv.ops.selection.choices_cache import choices_file
from qkv.spec.files.yaml_io import read_recipe


def test_evaluate_prints_a_table_or_json(qkv: Call, run: Path) -> None:
    table = qkv("evaluate", run)
    assert table.code == 0
    assert "bits per character" in table.out
    figures = json.loads(qkv("evaluate", run, "--json").out)
    assert figures["split"] == "validation"
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert f"{figures['loss']:.3f}" in table.out
    fewer = json.loads(qkv("evaluate", run, "--json", "--batches", 1).out)
    assert fewer["targets"] < figures["targets"]


def test_evaluate_measures_the_split_that_is_named(qkv: Call, run: Path) -> None:
    tokens = [
        json.loads(qkv("evaluate", run, "--json", "--split", split).out)["targets"] for split in ("train", "validation")
    ]
    assert tokens[0] == pytest.approx(9 * tokens[1], rel=0.05)


def test_evaluate_measures_on_other_data(qkv: Call, run: Path, folder: Path) -> None:
    recipe = read_recipe(run)
    text = (folder / recipe.data.source).read_text()
    other = folder / "reversed.txt"
    other.write_text(text[::-1])
    loss, changed = (json.loads(qkv("evaluate", run, *args, "--json").out)["loss"] for args in ([], ["--data", other]))
    assert changed > loss
    assert read_recipe(run) == recipe


def test_copy_maps_no_file_of_a_run(qkv: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(safetensors_file, "mapped", asked.append)
    commands: list[tuple[object, ...]] = [
        ("evaluate", run, "--batches", 1),
        ("export", run, "--no-check", "--out", tmp_path / "exported"),
        ("swap", run, "blocks.0.mixer=gru", "--heal", 0, "--out", tmp_path / "swapped"),
        ("generate", run, "the", "--max-new-tokens", 1),
        ("embed", run, "the"),
    ]
    for command in commands:
        said = qkv(*command, "--copy")
        assert said.code == 0, said.err
    assert not asked
    assert qkv(*commands[0]).code == 0
    assert asked == [run / "model.safetensors"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["model.width=8"],
            "override 'model.width=8': model.width describes the training; an evaluation can change sample.…",
        ),
        (["sample.num_beam=8"], "did you mean 'num_beams'?"),
        (["--split", "valid"], "--split: there is no split 'valid'; allowed: test, train, validation"),
        (["data.source=other.txt"], "to evaluate on another file give --data FILE"),
        (["--data", "other.txt", "--split", "test"], "use only one of them"),
        (["--data", "nowhere.txt"], "there is no file 'nowhere.txt'"),
        (["--batches", "0"], "--batches: 0 given, but it should be at least 1"),
    ],
)
def test_evaluate_refuses(qkv: Call, run: Path, args: list[str], sentence: str) -> None:
    said = qkv("evaluate", run, *args)
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err


def test_info_shows_the_installation(qkv: Call, cache_folder: Path) -> None:
    said = qkv("info")
    assert said.code == 0
    for words in ("qkv", "Python", "torch", "threads", "QKV_DATA", str(cache_folder), "python-docs", "multi30k-en-de"):
        assert words in said.out


def test_info_shows_a_run(qkv: Call, run: Path) -> None:
    said = qkv("info", run)
    assert said.code == 0
    for words in (
        "tiny",
        "characters",
        "1 layer of width 16: attention + feed_forward",
        "6 of 6",
        "best validation loss",
        "model.safetensors",
        "spec.yaml",
    ):
        assert words in said.out
    assert qkv("info", run / "x").code == 2


def test_info_lists_what_stays_while_files_come_and_go(
    qkv: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "resume" / ".step-00000009.partial").mkdir()
    gone, going = copy / "resume" / ".step-00000009.partial" / "weights.safetensors", copy / ".report.html.partial"
    for path in (gone, going):
        path.write_bytes(b"half")
    real = os.stat

    def stat(path: str | Path, *args: object, **options: object) -> object:
        if str(path) == str(gone):
            gone.unlink(missing_ok=True)
        found = real(path, *args, **options)  # type: ignore[arg-type]
        if str(path) == str(going):  # there when it is listed, and no longer when it is looked at
            going.unlink()
        return found

    monkeypatch.setattr(os, "stat", stat)
    said = qkv("info", copy)
    assert (said.code, said.err) == (0, "")
    assert "model.safetensors" in said.out
    assert "step-00000009" not in said.out


def test_info_says_what_was_edited_and_accept_takes_it(qkv: Call, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    assert "changed since" not in qkv("info", copy).out
    assert qkv("accept", copy).out == f"nothing in {copy} has changed since its weights were stored\n"
    (copy / "spec.yaml").write_text((copy / "spec.yaml").read_text().replace("order: pre", "order: post"))
    assert 'model.blocks.0.order is "post"' in qkv("info", copy).out
    for command in (("evaluate", copy), ("generate", copy, "the"), ("export", copy, "--out", tmp_path / "out")):
        said = qkv(*command)
        assert (said.code, said.out) == (2, "")
        assert f"restore it, or accept the change with 'qkv accept {copy}'" in said.err
    assert (
        'model.blocks.0.order is "post", but the weights were trained with the default: accepted'
        in qkv("accept", copy).out
    )
    assert qkv("evaluate", copy).code == 0


def test_why_names_each_operation_that_the_model_uses(qkv: Call, folder: Path) -> None:
    model = [
        "model.frontend.vocab_size=30",
        "model.width=128",
        "model.blocks.0.branches=[attention, gru, feed_forward]",
    ]
    said = qkv("why", folder / "tiny.yaml", *model)
    assert said.code == 0
    rows = {line.split()[0] for line in said.out.splitlines()[3:] if line}
    assert {"attention", "gru", "linear"} <= rows


def test_why_keeps_what_it_measured_and_measures_anew_when_asked(
    qkv: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    ask, races = ["why", folder / "tiny.yaml", "model.frontend.vocab_size=30", "training.precision=bf16"], []
    for more in ([], [], ["--fresh"]):
        new_table(monkeypatch)
        races.append(inject_times(monkeypatch, lambda name: 100.0 if name == "bf16" else 1.0))
        said = qkv(*ask, *more)
        assert "precision" in said.out
        assert "100.00 ×" in said.out
        assert f"measured choices are cached in {choices_file()}; --fresh measures again" in said.out
    assert ["fp32", "bf16"] in races[0]
    assert races[1] == []
    assert ["fp32", "bf16"] in races[2]


def test_why_says_in_which_precision_muon_multiplies(qkv: Call, folder: Path) -> None:
    said = qkv("why", folder / "tiny.yaml", "model.frontend.vocab_size=30", "training.optimizer=muon")
    assert said.code == 0
    rows = [line for line in said.out.splitlines() if line.startswith("orthogonal")]
    assert rows
    assert all("fp32 " in row and "bf16 " in row for row in rows)


@pytest.mark.parametrize(
    ("part", "case", "sentence"),
    [
        ("attention(top_k=4)", "top k", "the k largest of all visible scores are selected"),
        ("attention(relative=t5)", "added scores", "gradients of the added term need all scores"),
        ("attention(relative='shaw(values=true)')", "relative values", "relative values need the attention weights"),
    ],
)
def test_why_says_what_a_part_of_attention_changes(
    qkv: Call, folder: Path, part: str, case: str, sentence: str
) -> None:
    said = qkv("why", folder / "tiny.yaml", "model.frontend.vocab_size=30", f'model.blocks.0.branches=["{part}"]')
    assert said.code == 0
    assert case in said.out
    assert sentence in " ".join(said.out.split())


def test_why_refuses_what_is_too_large_to_try(qkv: Call, folder: Path) -> None:
    said = qkv("why", folder / "tiny.yaml", "model.width=16384")
    assert (said.code, said.out) == (2, "")
    assert "too many to run here; reduce model.width" in said.err


def test_the_demo_trains_without_a_download_and_writes(qkv: Call, tmp_path: Path) -> None:
    small = [
        "data.tokenizer=bytes",
        "model.width=16",
        "model.num_layers=1",
        "model.blocks.mixer.num_heads=1",
        "training.steps=2",
    ]
    small += ["training.validation.batches=1", "sample.max_new_tokens=20"]
    said = qkv("demo", "--out", tmp_path / "demo", *small)
    assert said.code == 0
    assert "report: " in said.out
    assert "Generated text:" in said.out


def test_the_demo_has_four_layers() -> None:
    recipe = read_recipe(Path(__file__).resolve().parents[2] / "src" / "qkv" / "cli" / "demo.yaml")
    assert (len(recipe.model.layers), recipe.data.source) == (4, "python-docs")
