"""Checks of a run's health, on curves, values and labels made by hand, and on a small run."""

from __future__ import annotations

import html
import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.kill_storm import ignore, small_recipe, write_text

import qkv
from qkv.cli.main import main
from qkv.data.batching.batch import Batch
from qkv.lens.health.curves import (
    check_divergence,
    check_forecast,
    check_learning,
    check_overfitting,
    check_spikes,
    check_warmup,
)
from qkv.lens.health.data_checks import WINDOW, _pieces_in, check_duplicates, check_leaks, check_padding
from qkv.lens.health.evidence import Evidence
from qkv.lens.health.forecast import forecast
from qkv.lens.health.gauge import GRADIENT, RATIO, Gauge, layers_of
from qkv.lens.health.labels import suspects
from qkv.lens.health.layers import (
    check_activations,
    check_attention,
    check_gradients,
    check_heads,
    check_still_layers,
    check_units,
    check_update_ratio,
)
from qkv.lens.health.neighbours import check_neighbours
from qkv.lens.health.probe import DEAD, ENTROPY, HEAD, LARGEST, SCORE, STREAM, key, probe
from qkv.lens.health.records import curve, newest, places, read_records
from qkv.lens.health.verdict import Verdict
from qkv.lens.record import record
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.files.overrides import override
from qkv.spec.files.yaml_io import write_spec
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import NextToken
from qkv.system.errors import UserError
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.registry import task_of_recipe
from qkv.tasks.text.next_token import NextTokenTask
from qkv.training.loop import train

RECIPE = Recipe.parse({"data": "a.txt", "model": {}, "training": {"optimizer": "adamw(lr=0.01)"}})


def evidence(losses: list[float] | None = None, **values: Any) -> Evidence:
    rows = [{"step": i + 1, "loss": loss} for i, loss in enumerate(losses or [])]
    rows += [{"step": step, "val_loss": loss} for step, loss in values.pop("validations", [])]
    return Evidence(Path("runs/my"), RECIPE, rows, **values)


def noisy(level: Callable[[int], float], steps: int = 200) -> list[float]:
    draw = random.Random(0)
    return [level(step) + draw.gauss(0, 0.02) for step in range(steps)]


def falling(step: int) -> float:
    return 1 + 3 * math.exp(-step / 30)


def severity(verdict: Verdict | None) -> str:
    assert verdict is not None
    assert (verdict.cure != "") == verdict.ill
    return verdict.severity


def test_a_run_that_learns_is_well() -> None:
    e = evidence(noisy(falling))
    checks = (check_learning, check_divergence, check_warmup, check_spikes)
    assert [severity(check(e)) for check in checks] == ["good"] * 4


def test_ill_curves() -> None:
    assert severity(check_learning(evidence(noisy(lambda step: 4.0)))) == "alarm"
    assert severity(check_divergence(evidence(noisy(lambda step: falling(step) + max(0, step - 120) / 60)))) == "alarm"
    assert severity(check_warmup(evidence(noisy(lambda step: 8.0 if 3 < step < 12 else falling(step))))) == "warning"
    first = [{"step": 1, "ratio a": 0.5}]
    assert severity(check_warmup(evidence(noisy(falling), records=first))) == "warning"
    assert severity(check_learning(evidence(noisy(lambda step: 4.0, 50)))) == "note"
    verdict = check_spikes(evidence(noisy(lambda step: falling(step) + (step == 150))))
    assert severity(verdict) == "warning"
    assert verdict is not None
    assert "in steps 151;" in verdict.sentence
    assert verdict.cure == "qkv train runs/my/spec.yaml training.spikes=skip --out runs/my-cured"


def test_overfitting_is_a_rise_of_the_validation_loss_while_the_training_loss_falls() -> None:
    losses = noisy(falling)
    rising = [(40, 2.0), (80, 1.5), (120, 1.6), (160, 1.7), (200, 1.8)]
    verdict = check_overfitting(evidence(losses, validations=rising))
    assert severity(verdict) == "warning"
    assert verdict is not None
    assert "training.steps=80" in verdict.cure
    assert severity(check_overfitting(evidence(losses, validations=rising[:3]))) == "good"  # one validation later
    assert severity(check_overfitting(evidence([2.0] * 200, validations=rising))) == "good"
    assert severity(check_overfitting(evidence(losses, validations=sorted(rising, key=lambda v: -v[1])))) == "good"


