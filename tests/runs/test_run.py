"""Runs read back from their folders, and held-out text measured."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.kill_storm import STEPS, ignore, small_recipe
from torch.nn import functional as F

from qkv.data.corpora.corpus import open_corpus
from qkv.runs.evaluation import evaluate
from qkv.runs.run import Run
from qkv.runs.storage.checkpoint import CheckpointStore
from qkv.runs.storage.files import read_tensors, write_tensors
from qkv.runs.storage.load import accept, load
from qkv.spec.files.overrides import override
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.training.loop import train
from qkv.training.watch.events import Ended, Event, Notice, Started, Stepped, Validated
from qkv.training.watch.show import Show


@pytest.fixture
def copied(straight: Path, tmp_path: Path) -> Path:
    """A finished run that a test may damage."""
    return Path(shutil.copytree(straight, tmp_path / "run"))


def test_a_run_is_what_its_folder_holds(straight: Path) -> None:
    run = load(straight)
    tensors, metadata = read_tensors(straight / "model.safetensors")
    assert not run.model.training
    for name, tensor in tensors.items():
        assert torch.equal(run.model.get_parameter(name), tensor)
    assert run.step == metadata["step"]
    assert run.val_loss == metadata["val_loss"]
    assert run.recipe.model.vocab_size == run.tokenizer.vocab_size
    assert len([row for row in run.metrics if "loss" in row]) == STEPS


def test_a_run_prints_as_one_short_line(straight: Path) -> None:
    run = load(straight)
    assert str(run) == repr(run)
    size = sum(weight.numel() for weight in run.model.parameters())
    assert repr(run) == f"Run({str(straight)!r}, task {run.recipe.task.kind}, {size:,} parameters, step {run.step:,})"


def windowed_loss(run: Run, ids: np.ndarray) -> float:
    """Nats a token over every target of ``ids`` once, window by window, in float64."""
    tokens = torch.from_numpy(ids.astype(np.int64))
    model, nats = run.model.double(), 0.0
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, 16):
            window = tokens[start : start + 17]
            logits, _ = model(window[None, :-1])
            nats += F.cross_entropy(logits[0], window[1:], reduction="sum").item()
    return nats / (len(tokens) - 1)


@pytest.mark.parametrize("split", ["validation", "train"])
def test_evaluation_covers_every_target_of_a_split_once(straight: Path, split: str) -> None:
    run = load(straight)
    figures = evaluate(run, split).figures
    corpus = open_corpus(run.recipe.data, run.tokenizer)
    ids = corpus.splits[split].ids
    assert figures["targets"] == len(ids) - 1
    assert figures["loss"] == pytest.approx(windowed_loss(run, ids), rel=1e-5)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    counts = corpus.splits[split].counts
    assert figures["bits_per_byte"] == pytest.approx(figures["loss"] / math.log(2) * counts.tokens / counts.bytes)
    assert figures["bits_per_character"] == pytest.approx(
        figures["loss"] / math.log(2) * counts.tokens / counts.characters
    )
    assert figures["seconds"] > 0


def test_evaluation_repeats_what_training_measured(straight: Path) -> None:
    run = load(straight)
    assert evaluate(run, batches=2).figures["loss"] == run.val_loss
    assert evaluate(run, batches=2).figures["targets"] == 2 * 3 * 16


def test_an_unknown_split_is_refused(straight: Path) -> None:
    with pytest.raises(UserError, match=r"there is no split 'validate'; allowed: train, validation"):
        evaluate(load(straight), "validate")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run folder: it holds no spec\.yaml"):
        load(tmp_path)


def test_a_damaged_model_file_is_refused(copied: Path) -> None:
    path = copied / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(UserError, match=r"model\.safetensors is truncated or not a safetensors file"):
        load(copied)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=r"model\.safetensors was changed after it was written"):
        load(copied)
    torch.save({"weight": torch.zeros(2)}, path)
    with pytest.raises(UserError, match=r"model\.safetensors is a pickle under the name of a safetensors file"):
        load(copied)


def test_a_model_file_of_another_shape_is_refused(copied: Path) -> None:
    path = copied / "spec.yaml"
    path.write_text(path.read_text().replace("width: 16", "width: 32"))
    with pytest.raises(
        UserError, match=r"the tensor 'frontend\.table' has the shape \[\d+, 16\] in .*, but \[\d+, 32\] in the model"
    ):
        load(copied, accept_changes=True)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "order": (
        lambda run: replace(run / "spec.yaml", "order: pre", "order: post"),
        r"spec\.yaml was changed: model\.blocks\.0\.order is \"post\", but the weights were trained with the default",
    ),
    "training": (
        lambda run: replace(run / "spec.yaml", "clip_norm: 1.0", "clip_norm: 2.0"),
        r"training\.clip_norm is 2\.0",
    ),
    "vocabulary": (
        lambda run: swap_ids(run / "tokenizer.json"),
        r"tokenizer\.json was changed after the weights were trained",
    ),
    "labels": (lambda run: (run / "labels.json").write_text('["a", "b"]'), r"labels\.json was added"),
}


def swap_ids(path: Path) -> None:
    tree = json.loads(path.read_text())
    vocabulary = tree["model"]["vocab"]
    first, second = list(vocabulary)[1:3]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(("edit", "sentence"), EDITS.values(), ids=EDITS)
def test_an_edited_run_is_refused_until_it_is_accepted(
    copied: Path, edit: Callable[[Path], object], sentence: str
) -> None:
    edit(copied)
    with pytest.raises(UserError, match=sentence + r".*; restore it, or accept the change with 'qkv accept"):
        load(copied)
    wanted = load(copied, accept_changes=True)
    assert re.search(sentence, accept(copied) or "")
    found = load(copied)
    assert (found.recipe, found.step, found.vocabulary.digest()) == (
        wanted.recipe,
        wanted.step,
        wanted.vocabulary.digest(),
    )
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), wanted.model.parameters(), strict=True))
    assert accept(copied) is None


def test_what_does_not_decide_the_weights_may_be_edited(copied: Path) -> None:
    replace(copied / "spec.yaml", "max_new_tokens: 8", "max_new_tokens: 9")
    replace(copied / "spec.yaml", "every: 7", "every: 8")
    replace(copied / "spec.yaml", 'description: ""', "description: mine")
    assert load(copied).recipe.sample.max_new_tokens == 9


def test_an_edited_run_is_no_start(copied: Path, text: Path, tmp_path: Path) -> None:
    replace(copied / "spec.yaml", "order: pre", "order: post")
    recipe = Recipe.parse({"data": str(text), "start": str(copied), "training": {"steps": 1, "batch_size": 2}})
    with pytest.raises(UserError, match=r"model\.blocks\.0\.order is \"post\""):
        train(recipe, tmp_path / "next", on_event=ignore)


def test_training_does_not_go_on_with_an_edited_vocabulary(copied: Path) -> None:
    tree = json.loads((copied / "tokenizer.json").read_text())
    (copied / "tokenizer.json").write_text(
        json.dumps({**tree, "decoder": {"type": "Fuse"}})
    )  # the ids are as they were
    with pytest.raises(UserError, match=r"tokenizer\.json was changed .*; restore it, or name another folder"):
        train(load(copied, accept_changes=True).recipe, copied, on_event=ignore)


def test_weights_of_older_versions_are_loaded_as_they_are(copied: Path) -> None:
    tensors, metadata = read_tensors(copied / "model.safetensors")
    write_tensors(copied / "model.safetensors", tensors, {"step": metadata["step"]})
    replace(copied / "spec.yaml", "order: pre", "order: post")
    assert load(copied).step == metadata["step"]


def test_best_weights_that_are_missing_are_not_replaced_unasked(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    sentence = (
        r"model\.safetensors, the file of the run's best weights, is missing; "
        r"restore it, or use the weights of the newest"
    )
    with pytest.raises(UserError, match=sentence):
        load(copied)
    with pytest.raises(UserError, match=sentence):
        train(load(copied, accept_changes=True).recipe, copied, on_event=ignore)
    assert "model.safetensors is missing" in (accept(copied) or "")
    newest = CheckpointStore(copied / "resume").load(lambda _: None)
    found = load(copied)
    assert newest is not None
    assert found.step == newest.step == STEPS
    assert all(
        torch.equal(found.model.get_parameter(name), tensor) for name, tensor in newest.tensors["weights"].items()
    )


def test_an_edited_metrics_file_is_refused(copied: Path) -> None:
    path = copied / "metrics.jsonl"
    path.write_text("not json\n" + path.read_text())
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: this line is not a JSON object"):
        load(copied)


def test_before_the_first_validation_the_newest_checkpoint_is_loaded(text: Path, tmp_path: Path) -> None:
    class Crash(BaseException):
        pass

    def crash(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 9:
            raise Crash

    with pytest.raises(Crash):
        train(small_recipe(text, STEPS), tmp_path / "run", on_event=crash)
    run = load(tmp_path / "run")
    assert run.step == 7
    assert run.val_loss is None
    shutil.rmtree(tmp_path / "run" / "resume")
    with pytest.raises(UserError, match="has no weights yet"):
        load(tmp_path / "run")


def test_without_a_listener_a_run_shows_itself(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(small_recipe(text, 4), tmp_path / "run")
    assert "train  4/4" in capsys.readouterr().err
    train(small_recipe(text, 4), tmp_path / "run")
    assert capsys.readouterr().err == f"the run in {tmp_path / 'run'} is finished: all 4 steps are done\n"


def test_the_line_shows_steps_losses_and_notices(capsys: pytest.CaptureFixture[str]) -> None:
    with Show() as show:
        show(Started(0, 10, 1000, 96))
        show(Stepped(10, 10, 2.5, 1.0, 1e-3, 960, 5000.0, 1.0))
        show(Validated(10, 2.25, True, 1.0, {}))
        show(Notice("a sentence"))
        show(Ended("finished", 10, ""))
    told = capsys.readouterr().err
    assert "a sentence\n" in told
    assert "train  10/10" in told
    assert "loss 2.500" in told
    assert "best validation loss 2.250 at step 10" in told


def test_the_line_counts_what_the_task_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with Show() as show:
        show(Started(0, 10, 1000, 96, "examples"))
        show(Stepped(10, 10, 2.5, 1.0, 1e-3, 960, 5000.0, 1.0))
    told = capsys.readouterr().err
    assert "5,000 examples/s" in told
    assert "tokens" not in told


def test_the_line_shows_the_metric_that_selects_the_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Show() as show:
        show(Started(0, 40, 1000, 96, "examples"))
        for step, accuracy in ((10, 71.0), (20, 69.5), (30, None), (40, None)):
            now[0] += 20.0
            if accuracy is not None:
                figures = {"loss": 2.25, "perplexity": 9.5, "accuracy": accuracy}
                show(Validated(step, 2.25, accuracy == 71.0, 1.0, figures, "accuracy"))
            now[0] += 1.0
            show(Stepped(step, 40, 2.5, 1.0, 1e-3, 960, 5000.0, 1.0))
        show(Ended("finished", 40, ""))
    first, second, third, *_, last = capsys.readouterr().err.splitlines()
    assert "validation accuracy 71.00 at step 10, best" in first
    assert "validation accuracy 69.50 at step 20 (best 71.00 at step 10)" in second
    assert "validation" not in third
    assert "best validation accuracy 71.00 at step 10" in last


def test_a_compiled_step_has_the_losses_of_a_plain_one(
    text: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []
    real = torch.compile

    def traced(function: object) -> object:
        compiled.append(function)
        return real(function, backend="aot_eager")  # what traces the step, without the minutes of a C++ compiler

    monkeypatch.setattr(torch, "compile", traced)
    one_layer = ["model.num_layers=1"]
    run = train(override(small_recipe(text, 3, compile=True), one_layer), tmp_path / "run", on_event=ignore)
    assert len(compiled) == 1
    plain = train(override(small_recipe(text, 3), one_layer), tmp_path / "plain", on_event=ignore)
    losses = [[row["loss"] for row in r.metrics if "loss" in row] for r in (run, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
