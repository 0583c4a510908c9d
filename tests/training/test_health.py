"""A number that is not finite is traced to the part that made it first, and nothing that was saved is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.training.kill_storm import small_recipe, write_text
from torch import Tensor, nn

from qkv.models.transformer import Transformer
from qkv.runs.metrics import rows_of
from qkv.runs.storage.checkpoint import CheckpointStore
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.training import setup
from qkv.training.loop import train
from qkv.training.watch.events import Ended, Event

STEP = 9


class ThinksTwice(torch.autograd.Function):
    """x forward, NaN backward."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:  # type: ignore[override]
        return grads[0] * float("nan")


def from_step(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor | tuple[Tensor, object]]:
    """Forward hook that changes a module's output from step ``STEP`` on, in training; two forward passes per step."""
    calls = 0

    def hook(module: nn.Module, args: object, output: Tensor | tuple[Tensor, object]) -> Tensor | tuple[Tensor, object]:
        nonlocal calls
        calls += module.training
        if not module.training or calls <= 2 * (STEP - 1):
            return output
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return hook


def failing_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Transformer], object], **training: object
) -> str:
    """Train a model that ``spoil`` has prepared to fail; the sentence."""
    real = setup.build

    def build(*args: object, **kwargs: object) -> Transformer:
        model = real(*args, **kwargs)  # type: ignore[arg-type]
        spoil(model)
        return model

    monkeypatch.setattr(setup, "build", build)
    recipe: Recipe = small_recipe(write_text(tmp_path / "text.txt"), 24, **training)
    events: list[Event] = []
    with pytest.raises(UserError) as error:
        train(recipe, tmp_path / "run", on_event=events.append)
    assert events[-1] == Ended("failed", STEP - 1, str(error.value))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "failed" in page
    assert f"step {STEP}" in page
    return str(error.value)


BRANCHES = [(i, j) for i in range(2) for j in range(3)]


@pytest.mark.parametrize(("block", "branch"), BRANCHES)
def test_a_branch_that_gives_nan_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, branch: int
) -> None:
    def spoil(model: Transformer) -> None:
        body = model.get_submodule(f"blocks.{block}.branches.{branch}.body")
        body.register_forward_hook(from_step(lambda x: x.masked_fill(torch.arange(x.shape[-1]) == 3, float("nan"))))

    sentence = failing_run(tmp_path, monkeypatch, spoil)
    assert sentence.startswith(
        f"step {STEP}: the loss is nan; blocks.{block}.branches.{branch} was the first to produce values that are not "
        "finite"
    )
    assert f"the checkpoint of step 7 is in {tmp_path / 'run' / 'resume' / 'step-00000007'}" in sentence
    checkpoint = CheckpointStore(tmp_path / "run" / "resume").load(lambda text: pytest.fail(text))
    assert checkpoint is not None
    assert checkpoint.step == 7
    assert all(t.isfinite().all() for t in checkpoint.tensors["weights"].values())
    assert [row["event"] for row in rows_of(tmp_path / "run") if "event" in row] == ["the loss is nan"]


def test_a_bad_gradient_is_traced_to_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The gradient turns bad behind the first block's last branch: everything before it goes bad too, nothing after it.
    def spoil(model: Transformer) -> None:
        model.get_submodule("blocks.0.branches.2.body").register_forward_hook(from_step(ThinksTwice.apply))

    sentence = failing_run(tmp_path, monkeypatch, spoil)
    assert "the gradient norm is nan; blocks.0.branches.2." in sentence
    assert "was the first whose gradient is not finite" in sentence


def test_an_infinite_logit_is_the_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = failing_run(
        tmp_path, monkeypatch, lambda model: model.head.register_forward_hook(from_step(lambda x: x * float("inf")))
    )
    assert "the loss is nan; head was the first to produce values that are not finite" in sentence


def test_weights_that_an_update_broke_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: Transformer) -> None:
        def break_weights(x: Tensor) -> Tensor:
            with torch.no_grad():
                model.get_parameter("norm.weight").fill_(float("inf"))
            return x

        model.frontend.register_forward_hook(from_step(break_weights))

    assert "norm.weight holds weights that are not finite" in failing_run(tmp_path, monkeypatch, spoil)


def test_recomputation_does_not_hide_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: Transformer) -> None:
        model.frontend.register_forward_hook(from_step(lambda x: x * float("nan")))

    sentence = failing_run(tmp_path, monkeypatch, spoil, recompute=True)
    assert "the loss is nan; frontend was the first" in sentence


def test_before_the_first_checkpoint_the_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: Transformer) -> None:
        model.frontend.register_forward_hook(from_step(lambda x: x * float("nan")))

    sentence = failing_run(tmp_path, monkeypatch, spoil, checkpoints={"every": 100})
    assert sentence.endswith("no checkpoint was saved before")


def test_a_rate_that_is_far_too_high_fails_with_a_remedy(tmp_path: Path) -> None:
    recipe = small_recipe(
        write_text(tmp_path / "text.txt"), 24, optimizer="adamw(lr=1e30)", schedule="constant", clip_norm=None
    )
    with pytest.raises(UserError, match=r"^step \d+: the (loss|gradient norm) is (nan|inf); .*lower the learning rate"):
        train(recipe, tmp_path / "run", on_event=lambda event: None)