def test_the_forecast_of_a_power_law_is_its_end() -> None:
    losses = [1.5 + 4 * step**-0.5 for step in range(1, 201)]
    expected = forecast(losses, 2000)
    assert expected is not None
    assert expected.loss == pytest.approx(1.5 + 4 * 2000**-0.5, abs=0.02)
    assert expected.low <= expected.loss <= expected.high
    draw = np.random.default_rng(0)
    rough = forecast((np.array(losses) + draw.normal(0, 0.1, 200)).tolist(), 2000)
    assert rough is not None
    assert rough.low < 1.5 + 4 * 2000**-0.5 < rough.high
    assert rough.high - rough.low > expected.high - expected.low
    assert forecast(losses[:10], 2000) is None
    assert severity(check_forecast(evidence([3.0 - 0.0005 * i for i in range(4000)]))) == "note"
    assert (
        check_forecast(evidence([3.0 - 0.001 * i for i in range(2000)])) is None
    )  # a tenth is hardly over the warm-up


def records(**values: float) -> list[dict[str, float]]:
    return [{"step": step, **{name.replace("__", " "): v for name, v in values.items()}} for step in (100, 150)]


def test_update_ratios_have_limits() -> None:
    def ratio(size: float) -> str:
        return severity(check_update_ratio(evidence([1.0] * 200, records=records(ratio__a=size, ratio__b=size))))

    assert [ratio(size) for size in (1e-6, 1e-4, 1e-2, 0.5)] == ["alarm", "good", "good", "alarm"]
    high = check_update_ratio(evidence([1.0] * 200, records=records(ratio__a=0.5)))
    assert high is not None
    assert "training.optimizer.lr=0.001 " in high.cure
    assert override(RECIPE, ["training.optimizer.lr=0.001"]).training.optimizer.lr == 0.001


def test_layers_that_stand_still_and_gradients_that_vanish() -> None:
    still = check_still_layers(evidence([1.0] * 200, records=records(ratio__a=1e-3, ratio__b=1e-3, ratio__c=1e-7)))
    assert severity(still) == "warning"
    assert still is not None
    assert still.places == ("c",)
    fine = records(**{"gradient__b.0": 1e-3, "gradient__b.1": 1.0})
    gone = records(**{"gradient__b.0": 1e-9, "gradient__b.1": 1.0, "gradient__b.2": 1.0})
    assert [severity(check_gradients(evidence(records=some))) for some in (fine, gone)] == ["good", "warning"]


def test_values_inside_the_model_have_limits() -> None:
    def check(function: Callable[[Evidence], Verdict | None], **values: float) -> str:
        inside = {name.replace("__", " "): value for name, value in values.items()}
        return severity(function(evidence(inside=inside)))

    assert check(check_activations, largest__b=1e5, stream__b=1.0) == "alarm"
    assert check(check_activations, largest__b=1e3, stream__b=1.0) == "good"
    assert check(check_units, dead__b=0.6) == "warning"
    assert check(check_heads, **{"head__b 0": 0.001, "head__b 1": 1.9}) == "warning"
    assert check(check_heads, **{"head__b 0": 0.1, "head__b 1": 1.9}) == "good"
    sharp = {"entropy__b 0": 0.01, "entropy__b 1": 0.02}
    assert check(check_attention, score__b=500.0, **sharp) == "warning"
    assert check(check_attention, score__b=20.0, **sharp) == "good"
    assert check(check_attention, score__b=500.0, **{"entropy__b 0": 0.01, "entropy__b 1": 0.5}) == "good"


