"""Runs with a wide path: fitted before training, joined after it, never worse than the wide path on validation."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from tests.training.kill_storm import ignore

from qkv.choosing.automatic_task import automatic_task
from qkv.data.batching.batch import Batch
from qkv.models.wide import Ngrams
from qkv.runs.evaluation import evaluate
from qkv.runs.inference.predict import predict, rows_for
from qkv.runs.quantize import quantize
from qkv.runs.storage.checkpoint import weights
from qkv.runs.storage.files import read_metadata
from qkv.runs.storage.load import load
from qkv.spec.recipe import Recipe
from qkv.tasks.baselines.linear import scales
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.registry import build_task
from qkv.training.interrupt import Interrupted
from qkv.training.loop import train
from qkv.training.race.contestants import Contestant, ranked
from qkv.training.watch.events import Event, Stepped
from qkv.training.wide import fit as wide_module
from qkv.training.wide.fit import DEEP, WIDE, _shares

GOOD, BAD = ["fine", "lovely", "bright", "funny"], ["dull", "awful", "grey", "slow"]


def table_of(path: Path, rows: int, numbers: bool) -> Path:
    """Texts whose label or number follows from their words."""
    draw = random.Random(0)
    lines = []
    for _ in range(rows):
        good = draw.random() < 0.5
        words = [*draw.choices(GOOD if good else BAD, k=2), *draw.choices(["film", "plot", "the", "a", "and"], k=4)]
        draw.shuffle(words)
        target = sum(word in GOOD for word in words) + 0.1 * draw.random() if numbers else "up" if good else "down"
        lines.append(json.dumps({"text": " ".join(words), "value" if numbers else "label": target}))
    path.write_text("\n".join(lines))
    return path


def recipe_of(folder: Path, numbers: bool = False, **changes: Any) -> Recipe:
    task = "regression" if numbers else "classification"
    return Recipe.parse(
        {
            "data": {"source": str(table_of(folder / "table.jsonl", 60, numbers)), "tokenizer": "word_list"},
            "task": {"kind": task, **changes},
            "model": {
                "width": 8,
                "context_length": 12,
                "blocks": [{"branches": ["attention(2, mask=full)"]}],
                "head": task,
            },
            "wide": {"kind": "ngrams", "buckets": 256},
            "training": {"steps": 4, "batch_size": 8, "validation": {"every": 2, "best": "loss"}},
        }
    )


@pytest.mark.parametrize("numbers", [False, True])
def test_a_run_keeps_the_best_contestant(tmp_path: Path, numbers: bool) -> None:
    run = train(recipe_of(tmp_path, numbers), tmp_path / "run", on_event=ignore)
    assert run.evaluation is not None
    validation = run.evaluation["splits"]["validation"]
    table = next(section for section in validation["sections"] if section["title"] == "Contestants")
    losses = {row[0]: float(row[3]) for row in table["rows"]}
    assert set(losses) == {"n-grams", "attention", "attention, n-grams"}
    expected = [float(row[table["columns"].index("cross-validated loss")]) for row in table["rows"]]  # of few rows
    assert expected[0] == pytest.approx(min(expected), rel=1e-3)
    assert math.isclose(validation["figures"]["loss"], next(iter(losses.values())), rel_tol=1e-3)
    assert losses["n-grams"] < losses["attention"]  # four steps teach nothing
    loaded = load(tmp_path / "run")
    assert evaluate(loaded, "validation").figures["loss"] == pytest.approx(validation["figures"]["loss"])
    (answer,) = predict(loaded, rows_for(loaded, ["a lovely and bright film"]))
    assert answer["value"] > 1 if numbers else answer["answer"] == "up"
    assert "answer" in predict(loaded, rows_for(loaded, [""]))[0]  # a text without n-grams


def test_the_wide_path_is_that_of_the_library_over_the_same_features(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    run = train(recipe, tmp_path / "run", on_event=ignore)
    dataset = build_task(recipe.task).open(run.recipe, run.vocabulary)
    assert isinstance(dataset, ExampleDataset)
    assert run.wide is not None
    (train_x, train_y), (x, _) = (features(run.wide, dataset, split) for split in ("train", "validation"))
    sides = [scales(train_x, train_y[:, None] == np.unique(train_y), power) for power in (0, 0.5, 1)]
    fits = [
        LogisticRegression(C=1 / penalty, max_iter=3000, tol=1e-8).fit(train_x * side, train_y).predict_proba(x * side)
        for penalty in (1, 0.25, 0.06)
        for side in sides
    ]
    with torch.no_grad():
        logits = torch.tensor(x) @ run.wide.table + run.wide.bias
    found = logits.softmax(-1).numpy()
    assert min(np.abs(found - fit).max() for fit in fits) < 2e-2


def features(wide: Any, dataset: ExampleDataset, split: str) -> tuple[np.ndarray, np.ndarray]:
    rows = dataset.examples[split]
    found = np.zeros((len(rows), len(wide.table)), np.float32)
    for i, example in enumerate(rows):
        ids, counts = example.fields.bag
        found[i, ids] = wide.weights(torch.tensor(ids)[None], torch.tensor(counts)[None])[0].numpy()
    return found, np.array([example.fields.truth for example in rows])


def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path).changed()
    recipe = recipe.changed(training=recipe.training.changed(checkpoints=recipe.training.checkpoints.changed(every=1)))
    whole = train(recipe, tmp_path / "whole", on_event=ignore)

    def stop(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            raise Interrupted(15, "stopped")

    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "killed", on_event=stop)
    killed = train(recipe, tmp_path / "killed", on_event=ignore)
    for name, tensor in weights(whole.model, whole.wide).items():
        assert torch.equal(tensor, weights(killed.model, killed.wide)[name]), name


def test_outputs_of_a_long_text_are_the_mean_of_its_windows(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, windows=3)
    recipe = recipe.changed(model=recipe.model.changed(context_length=5))
    run = train(recipe, tmp_path / "run", on_event=ignore)
    task = build_task(run.recipe.task)
    dataset = task.open(run.recipe, run.vocabulary)
    assert run.wide is not None
    run.wide.set_share(1.0, 0.0)
    batch = next(dataset.rows("validation"))
    with torch.no_grad():
        found = task.observe(run.model, batch)
        each = [run.model(window[None])[0][0] for window in unpadded(batch.input)]
    rows = batch.extras["rows"].tolist()
    assert max(rows.count(row) for row in set(rows)) == 2  # 6 words in windows of 4, which overlap by none
    means = torch.stack(
        [
            torch.stack([y for y, r in zip(each, rows, strict=True) if r == row]).mean(0)
            for row in range(len(batch.targets))
        ]
    )
    assert [guess for _, guess in found.outcomes] == means.argmax(-1).tolist()
    torch.testing.assert_close(found.loss, torch.nn.functional.cross_entropy(means, batch.targets, reduction="sum"))


def unpadded(signal: Any) -> list[torch.Tensor]:
    lengths = [signal.values.shape[1]] * len(signal.values) if signal.lengths is None else signal.lengths.tolist()
    return [row[:length] for row, length in zip(signal.values, lengths, strict=True)]


def test_a_start_gives_its_stack_and_the_wide_path_is_fitted_to_the_new_rows(tmp_path: Path) -> None:
    train(recipe_of(tmp_path), tmp_path / "first", on_event=ignore)
    data = {"source": str(table_of(tmp_path / "numbers.jsonl", 60, numbers=True))}
    changes = ["training.steps=3", "training.minutes=null", "training.batch_size=8", "wide=ngrams"]
    recipe = automatic_task("regression", data, changes, start=str(tmp_path / "first"))
    run = train(recipe, tmp_path / "second", on_event=ignore)
    assert run.wide is not None
    assert run.wide.table.shape[1] == 1
    assert run.evaluation is not None
    figures = run.evaluation["splits"]["validation"]["figures"]
    assert figures["rmse"] < 0.7 * figures["rmse_of_mean"]


def test_a_task_without_pooling_starts_from_a_run_with_a_wide_path(tmp_path: Path) -> None:
    train(recipe_of(tmp_path), tmp_path / "first", on_event=ignore)
    rows = [{"words": ["a", "fine", "film"], "tags": ["O", "B-X", "O"]}] * 20
    table = tmp_path / "tags.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    changes = ["training.steps=2", "training.minutes=null", "training.batch_size=8"]
    recipe = automatic_task("token_classification", {"source": str(table)}, changes, start=str(tmp_path / "first"))
    assert recipe.wide is None
    assert train(recipe, tmp_path / "second", on_event=ignore).wide is None


@pytest.mark.parametrize(
    ("accuracies", "baseline", "first"),
    [
        ((80.0, 70.0, 79.0), 78.0, "joined"),  # below the wide path, not below the baseline: the loss decides
        ((80.0, 70.0, 79.0), 80.0, "wide"),
        ((80.0, 70.0, 79.0), None, "wide"),  # without a baseline, the wide path is one
        ((80.0, 70.0, 81.0), 82.0, "joined"),  # all are worse: the best metric
        ((80.0, 81.0, 79.0), 82.0, "deep"),
    ],
)
def test_the_least_loss_wins_among_those_that_reach_the_baseline(
    accuracies: tuple[float, ...], baseline: float | None, first: str
) -> None:
    losses = {"wide": 0.5, "deep": 0.6, "joined": 0.4}
    contestants = [
        Contestant(name, 1.0, 1.0, {"loss": loss, "accuracy": accuracy, "rmse": -accuracy})
        for (name, loss), accuracy in zip(losses.items(), accuracies, strict=True)
    ]
    assert ranked(contestants, "accuracy", baseline)[0].name == first
    assert ranked(contestants, "rmse", None if baseline is None else -baseline)[0].name == first


def test_factors_of_few_rows_are_fitted_only_where_that_holds_on_other_rows() -> None:
    class Stub:
        class head:
            @staticmethod
            def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
                return torch.nn.functional.cross_entropy(outputs, targets, reduction="sum")

    draw = torch.Generator().manual_seed(0)
    truth = torch.randint(2, (600,), generator=draw)
    signs = 2.0 * torch.nn.functional.one_hot(truth).double() - 1
    deep, wide = (signs + 1.5 * torch.randn(600, 2, generator=draw, dtype=torch.float64) for _ in range(2))
    lucky = signs[:10] * torch.rand(10, 1, generator=draw, dtype=torch.float64)  # correct for these ten rows
    lucky[3] = -lucky[3]
    stub: Any = Stub()
    (a, b), expected = _shares(stub, lucky, lucky, truth[:10], (DEEP, WIDE))
    assert (a, b) == (0.5, 0.5)
    plain = torch.nn.functional.cross_entropy(lucky, truth[:10])
    assert expected == pytest.approx(float(plain))
    (a, b), expected = _shares(stub, 0.1 * deep[:400], wide[:400], truth[:400], (DEEP, WIDE))
    assert a > 3 * b  # the first is too small, and enough rows tell it
    fitted = torch.nn.functional.cross_entropy(0.1 * a * deep[:400] + b * wide[:400], truth[:400])
    assert expected is not None
    assert 0 < expected - float(fitted) < 0.02
    assert _shares(stub, deep, wide, truth, (DEEP, WIDE))[1] is None


def test_equal_losses_go_to_the_cheaper_model() -> None:
    losses = {"wide": 1.1824, "deep": 1.7, "joined": 1.1822}
    contestants = [Contestant(name, 1.0, 1.0, {"loss": loss}) for name, loss in losses.items()]
    assert [each.name for each in ranked(contestants, "loss", None)] == ["wide", "joined", "deep"]


def test_contestants_are_compared_on_as_many_batches_as_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [Batch.of(torch.full((2, 5), i), torch.tensor([0, 1])) for i in range(20)]

    def kept(memory: int | None) -> list[int]:
        monkeypatch.setattr(wide_module, "usable_memory", lambda: memory)
        return [int(batch.input.values[0, 0]) for batch in wide_module._subset_in_memory(iter(batches), 3)]

    each = 2 * 5 * 8 + 3 * 8 * 3 * 2
    assert kept(None) == kept(4 * 20 * each) == list(range(20))
    assert kept(4 * 19 * each) == list(range(0, 20, 2))
    assert kept(4 * 6 * each) == list(range(0, 20, 4))
    assert kept(0) == [0]


def test_a_wide_path_in_use_learns_the_validation_rows_after_choice_calibration_and_evaluation(tmp_path: Path) -> None:
    run = train(recipe_of(tmp_path), tmp_path / "run", on_event=ignore)
    dataset = build_task(run.recipe.task).open(run.recipe, run.vocabulary)
    assert isinstance(dataset, ExampleDataset)
    assert run.wide is not None
    assert run.wide.reads(WIDE)
    rows = [*dataset.examples["train"], *dataset.examples["validation"]]
    occurring = np.zeros(len(run.wide.table))
    for example in rows:
        occurring[example.fields.bag.ids] += 1
    assert isinstance(run.wide, Ngrams)
    np.testing.assert_allclose(run.wide.idf.numpy(), np.log((1 + len(rows)) / (1 + occurring)) + 1, rtol=1e-6)
    (some, labels), (others, truth) = (features(run.wide, dataset, split) for split in ("train", "validation"))
    x, y = np.concatenate((some, others)), np.concatenate((labels, truth))
    sides = [scales(x, y[:, None] == np.unique(y), power) for power in (0, 0.5, 1)]
    with torch.no_grad():
        found = (torch.tensor(x) @ run.wide.table + run.wide.bias).softmax(-1).numpy()
    fits = [
        LogisticRegression(C=1 / penalty, max_iter=3000, tol=1e-8).fit(x * side, y).predict_proba(x * side)
        for penalty in (1, 0.25, 0.06)
        for side in sides
    ]
    assert min(np.abs(found - fit).max() for fit in fits) < 4e-2
    before = load_file(tmp_path / "run" / "before_refit.safetensors")["table"]
    assert not torch.allclose(before, run.wide.table)
    assert run.evaluation is not None
    assert any("fitted to the training rows only" in note for note in run.evaluation["splits"]["validation"]["notes"])
    table = run.wide.table.clone()
    assert any("fitted to the training rows only" in note for note in evaluate(run, "validation").notes)
    assert torch.equal(table, run.wide.table)  # the run's own path is back


def test_a_wide_path_fitted_again_answers_in_the_unit_of_the_values(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, numbers=True)
    rows = [json.loads(line) for line in (tmp_path / "table.jsonl").read_text().splitlines()]
    scaled = [{**row, "value": 1000 + 50 * row["value"]} for row in rows]
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, scaled)))
    train(recipe, tmp_path / "run", on_event=ignore)
    loaded = load(tmp_path / "run")
    answers = [answer["value"] for answer in predict(loaded, rows_for(loaded, [row["text"] for row in rows]))]
    values = np.array([row["value"] for row in scaled])
    assert np.abs(np.array(answers) - values).mean() < 0.5 * values.std()


def test_a_run_that_was_killed_after_the_last_fit_is_evaluated_as_one_that_was_not(tmp_path: Path) -> None:
    whole = train(recipe_of(tmp_path), tmp_path / "run", on_event=ignore)
    assert whole.evaluation is not None
    (tmp_path / "run" / "evaluation.json").unlink()
    again = train(recipe_of(tmp_path), tmp_path / "run", on_event=ignore)
    assert again.evaluation is not None
    for split, found in whole.evaluation["splits"].items():
        own = again.evaluation["splits"][split]["figures"]
        assert {k: v for k, v in own.items() if k != "seconds"} == {
            k: v for k, v in found["figures"].items() if k != "seconds"
        }
    assert all(map(torch.equal, weights(whole.model, whole.wide).values(), weights(again.model, again.wide).values()))


def test_a_run_of_format_2_opens_and_goes_on_with_the_same_predictions(tmp_path: Path) -> None:
    """Its spec has the wide path in the model; its weights and their record of the recipe are as now."""
    run = train(recipe_of(tmp_path), tmp_path / "run", on_event=ignore)
    spec = yaml.safe_load((tmp_path / "run" / "spec.yaml").read_text())
    spec["model"]["wide"], spec["format"] = spec.pop("wide"), 2
    (tmp_path / "run" / "spec.yaml").write_text(yaml.safe_dump(spec))
    assert run.wide is not None
    assert read_metadata(tmp_path / "run" / "model.safetensors")["made_with"]["recipe"]["model"]["wide"]
    former = load(tmp_path / "run")
    assert former.recipe == run.recipe
    rows = rows_for(run, ["a lovely and bright film"])
    assert predict(former, rows) == predict(run, rows)
    recipe = run.recipe.changed(training=run.recipe.training.changed(steps=6))
    assert train(recipe, tmp_path / "run", on_event=ignore).step >= 0
    assert load(tmp_path / "run").recipe.wide == run.recipe.wide


def test_a_run_is_quantised_with_its_wide_path(tmp_path: Path) -> None:
    run = train(recipe_of(tmp_path), tmp_path / "run", on_event=ignore)
    found = quantize(run, tmp_path / "small").run
    assert run.wide is not None
    assert found.wide is not None
    assert all(map(torch.equal, run.wide.state_dict().values(), found.wide.state_dict().values()))
