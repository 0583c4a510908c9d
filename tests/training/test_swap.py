"""Another part in a trained model: the figures are those of the models themselves, and the folder is a run."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path

import pytest
import torch
from tests.training.kill_storm import ignore

import qkv
from qkv.interop.save import save_published
from qkv.runs.evaluation import evaluate
from qkv.runs.run import Run
from qkv.runs.storage.checkpoint import CheckpointStore
from qkv.runs.storage.load import load
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.training.interrupt import Interrupted
from qkv.training.loop import train
from qkv.training.swap import AFTER, BEFORE, HEALED, Swapped, swap
from qkv.training.watch.events import Event, Notice, Stepped
from qkv.training.watch.sections import SECTIONS, read_sections, write_sections

LINEAR = ["blocks.*.mixer=linear_attention"]


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    model = {
        "width": 16,
        "num_layers": 2,
        "context_length": 16,
        "frontend": {"kind": "text", "positions": "none"},
        "blocks": [{"branches": ["attention(2, relative=rope)", "feed_forward(32)"]}],
    }
    training = {"steps": 30, "batch_size": 4, "optimizer": "adamw(lr=0.02)", "validation": {"every": 15, "batches": 3}}
    recipe = Recipe.parse(
        {"data": str(text), "model": model, "training": training, "sample": {"max_new_tokens": 4, "seed": 1}}
    )
    return train(recipe, tmp_path_factory.mktemp("runs") / "trained", on_event=ignore)


@pytest.fixture(scope="module")
def healed(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Swapped, list[Event]]:
    events: list[Event] = []
    return swap(
        trained.folder, LINEAR, tmp_path_factory.mktemp("swapped") / "run", heal=10, on_event=events.append
    ), events


def test_the_figures_are_those_of_the_models(trained: Run, healed: tuple[Swapped, list[Event]]) -> None:
    found = healed[0]
    batches = trained.recipe.training.validation.batches
    assert list(found.figures) == [BEFORE, AFTER, HEALED]
    assert found.figures[BEFORE]["loss"] == pytest.approx(evaluate(trained, batches=batches).figures["loss"], rel=1e-6)
    assert found.figures[HEALED]["loss"] == pytest.approx(
        evaluate(found.run, batches=batches).figures["loss"], rel=1e-6
    )
    assert found.figures[BEFORE]["loss"] < found.figures[AFTER]["loss"]
    assert found.figures[HEALED]["loss"] < found.figures[AFTER]["loss"]
    assert found.figures[AFTER]["perplexity"] == pytest.approx(math.exp(found.figures[AFTER]["loss"]))


def test_speed_state_and_length_are_told_of_both(trained: Run, healed: tuple[Swapped, list[Event]]) -> None:
    before, after = (healed[0].figures[moment] for moment in (BEFORE, AFTER))
    assert min(before["reading"], before["decoding"], after["reading"], after["decoding"]) > 0
    assert (before["state"], after["state"]) == (trained.model.state_bytes(16), healed[0].run.model.state_bytes(16))
    assert after["longest"] == math.inf
    assert before["longest"] == (healed[0].memory - 4 * before["parameters"]) // (2 * 2 * 16 * 4)
    assert healed[0].rows[-1][0].startswith("longest row in")
    assert healed[0].rows[-1][2:] == ["any", ""]


def test_it_says_what_was_kept_and_shows_the_training(healed: tuple[Swapped, list[Event]]) -> None:
    found, events = healed
    said = [event.text for event in events if isinstance(event, Notice)]
    assert found.kept == 1
    assert any(text.endswith("parameters keep their weights (100.0%)") for text in said)
    assert len([event for event in events if isinstance(event, Stepped)]) == 10


def test_the_folder_is_a_run_whose_report_holds_the_table(healed: tuple[Swapped, list[Event]], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(healed[0].run.folder, folder)
    assert qkv.read_recipe(folder).model.layers[1].branches[0].kind == "linear_attention"
    page = (folder / "report.html").read_text()
    assert "Effect of the swap" in page
    assert "longest row in" in page
    run = qkv.train(folder, overrides=["training.steps=13"], on_event=ignore)
    assert max(row["step"] for row in run.metrics) == 13
    assert "Effect of the swap" in (folder / "report.html").read_text()


def test_without_healing_the_run_stands_before_its_first_step(trained: Run, tmp_path: Path) -> None:
    found = swap(trained, ["blocks.1.mixer.num_kv_heads=1"], tmp_path / "run", heal=0, on_event=ignore)
    assert list(found.figures) == [BEFORE, AFTER]
    assert found.run.step == 0
    name = "blocks.1.branches.0.body.qkv.weight"
    old, new = trained.model.state_dict()[name], found.run.model.state_dict()[name]
    torch.testing.assert_close(new[16:24], (old[16:24] + old[24:32]) / 2)
    checkpoint = CheckpointStore(tmp_path / "run" / "resume").load(ignore)  # type: ignore[arg-type]
    assert checkpoint is not None
    assert torch.equal(checkpoint.tensors["weights"][name], new)
    run = qkv.train(tmp_path / "run", overrides=["training.steps=1", "training.validation.every=1"], on_event=ignore)
    assert run.metrics[-1]["step"] == 1
    assert (
        run.model.state_dict()[name] - new
    ).abs().max() < 0.1  # one step from the weights that were swapped, not from random ones


def test_a_swapped_training_goes_on_as_if_it_had_not_stopped(trained: Run, tmp_path: Path) -> None:
    whole = swap(trained, LINEAR, tmp_path / "whole", heal=6, on_event=ignore)
    half = swap(trained, LINEAR, tmp_path / "half", heal=0, on_event=ignore)
    changed = ["training.validation.every=1", "training.steps=6"]
    gone = qkv.train(half.run.folder, overrides=changed, on_event=ignore)
    losses = [[row["loss"] for row in run.metrics if "loss" in row] for run in (whole.run, gone)]
    assert len(losses[0]) == len(losses[1]) == 6
    # The warm-up is a tenth of the steps that were asked for, so only data and first loss are the same.
    assert losses[0][0] == losses[1][0]


def test_a_stop_while_healing_leaves_a_run_that_goes_on(trained: Run, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"'qkv train .*' resumes it"):
        swap(trained, LINEAR, tmp_path / "run", heal=6, on_event=stop)
    assert load(tmp_path / "run").recipe.training.steps == 6
    assert read_sections(tmp_path / "run")[0]["columns"] == ["figure", BEFORE, AFTER]
    run = qkv.train(tmp_path / "run", on_event=ignore)
    assert max(row["step"] for row in run.metrics) == 6


def test_a_published_checkpoint_is_healed_on_a_text_that_is_given(trained: Run, text: Path, tmp_path: Path) -> None:
    rotary = trained.model.spec.changed(
        blocks=(
            {"branches": ["attention(2, bias=false, relative=rope)", "gated_feed_forward(32)"], "norm": "rms_norm"},
        ),
        norm="rms_norm",
    )
    save_published(qkv.build(rotary, 3), tmp_path / "hf", trained.tokenizer)
    with pytest.raises(UserError, match="does not record its training data; give --data"):
        swap(tmp_path / "hf", LINEAR, tmp_path / "run", on_event=ignore)
    small = ["training.batch_size=2", "training.validation.batches=1"]
    found = swap(tmp_path / "hf", [*LINEAR, *small], tmp_path / "run", heal=2, data=str(text), on_event=ignore)
    assert found.kept == 1
    assert found.run.recipe.data.source == str(text)
    assert found.run.tokenizer.encode("ab cd") == trained.tokenizer.encode("ab cd")


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        (["blocks.*.mixer=attention(2)"], {}, "the changes do not alter the model"),
        ([], {}, "the changes do not alter the model"),
        (LINEAR, {"heal": -1}, "heal is -1 steps, but must lie between 0, for no training, and 2,147,483,647"),
        ([*LINEAR, "training.adapt=lora"], {}, "training.adapt: the training after a swap updates all weights"),
        (LINEAR, {"data": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_what_cannot_be_done_is_refused_and_writes_nothing(
    trained: Run, tmp_path: Path, changes: list[str], options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UserError) as error:
        swap(trained, changes, tmp_path / "run", on_event=ignore, **options)  # type: ignore[arg-type]
    assert sentence in str(error.value)
    assert not list(tmp_path.rglob("*.yaml"))


def test_a_folder_that_holds_a_run_is_not_written_over(trained: Run) -> None:
    before = (trained.folder / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="already holds a run"):
        swap(trained, LINEAR, trained.folder, on_event=ignore)
    assert (trained.folder / "model.safetensors").read_bytes() == before


def test_sections_that_cannot_be_drawn_are_not_read(tmp_path: Path) -> None:
    table = {"kind": "examples", "title": "A", "columns": ["a"], "rows": [[math.inf]]}
    write_sections(tmp_path, [table])
    assert read_sections(tmp_path) == [{**table, "rows": [[None]]}]
    for content in ("{", "3", json.dumps([{"kind": "film", "title": "A"}]), json.dumps([{"kind": "examples"}])):
        (tmp_path / SECTIONS).write_text(content)
        assert read_sections(tmp_path) == []
    assert read_sections(tmp_path / "nowhere") == []