def test_cures_name_the_part_that_is_ill(tmp_path: Path) -> None:
    model = {"num_layers": 4, "blocks": [{"branches": ["gru", "feed_forward"]}, {"branches": ["attention(4)"]}]}
    recipe = Recipe.parse({"data": "a.txt", "model": model})
    place = "blocks.3.branches.0"
    inside = {
        key(SCORE, place): 500.0,
        key(ENTROPY, place, 0): 0.01,
        key(HEAD, place, 0): 0.0,
        key(HEAD, place, 1): 2.0,
    }
    e = Evidence(tmp_path, recipe, [], inside=inside)
    cures = [verdict.cure for check in (check_attention, check_heads) if (verdict := check(e)) is not None]
    changes = [cure.split()[3] for cure in cures]
    assert changes == ["model.blocks.1.branches.0.qk_norm=rms_norm", "model.blocks.1.branches.0.num_heads=2"]
    assert all(override(recipe, [change]) != recipe for change in changes)


def test_suspects_are_those_of_the_confident_joint() -> None:
    draw = np.random.default_rng(0)
    classes = draw.integers(0, 3, 300)
    logits = draw.normal(0, 1, (300, 3)) + 6 * np.eye(3)[classes]
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth = classes.copy()
    flipped = draw.choice(300, 30, replace=False)
    truth[flipped] = (truth[flipped] + 1) % 3
    result = suspects(chances, truth)
    means = [np.mean([chances[i, c] for i in range(300) if truth[i] == c]) for c in range(3)]
    expected = set()
    for i in range(300):
        above = [c for c in range(3) if chances[i, c] >= means[c]]
        top = max(above, key=lambda c: chances[i, c]) if above else truth[i]
        if top != truth[i] and chances[i].argmax() != truth[i]:
            expected.add(i)
    assert set(result.places) == expected
    assert len(set(flipped) & expected) >= 28
    assert result.sure == pytest.approx(0.1, abs=0.03)
    assert suspects(chances, classes).sure < 0.01


def test_pieces_of_text_are_found_anywhere() -> None:
    draw = np.random.default_rng(0)
    train_ids, other = (
        draw.integers(0, 60, 5000).astype(np.uint8),
        draw.integers(0, 60, 5 * WINDOW + 7).astype(np.uint8),
    )
    other[2 * WINDOW : 3 * WINDOW] = train_ids[1234 : 1234 + WINDOW]
    assert _pieces_in(other, train_ids) == ([2], 5)
    other[2 * WINDOW] ^= 1
    assert _pieces_in(other, train_ids) == ([], 5)


def small_model() -> Transformer:
    branches = ["attention(num_heads=2)", "feed_forward(activation=relu)"]
    spec = {"width": 16, "num_layers": 2, "context_length": 12, "blocks": [{"branches": branches}]}
    return build(Model.parse({**spec, "frontend": {"kind": "text", "vocab_size": 20}}), 0)


def batch_of(model: Transformer) -> Batch:
    ids = torch.randint(20, (3, 13), generator=torch.Generator().manual_seed(1))
    return Batch.of(ids[:, :-1], ids[:, 1:])


def test_the_probe_measures_what_a_recorder_sees() -> None:
    model = small_model()
    with torch.no_grad():
        model.get_parameter("blocks.1.branches.1.body.up.bias")[:40] = -50
        attention: Any = model.get_submodule("blocks.0.branches.0.body")
        attention.output.weight[:, :8] = 0
    batch = batch_of(model)
    figures = probe(model, NextTokenTask(NextToken()), [batch], "fp32")
    tap = record(model, batch.input, "weights", "residual_after", "scores")
    stream = tap["blocks.1.branches.1.residual_after"]
    assert figures[key(STREAM, "blocks.1.branches.1")] == pytest.approx(stream.square().mean().sqrt().item())
    assert figures[key(LARGEST, "blocks.1.branches.1")] == pytest.approx(stream.abs().max().item())
    scores = tap["blocks.0.branches.0.scores"]
    assert figures[key(SCORE, "blocks.0.branches.0")] == pytest.approx(scores[scores.isfinite()].abs().max().item())
    weights = tap["blocks.0.branches.0.weights"].double()
    shares = [
        -sum(p * math.log(p) for p in weights[b, 0, n].tolist() if p) / math.log(n + 1)
        for b in range(3)
        for n in range(3, 12)
    ]
    assert figures[key(ENTROPY, "blocks.0.branches.0", 0)] == pytest.approx(sum(shares) / len(shares), rel=1e-4)
    assert figures[key(HEAD, "blocks.0.branches.0", 0)] == 0
    assert figures[key(HEAD, "blocks.0.branches.0", 1)] == pytest.approx(2)
    assert figures[key(DEAD, "blocks.1.branches.1")] >= 40 / 64
    assert figures[key(DEAD, "blocks.0.branches.1")] < 0.3
    assert model.training


