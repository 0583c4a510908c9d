"""The loop against a plain one, and a run that is cut anywhere against one that is left alone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.kill_storm import differences, small_recipe, write_text
from torch.nn import functional as F

from qkv.data.batches import Batches
from qkv.data.corpus import open_corpus
from qkv.models.build import build
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.spec.yaml_io import read_recipe
from qkv.training import loop, setup
from qkv.training.events import Ended, Event, Notice, Saved, Stepped, Validated
from qkv.training.files import read_tensors
from qkv.training.loop import train
from qkv.training.record import rows_of

STEPS = 24


def ignore(event: Event) -> None:
    pass


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def straight(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "straight"
    train(small_recipe(text, STEPS), folder, on_event=ignore)
    return folder


class Crash(Exception):
    """Ends a run where it stands, as a power cut would."""


def crash_at(step: int, kind: type[Event] = Stepped) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if isinstance(event, kind) and event.step == step:  # type: ignore[union-attr]
            raise Crash

    return tell


def plain_recipe(text: Path, **training: Any) -> Recipe:
    """Without dropout, so that another loop can follow it."""
    model = {"width": 16, "num_layers": 2, "context_length": 16, "blocks": [{"branches": ["attention(2)", "feed_forward"]}]}
    settings = {"steps": 6, "batch_size": 4, "clip_norm": 0.5, "optimizer": "adamw(lr=0.01)", "schedule": "linear(warmup=2)"}
    return Recipe.parse({"data": str(text), "model": model, "training": settings | training, "sample": {"max_new_tokens": 4}})


def test_losses_norms_and_weights_are_those_of_a_plain_loop(text: Path, tmp_path: Path) -> None:
    recipe = plain_recipe(text)
    events: list[Event] = []
    run = train(recipe, tmp_path / "run", on_event=events.append)

    corpus = open_corpus(recipe.data)
    batches = Batches(corpus, recipe.data.batching, 4, 16, recipe.training.seed)
    model = build(setup.with_vocabulary(recipe, corpus.tokenizer).model, recipe.training.seed)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99), eps=1e-8)
    steps = [e for e in events if isinstance(e, Stepped)]
    for i, rate in enumerate([0.5, 1, 0.75, 0.5, 0.25, 0]):
        batch = batches.batch(i)
        loss = F.cross_entropy(model(batch.ids)[0].flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * rate
        optimizer.step()
        assert steps[i].loss == pytest.approx(loss.item(), rel=1e-5)
        assert steps[i].grad_norm == pytest.approx(norm.item(), rel=1e-4)
        assert steps[i].lr == pytest.approx(0.01 * rate)
    assert norm > 0.5  # or nothing was clipped
    for name, p in model.named_parameters():
        torch.testing.assert_close(run.model.get_parameter(name), p, rtol=1e-4, atol=1e-5)


def test_accumulation_equals_the_bigger_batch(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = train(plain_recipe(text, steps=1, batch_size=3, accumulate=2), tmp_path / "apart", on_event=ignore)
    single = Batches.batch

    def joined(self: Batches, step: int) -> Any:
        a, b = single(self, 2 * step), single(self, 2 * step + 1)
        return type(a)(torch.cat((a.ids, b.ids)), torch.cat((a.targets, b.targets)))

    monkeypatch.setattr(Batches, "batch", joined)
    once = train(plain_recipe(text, steps=1, batch_size=3), tmp_path / "once", on_event=ignore)
    assert apart.metrics[0]["loss"] == pytest.approx(once.metrics[0]["loss"], rel=1e-6)
    assert apart.metrics[0]["grad_norm"] == pytest.approx(once.metrics[0]["grad_norm"], rel=1e-5)


def test_ragged_accumulation_weighs_every_target_alike(text: Path, tmp_path: Path) -> None:
    # Length buckets give batches of different numbers of targets; the mean is over targets, not over batches.
    data = {"source": str(text), "batching": "length_buckets(buckets=2)"}
    recipe = plain_recipe(text, steps=1, batch_size=2, accumulate=3).changed(data=data)
    run = train(recipe, tmp_path / "run", on_event=ignore)
    corpus = open_corpus(recipe.data)
    batches = Batches(corpus, recipe.data.batching, 2, 16, recipe.training.seed)
    model = build(run.recipe.model, recipe.training.seed)
    nats, count = 0.0, 0
    for i in range(3):
        batch = batches.batch(i)
        logits, _ = model(batch.ids, lengths=batch.lengths)
        nats += F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum").item()
        count += batch.num_targets
    assert run.metrics[0]["loss"] == pytest.approx(nats / count, rel=1e-5)


def test_a_run_leaves_everything_that_is_needed_later(straight: Path) -> None:
    for name in ("spec.yaml", "tokenizer.json", "model.safetensors", "metrics.jsonl", "report.html"):
        assert (straight / name).is_file(), name
    assert sorted(p.name for p in (straight / "resume").iterdir()) == ["step-00000021", "step-00000024"]
    rows = rows_of(straight)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == STEPS
    assert sum(losses[-5:]) < sum(losses[:5])
    assert [row["step"] for row in rows if "val_loss" in row] == [10, 20, 24]
    assert [row["step"] for row in rows if "sample" in row] == [15, 24]
    page = (straight / "report.html").read_text()
    assert "finished" in page
    assert rows[-1]["sample"].split()[0] in page


def test_the_model_file_holds_the_weights_of_the_lowest_held_out_loss(straight: Path) -> None:
    _, metadata = read_tensors(straight / "model.safetensors")
    best = min((row["val_loss"], row["step"]) for row in rows_of(straight) if "val_loss" in row)
    assert (metadata["val_loss"], metadata["step"]) == best


@pytest.mark.parametrize(
    ("kind", "step"), [(Stepped, 3), (Stepped, 7), (Saved, 7), (Stepped, 13), (Validated, 10), (Saved, 21), (Validated, 24), (Saved, 24)]
)
def test_a_run_that_was_cut_goes_on_bit_for_bit(text: Path, straight: Path, tmp_path: Path, kind: type[Event], step: int) -> None:
    recipe = small_recipe(text, STEPS)
    with pytest.raises(Crash):
        train(recipe, tmp_path / "run", on_event=crash_at(step, kind))
    train(recipe, tmp_path / "run", on_event=ignore)
    assert differences(straight, tmp_path / "run") == []


@pytest.mark.parametrize(
    "training",
    [
        {"precision": "bf16"},
        {"recompute": True},
        {"optimizer": "adamw", "schedule": "warmup_stable_decay(warmup=3)"},
        {"accumulate": 1, "clip_norm": None},
    ],
    ids=["bf16", "recompute", "adamw", "unclipped"],
)
def test_every_setting_goes_on_bit_for_bit(text: Path, tmp_path: Path, training: dict[str, Any]) -> None:
    recipe = small_recipe(text, 16, **training)
    train(recipe, tmp_path / "straight", on_event=ignore)
    for step in (9, 15):
        with pytest.raises(Crash):
            train(recipe, tmp_path / "cut", on_event=crash_at(step))
    train(recipe, tmp_path / "cut", on_event=ignore)
    assert differences(tmp_path / "straight", tmp_path / "cut") == []


@pytest.mark.parametrize("batching", ["packed(separator='.')", "length_buckets(separator='.', buckets=3)"])
def test_every_layout_goes_on_bit_for_bit(text: Path, tmp_path: Path, batching: str) -> None:
    recipe = small_recipe(text, 16).changed(data={"source": str(text), "batching": batching})
    train(recipe, tmp_path / "straight", on_event=ignore)
    with pytest.raises(Crash):
        train(recipe, tmp_path / "cut", on_event=crash_at(12))
    train(recipe, tmp_path / "cut", on_event=ignore)
    assert differences(tmp_path / "straight", tmp_path / "cut") == []


def test_recomputation_changes_no_loss(text: Path, tmp_path: Path, straight: Path) -> None:
    train(small_recipe(text, STEPS, recompute=True), tmp_path / "run", on_event=ignore)
    losses = [[row["loss"] for row in rows_of(folder) if "loss" in row] for folder in (straight, tmp_path / "run")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_bf16_products_leave_fp32_weights_and_nearly_the_same_losses(text: Path, tmp_path: Path, straight: Path) -> None:
    run = train(small_recipe(text, STEPS, precision="bf16"), tmp_path / "run", on_event=ignore)
    assert {p.dtype for p in run.model.parameters()} == {torch.float32}
    losses = [[row["loss"] for row in rows_of(folder) if "loss" in row] for folder in (straight, tmp_path / "run")]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


def test_a_finished_run_says_so_and_does_nothing(text: Path, straight: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in straight.rglob("*")}
    events: list[Event] = []
    run = train(small_recipe(text, STEPS), straight, on_event=events.append)
    assert events == [Notice(f"the run in {straight} is finished: all {STEPS} steps are done")]
    assert {p: p.stat().st_mtime_ns for p in straight.rglob("*")} == before
    assert run.step == read_tensors(straight / "model.safetensors")[1]["step"]


def test_steps_can_be_raised_where_the_schedule_does_not_look_ahead(text: Path, tmp_path: Path) -> None:
    long = small_recipe(text, 20, schedule="constant(warmup=3)")
    train(long, tmp_path / "long", on_event=ignore)
    train(small_recipe(text, 10, schedule="constant(warmup=3)"), tmp_path / "raised", on_event=ignore)
    train(long, tmp_path / "raised", on_event=ignore)
    assert [d for d in differences(tmp_path / "long", tmp_path / "raised") if d != "metrics.jsonl"] == []


def test_steps_cannot_be_raised_where_the_past_would_have_been_another(text: Path, straight: Path) -> None:
    with pytest.raises(UserError, match=r"training\.steps: .* has 24 steps and cannot be continued to 48, .* 'cosine' .* other rates"):
        train(small_recipe(text, 48), straight, on_event=ignore)


def test_another_recipe_over_the_same_folder_names_the_first_difference(text: Path, straight: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in straight.rglob("*")}
    with pytest.raises(UserError, match=r"another recipe: training\.batch_size is 3 there and 5 here; name another folder"):
        train(small_recipe(text, STEPS, batch_size=5), straight, on_event=ignore)
    with pytest.raises(UserError, match=r"training\.optimizer\.kind is \"muon\" there and \"adamw\" here"):
        train(small_recipe(text, STEPS, optimizer="adamw"), straight, on_event=ignore)
    with pytest.raises(UserError, match=r"already holds a run; name another folder"):
        train(small_recipe(text, STEPS), straight, resume=False, on_event=ignore)
    assert {p: p.stat().st_mtime_ns for p in straight.rglob("*")} == before


def cut_run(text: Path, folder: Path, **training: Any) -> Recipe:
    """A run that stopped after step 9, with a checkpoint of step 7."""
    recipe = small_recipe(text, STEPS, **training)
    with pytest.raises(Crash):
        train(recipe, folder, on_event=crash_at(9))
    return recipe


def test_what_does_not_decide_the_weights_may_change(text: Path, straight: Path, tmp_path: Path) -> None:
    cut_run(text, tmp_path / "run")
    other = small_recipe(text, STEPS, checkpoints={"every": 5}, validation={"every": 8}).changed(name="new name")
    train(other, tmp_path / "run", on_event=ignore)
    assert [d for d in differences(straight, tmp_path / "run") if d.startswith("resume")] == []
    assert "name: new name" in (tmp_path / "run" / "spec.yaml").read_text()


def test_an_edited_spec_file_is_noticed(text: Path, tmp_path: Path) -> None:
    recipe = cut_run(text, tmp_path / "run")
    path = tmp_path / "run" / "spec.yaml"
    path.write_text(path.read_text().replace("beta1: 0.9", "beta1: 0.8"))
    edited = read_recipe(tmp_path / "run")
    assert edited.training != recipe.training
    with pytest.raises(UserError, match=r"spec\.yaml was changed after training began"):
        train(edited, tmp_path / "run", on_event=ignore)


def test_another_text_under_the_same_name_is_noticed(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    recipe = cut_run(text, tmp_path / "run")
    text.write_text(text.read_text()[::-1])
    with pytest.raises(UserError, match=r"the text .*text\.txt.* is not the one that the run in .* was trained on"):
        train(recipe, tmp_path / "run", on_event=ignore)


def test_a_torn_checkpoint_costs_only_the_steps_since_the_one_before(text: Path, straight: Path, tmp_path: Path) -> None:
    recipe = small_recipe(text, STEPS)
    with pytest.raises(Crash):
        train(recipe, tmp_path / "run", on_event=crash_at(16))
    torn = tmp_path / "run" / "resume" / "step-00000014" / "optimizer.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    events: list[Event] = []
    train(recipe, tmp_path / "run", on_event=events.append)
    assert isinstance(events[0], Notice)
    assert events[0].text.startswith(f"{torn} is cut short")
    assert "going on from the checkpoint before it, step 7" in events[0].text
    assert differences(straight, tmp_path / "run") == []


def test_a_full_disk_stops_the_run_and_nothing_that_was_saved_is_lost(
    text: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, folder = small_recipe(text, STEPS), tmp_path / "run"
    real = os.fsync

    def full(handle: int) -> None:
        if (folder / "resume" / "step-00000007").exists():
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="cannot be written: the disk is full"):
        train(recipe, folder, on_event=ignore)
    monkeypatch.undo()
    train(recipe, folder, on_event=ignore)
    assert differences(straight, folder) == []


def test_a_file_where_the_folder_should_be(text: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UserError, match=r"^the run folder .*run cannot be written: a file stands where a folder is needed"):
        train(small_recipe(text, STEPS), tmp_path / "run", on_event=ignore)
    assert (tmp_path / "run").read_text() == "mine"


def test_a_read_only_run_folder(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_run(text, tmp_path / "run")
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path / "run")):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be written: the folder is read-only or belongs to someone else"):
        train(small_recipe(text, STEPS), tmp_path / "run", on_event=ignore)


def test_two_processes_cannot_train_in_one_folder(text: Path, tmp_path: Path) -> None:
    with setup.locked(tmp_path / "run"), pytest.raises(UserError, match="another process is training in"):
        train(small_recipe(text, STEPS), tmp_path / "run", on_event=ignore)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_and_saves(text: Path, straight: Path, tmp_path: Path, number: signal.Signals) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    events: list[Event] = []

    def interrupt(event: Event) -> None:
        events.append(event)
        if isinstance(event, Stepped) and event.step == 9:
            os.kill(os.getpid(), number)

    recipe = small_recipe(text, STEPS)
    train(recipe, tmp_path / "run", on_event=interrupt)
    assert events[-1] == Ended("stopped", 9, f"stopped by {number.name} after step 9 of 24; the same command goes on from there")
    assert Saved(9) in events
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    assert "stopped by" in (tmp_path / "run" / "report.html").read_text()
    train(recipe, tmp_path / "run", on_event=ignore)
    assert differences(straight, tmp_path / "run") == []


def test_a_signal_during_validation_leaves_it_for_the_next_start(
    text: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.measure

    def interrupted(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    monkeypatch.setattr(loop, "measure", interrupted)
    recipe = small_recipe(text, STEPS)
    train(recipe, tmp_path / "run", on_event=ignore)
    assert not [row for row in rows_of(tmp_path / "run") if "val_loss" in row]
    monkeypatch.undo()
    train(recipe, tmp_path / "run", on_event=ignore)
    assert differences(straight, tmp_path / "run") == []


def test_a_second_ctrl_c_aborts_at_once(text: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupt(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 9:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(small_recipe(text, STEPS), tmp_path / "run", on_event=interrupt)
    assert signal.getsignal(signal.SIGINT) == before
    assert [p.name for p in (tmp_path / "run" / "resume").iterdir()] == ["step-00000007"]


def test_training_runs_outside_the_main_thread(text: Path, tmp_path: Path) -> None:
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(train(small_recipe(text, 4), tmp_path / "run", on_event=ignore).step))
    thread.start()
    thread.join()
    assert done == [4]


def test_training_stops_early_when_held_out_loss_no_longer_falls(text: Path, tmp_path: Path) -> None:
    settings = {"optimizer": "adamw(lr=1e-9)", "validation": {"every": 2, "batches": 1, "patience": 3}}
    recipe, events = small_recipe(text, 200, **settings), []
    train(recipe, tmp_path / "run", on_event=events.append)
    losses = [e.loss for e in events if isinstance(e, Validated)]
    assert isinstance(events[-1], Ended)
    assert events[-1].status == "finished"
    assert "3 validations had brought no lower loss" in events[-1].message
    assert min(losses[-3:]) >= min(losses[:-3])
    assert events[-1].step == 2 * len(losses) < 200
    again: list[Event] = []
    train(recipe, tmp_path / "run", on_event=again.append)
    assert len(again) == 1


def test_the_callers_random_numbers_are_not_touched(text: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(small_recipe(text, 2), tmp_path / "run", on_event=ignore)
    assert torch.equal(torch.rand(3), expected)


def test_a_vocabulary_that_is_too_small_is_refused(text: Path, tmp_path: Path) -> None:
    recipe = small_recipe(text, 2)
    recipe = recipe.changed(model=recipe.model.changed(frontend={"kind": "text", "vocab_size": 3}))
    with pytest.raises(UserError, match=r"model\.frontend\.vocab_size: 3 ids are fewer than the \d+ of the tokenizer"):
        train(recipe, tmp_path / "run", on_event=ignore)
    assert list((tmp_path / "run").iterdir()) == []


def test_samples_that_cannot_be_drawn_cost_a_notice_and_not_the_run(text: Path, tmp_path: Path) -> None:
    recipe = small_recipe(text, 4, sample_every=1).changed(sample={"max_new_tokens": 100, "overflow": "refuse"})
    events: list[Event] = []
    train(recipe, tmp_path / "run", on_event=events.append)
    notices = [e.text for e in events if isinstance(e, Notice)]
    assert len(notices) == 1
    assert notices[0].startswith("no samples are drawn along the way: ")


def test_tensorboard_gets_the_same_figures(text: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(small_recipe(text, 4, tensorboard=True), tmp_path / "run", on_event=ignore)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    losses = [(s.step, s.value) for s in events.Scalars("loss")]
    assert losses == [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in run.metrics if "loss" in row]
