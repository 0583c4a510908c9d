"""The loop against a plain one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ops.clock import inject, quickest
from tests.training.kill_storm import STEPS, ignore, small_recipe
from torch.nn import functional as F

from qkv.data.batching.batch import Batch
from qkv.data.batching.batches import Batches
from qkv.data.corpora.corpus import open_corpus
from qkv.data.vocabulary import Vocabulary
from qkv.models.build import build
from qkv.runs.metrics import rows_of
from qkv.runs.storage.files import read_tensors
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import with_vocabulary
from qkv.tasks.text.next_token import NextTokenTask
from qkv.training.loop import train
from qkv.training.watch.events import Ended, Event, Notice, Stepped, Validated


def plain_recipe(text: Path, **training: Any) -> Recipe:
    """Without dropout, so that another loop can follow it."""
    model = {
        "width": 16,
        "num_layers": 2,
        "context_length": 16,
        "blocks": [{"branches": ["attention(2)", "feed_forward"]}],
    }
    settings = {
        "steps": 6,
        "batch_size": 4,
        "clip_norm": 0.5,
        "optimizer": "adamw(lr=0.01)",
        "schedule": "linear(warmup=2)",
    }
    return Recipe.parse(
        {"data": str(text), "model": model, "training": settings | training, "sample": {"max_new_tokens": 4}}
    )


def test_losses_norms_and_weights_are_those_of_a_plain_loop(text: Path, tmp_path: Path) -> None:
    recipe = plain_recipe(text)
    events: list[Event] = []
    run = train(recipe, tmp_path / "run", on_event=events.append)

    corpus = open_corpus(recipe.data)
    batches = Batches(corpus, recipe.data.batching, 4, 16, recipe.training.seed)
    model = build(with_vocabulary(recipe, Vocabulary(corpus.tokenizer, corpus.tokenizer)).model, recipe.training.seed)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99), eps=1e-8)
    steps = [e for e in events if isinstance(e, Stepped)]
    for i, rate in enumerate([0.5, 1, 0.75, 0.5, 0.25, 0]):
        batch = batches.batch(i)
        loss = F.cross_entropy(model(batch.input.values)[0].flatten(0, 1), batch.targets.flatten())
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
        return Batch.of(torch.cat((a.input.values, b.input.values)), torch.cat((a.targets, b.targets)))

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
        logits, _ = model(batch.input)
        nats += F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum").item()
        count += batch.num_targets
    assert run.metrics[0]["loss"] == pytest.approx(nats / count, rel=1e-5)


def test_a_run_leaves_everything_that_is_needed_later(straight: Path) -> None:
    for name in ("spec.yaml", "tokenizer.json", "model.safetensors", "metrics.jsonl", "report.html"):
        assert (straight / name).is_file(), name
    assert sorted(p.name for p in (straight / "resume").iterdir()) == [
        "step-00000021",
        "step-00000024",
        "surroundings.json",
    ]
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


def test_recomputation_changes_no_loss(text: Path, tmp_path: Path, straight: Path) -> None:
    train(small_recipe(text, STEPS, recompute=True), tmp_path / "run", on_event=ignore)
    losses = [[row["loss"] for row in rows_of(folder) if "loss" in row] for folder in (straight, tmp_path / "run")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_bf16_products_leave_fp32_weights_and_nearly_the_same_losses(
    text: Path, tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, quickest("bf16"))  # on a processor that emulates it too
    run = train(small_recipe(text, STEPS, precision="bf16"), tmp_path / "run", on_event=ignore)
    assert {p.dtype for p in run.model.parameters()} == {torch.float32}
    losses = [[row["loss"] for row in rows_of(folder) if "loss" in row] for folder in (straight, tmp_path / "run")]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


def test_training_stops_early_when_held_out_loss_no_longer_falls(text: Path, tmp_path: Path) -> None:
    settings = {"optimizer": "adamw(lr=1e-9)", "validation": {"every": 2, "batches": 1, "patience": 3}}
    recipe, events = small_recipe(text, 200, **settings), []
    train(recipe, tmp_path / "run", on_event=events.append)
    losses = [e.loss for e in events if isinstance(e, Validated)]
    assert isinstance(events[-1], Ended)
    assert events[-1].status == "finished"
    assert "the last 3 validations brought no better loss" in events[-1].message
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
    assert notices[0].startswith("training continues without samples: ")


def test_tensorboard_gets_the_same_figures(text: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(small_recipe(text, 4, tensorboard=True), tmp_path / "run", on_event=ignore)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    losses = [(s.step, s.value) for s in events.Scalars("loss")]
    assert losses == [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in run.metrics if "loss" in row]


def test_the_figure_that_chooses_the_weights_can_be_another_than_the_loss(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([{"loss": 3.0, "accuracy": 10.0}, {"loss": 2.0, "accuracy": 30.0}, {"loss": 1.0, "accuracy": 20.0}])
    monkeypatch.setattr(NextTokenTask, "figures", lambda self, seen, scale: next(found))
    recipe = plain_recipe(text, validation={"every": 2, "batches": 1, "best": "accuracy"})
    assert train(recipe, tmp_path / "run", on_event=ignore).step == 4


def test_a_figure_that_is_not_measured_cannot_choose(text: Path, tmp_path: Path) -> None:
    recipe = plain_recipe(text, validation={"every": 2, "batches": 1, "best": "accuracy"})
    with pytest.raises(
        UserError, match=r"training\.validation\.best: 'accuracy' is not measured in this task; allowed: .*loss"
    ):
        train(recipe, tmp_path / "run", on_event=ignore)