def test_a_gauge_measures_gradients_and_updates() -> None:
    model = small_model()
    names: dict[torch.Tensor, str] = {p: name for name, p in model.named_parameters()}
    gauge, batch = Gauge(model, NextTokenTask(NextToken()), names, "fp32"), batch_of(model)
    NextTokenTask(NextToken()).summed_loss(model, batch).backward()  # pyright: ignore[reportUnknownMemberType]
    gauge.begin(1, 1000, 0.0)
    gauge.gradients()
    place = "blocks.1.branches.0"
    inside = [p for p, name in names.items() if name.startswith(f"{place}.")]
    assert layers_of(model, names)[place] == inside
    gradient = math.sqrt(sum(p.grad.double().square().sum().item() for p in inside if p.grad is not None))
    before = math.sqrt(sum(p.detach().double().square().sum().item() for p in inside if p.dim() > 1))
    with gauge.updating(), torch.no_grad():
        for p in names:
            p.mul_(1.01)
    values = gauge.end([batch])
    assert values is not None
    assert values[key(GRADIENT, place)] == pytest.approx(gradient, rel=1e-5)
    assert values[key(RATIO, place)] == pytest.approx(0.01, rel=1e-3)
    assert before > 0
    assert not any(name.startswith(STREAM) for name in values)  # a pass is not affordable in the first step
    gauge.begin(2, 1000, 0.0)
    assert gauge.end([batch]) is None
    gauge.begin(500, 1000, 1e6)
    values = gauge.end([batch])
    assert values is not None
    assert key(STREAM, place) in values


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("health")
    train(small_recipe(write_text(folder / "text.txt"), 30), folder / "run", on_event=ignore)
    return folder / "run"


def test_a_run_records_its_health(run: Path) -> None:
    rows = read_records(run)
    assert rows[0]["step"] == 1
    assert places(rows, RATIO)[:2] == ["frontend", "blocks.0.branches.0"]
    assert all(value > 0 for value in newest(rows, GRADIENT).values())
    assert curve(rows, GRADIENT, "frontend")[0] == [row["step"] for row in rows]


def test_the_command_prints_verdicts_and_writes_a_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["health", str(run), "--json"])
    plain = json.loads(capsys.readouterr().out)
    severities = {entry["check"]: entry["severity"] for entry in plain["verdicts"]}
    assert {"learning", "update_ratio", "attention", "dead_units", "leaks", "padding"} <= severities.keys()
    assert code == (3 if "alarm" in severities.values() else 0)
    page = (run / "health.html").read_text()
    assert all(check in page for check in severities)
    code = main(["health", str(run), "--strict", "--no-page"])
    assert code == (3 if {"alarm", "warning"} & set(severities.values()) else 0)
    assert "severity" in capsys.readouterr().out


def test_python_returns_what_the_command_prints(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["health", str(run), "--json", "--no-page"])
    plain = json.loads(capsys.readouterr().out)
    for given in (run, str(run), qkv.load(run)):
        found = qkv.health(given)
        assert json.loads(json.dumps(found.plain())) == plain
    assert found.severity == plain["verdicts"][0]["severity"]
    sentence = html.escape(found.verdicts[0].sentence)
    assert sentence in html.escape(html.unescape(found._repr_html_()))
    assert "<html" not in found._repr_html_()
    assert found.save(tmp_path / "page.html").read_text() == found.page()
    with pytest.raises(UserError, match=r"no\.txt|there is no"):
        qkv.health(tmp_path / "no.txt")


def test_an_older_run_has_verdicts_on_its_curves(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records_of_run = run / "health.jsonl"
    content = records_of_run.read_bytes()
    records_of_run.unlink()
    try:
        main(["health", str(run), "--json", "--no-page"])
    finally:
        records_of_run.write_bytes(content)
    checks = {entry["check"] for entry in json.loads(capsys.readouterr().out)["verdicts"]}
    assert "learning" in checks
    assert "attention" in checks  # measured on held-out rows
    assert "update_ratio" not in checks


def test_a_run_that_ended_before_its_first_step_is_not_well(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = shutil.copytree(run, tmp_path / "ended")
    (ended / "metrics.jsonl").write_text("")
    (ended / "health.jsonl").write_text("")
    assert main(["health", str(ended), "--no-page", "--json"]) == 3
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert [verdict["check"] for verdict in verdicts if verdict["severity"] == "alarm"] == ["steps"]
    assert "no step was recorded" in verdicts[0]["sentence"]


def test_a_folder_that_is_no_run_gets_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_a_cure_is_a_command_that_trains(run: Path, tmp_path: Path) -> None:
    cure = Evidence(run, RECIPE, []).cure("training.steps=2", "training.optimizer.lr=0.01")
    command = cure.split()
    assert command[:2] == ["qkv", "train"]
    assert command[-1] == f"{run}-cured"
    assert main([*command[1:-1], str(tmp_path / "cured")]) == 0
    assert (tmp_path / "cured" / "model.safetensors").exists()


def test_a_run_is_compared_with_others_of_its_recipe(tmp_path: Path) -> None:
    def write(name: str, loss: float, recipe: Recipe = RECIPE) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        write_spec(folder / "spec.yaml", recipe)
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "val_loss": loss}) + "\n")
        return folder

    for seed, loss in enumerate((1.0, 1.02, 0.98)):
        write(f"seed-{seed}", loss, override(RECIPE, [f"training.seed={seed}"]))
    write("other", 0.1, override(RECIPE, ["training.batch_size=3"]))
    well, ill = (check_neighbours(Evidence(write(name, loss), RECIPE, [])) for name, loss in (("a", 1.03), ("b", 1.2)))
    assert severity(well) == "good"
    assert severity(ill) == "warning"
    assert ill is not None
    assert "other" not in ill.sentence
    assert check_neighbours(Evidence(write("c", 1.0), override(RECIPE, ["training.batch_size=5"]), [])) is None


def test_rows_that_repeat_leak_or_are_padded(tmp_path: Path) -> None:
    draw = random.Random(0)
    lines = [" ".join(draw.choices("abcdefghijklmnop", k=6)) for _ in range(80)]
    lines[7] = " ".join([lines[7]] * 10)
    files = {"source": lines + lines[:10], "validation": lines[10:12] + [f"x {line}" for line in lines[:38]]}
    for name, some in files.items():
        (tmp_path / f"{name}.csv").write_text(
            "text,label\n" + "".join(f"{line},{'yn'[i % 2]}\n" for i, line in enumerate(some))
        )
    data = {name: str(tmp_path / f"{name}.csv") for name in files} | {"tokenizer": "words"}
    model = {"width": 16, "context_length": 80, "head": "classification"}
    blocks = [{"branches": ["attention(num_heads=2, mask=full)"]}]
    training = {"batch_size": 6, "steps": 2}
    recipe = Recipe.parse(
        {"data": data, "task": "classification", "model": {**model, "blocks": blocks}, "training": training}
    )
    task = task_of_recipe(recipe)
    dataset = task.open(recipe)
    e = Evidence(tmp_path / "run", recipe, [], task=task, dataset=dataset)
    repeated, leaked, padded = check_duplicates(e), check_leaks(e), check_padding(e)
    assert (severity(repeated), severity(leaked)) == ("warning", "alarm")
    assert repeated is not None
    assert leaked is not None
    assert padded is not None
    assert repeated.value == pytest.approx(10 / 90)
    assert repeated.places[:2] == ("81", "82")
    assert (leaked.value, leaked.places) == (pytest.approx(2 / 40), ("1", "2"))
    assert isinstance(dataset, ExampleDataset)
    assert padded.value == pytest.approx(dataset.padding())
    numbers = dataset.row_numbers(3)
    assert torch.equal(dataset.batch_of(numbers).targets, dataset.batch(3).targets)
    assert sorted(dataset.order("validation")) == list(range(40))
