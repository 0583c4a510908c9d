"""What is predicted is what is measured: five mixers, and everything that changes a training step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.costs.test_cost import model_of

from qkv.costs.cost import Cost, cost
from qkv.costs.counting.losses import random_batch, summed_loss
from qkv.costs.counting.memory import LiveBytes
from qkv.costs.measuring.machine import Machine
from qkv.costs.measuring.measure import Measurement, Update, check, peak_bytes
from qkv.models.build import build
from qkv.ops.selection.choices import assuming
from qkv.spec import branches as branch
from qkv.spec import parts
from qkv.spec.masks import Causal, Full, Window
from qkv.spec.mixers.linear_attention import LinearAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.position_wise import memory_layer
from qkv.spec.training import Muon, Training
from qkv.system.errors import UserError
from qkv.training.optim.optimisers import build_optimizer

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {"width": 64, "num_layers": 3, "context_length": 128, "frontend": Text(vocab_size=65)}
MIXERS = {
    "grouped attention": (
        branch.Attention(num_heads=8, num_kv_heads=2, relative=parts.Rope()),
        branch.GatedFeedForward(),
    ),
    "window with sinks": (
        branch.Attention(num_heads=4, mask=Causal() & Window(size=16, sinks=4)),
        branch.FeedForward(),
    ),
    "linear attention": (LinearAttention(num_heads=4), branch.FeedForward()),
    "GRU": (branch.GRU(), branch.FeedForward(activation="relu")),
    "LSTM": (branch.LSTM(), branch.FeedForward(activation="relu")),
    "RNN and a memory": (branch.RNN(), memory_layer.MemoryLayer(num_heads=2)),
    "memory of one head": (memory_layer.MemoryLayer(activation="relu"), branch.TokenShift()),
    "two-sided": (branch.GRU(direction="both"), branch.Convolution()),
    "convolution and shift": (branch.CausalConvolution(), branch.TokenShift(), branch.GatedFeedForward()),
}


def sizes(name: str) -> dict[str, Any]:
    """A recurrence is one operator after another on every position; fewer of them tell as much."""
    return (
        {**SIZES, "context_length": 40} if any(isinstance(part, branch.Recurrent) for part in MIXERS[name]) else SIZES
    )


def updates(counted: Cost) -> Any:
    training = counted.training
    return lambda model: Update(
        model, summed_loss, build_optimizer(training.optimizer, model), training.accumulate, counted.precision
    )


def errors(model: Model, **options: Any) -> dict[str, float]:
    counted = cost(model, 4, **options)
    return {row.quantity: row.error for row in check(counted, updates(counted))}


def assert_close(found: dict[str, float]) -> None:
    assert found["parameters"] == 0
    assert abs(found["FLOPs, forward"]) <= 0.05
    assert abs(found["FLOPs, training step"]) <= 0.05
    assert abs(found["peak memory, training step"]) <= 0.15
    assert found.get("decoding state", 0) == 0


@pytest.mark.parametrize("name", MIXERS)
def test_mixers(name: str) -> None:
    assert_close(errors(model_of(*MIXERS[name], **sizes(name))))


@pytest.mark.parametrize(
    "training",
    [Training(recompute=True), Training(accumulate=3), Training(optimizer=Muon())],
    ids=["recomputed", "accumulated", "Muon"],
)
def test_trainings(training: Training) -> None:
    assert_close(errors(model_of(*MIXERS["grouped attention"], **SIZES), training=training))


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_in_bf16(name: str) -> None:
    assert_close(errors(model_of(*MIXERS[name], **sizes(name)), precision="bf16"))


@pytest.mark.parametrize(
    "block",
    [
        Block(branches=(branch.Attention(dropout=0.1), branch.FeedForward(dropout=0.1)), dropout=0.1, order="post"),
        Block(
            branches=(branch.Attention(), branch.FeedForward(activation="relu2")),
            order="parallel",
            norm=parts.RMSNorm(),
        ),
        Block(
            branches=(branch.Attention(value_dim=24), branch.GatedFeedForward()),
            order="sandwich",
            residual=parts.Scaled(),
        ),
        Block(
            branches=(branch.Attention(relative=parts.Alibi(), qk_norm=parts.RMSNorm()), branch.FeedForward()),
            residual=parts.Gated(),
        ),
        Block(branches=(branch.Attention(relative=parts.Rope(), qk_norm=parts.LayerNorm()), branch.FeedForward())),
        Block(branches=(branch.Attention(mask=Full()), branch.FeedForward()), norm=parts.BatchNorm()),
        Block(branches=(branch.Attention(relative=parts.T5Buckets()), branch.Attention(relative=parts.Shaw()))),
        Block(
            branches=(branch.Attention(relative=parts.Shaw(values=True)), branch.Attention(top_k=16, num_kv_heads=2))
        ),
    ],
    ids=[
        "post, dropout",
        "parallel",
        "sandwich",
        "ALiBi",
        "normed heads",
        "batch norm",
        "learned distances",
        "relative values, top k",
    ],
)
def test_blocks(block: Block) -> None:
    assert_close(errors(model_of(**SIZES, blocks=(block,))))


@pytest.mark.parametrize(("length", "precision"), [(128, "fp32"), (128, "bf16"), (700, "fp32")])
def test_a_soft_cap_keeps_the_scores(length: int, precision: str) -> None:
    part = branch.Attention(num_heads=4, num_kv_heads=2, softcap=5.0, relative=parts.Rope())
    found = errors(
        model_of(part, branch.FeedForward(), **{**SIZES, "context_length": length, "num_layers": 2}),
        precision=precision,
    )
    assert abs(found["peak memory, training step"]) <= 0.1


@pytest.mark.parametrize("path", ["sdpa", "sdpa, oneDNN", "tiled"])
@pytest.mark.parametrize("shared", [None, 2])
def test_every_path_of_attention(path: str, shared: int | None) -> None:
    """The memory of each implementation that a machine may select."""
    model = model_of(
        branch.Attention(num_heads=8, num_kv_heads=shared, relative=parts.Rope()), branch.FeedForward(), **SIZES
    )
    counted = cost(model, 4)
    update, batch = updates(counted)(built := build(model)), random_batch(built, counted)
    with assuming(lambda op, case, among: path if op == "attention" and among else next(iter(among), None)):
        update(batch)
        assert counted.at(attention=path).memory.peak == pytest.approx(peak_bytes(update, batch), rel=0.02)


def test_a_long_window_is_computed_in_bands() -> None:
    part = branch.Attention(mask=Causal() & Window(size=32, sinks=4))
    model = model_of(part, **{**SIZES, "context_length": 2048, "num_layers": 2, "width": 32})
    counted = cost(model, 1)
    assert counted.total.skipped > 0.4 * counted.total.flops
    assert abs(errors(model)["peak memory, training step"]) <= 0.1


@pytest.mark.parametrize("vocab_size", [20_000, 40_000])
def test_large_vocabularies(vocab_size: int) -> None:
    """On both sides of the number of logits above which the loss takes them in shares."""
    model = model_of(branch.FeedForward(), **{**SIZES, "num_layers": 1, "frontend": Text(vocab_size=vocab_size)})
    assert abs(errors(model)["peak memory, training step"]) <= 0.1


def test_speed_is_measured_where_the_machine_is_known() -> None:
    model = model_of(branch.Attention(), width=16, context_length=20, num_layers=1)
    counted = cost(model, 2)
    rows = check(counted, updates(counted), Machine("", {"fp32": 1e10}, 1e10, 1e-5))
    rates = {row.quantity: row for row in rows if row.unit == "tokens/s"}
    assert set(rates) == {"training", "prefill", "decoding"}
    assert all(row.measured > 0 and row.predicted > 0 for row in rates.values())


def test_what_would_not_fit_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = cost(model_of(**SIZES), 4)
    monkeypatch.setattr("qkv.costs.measuring.measure.usable_memory", lambda: counted.memory.peak)
    with pytest.raises(UserError, match="but this machine has"):
        check(counted, updates(counted))


@pytest.mark.parametrize(("predicted", "measured", "error"), [(110, 100, 0.1), (90, 100, -0.1), (0, 0, 0), (1, 0, 1)])
def test_errors_are_shares_of_what_was_measured(predicted: int, measured: int, error: float) -> None:
    assert Measurement("", "", predicted, measured).error == pytest.approx(error)


class TestLiveBytes:
    def test_a_view_is_no_memory_and_a_copy_is(self) -> None:
        with LiveBytes() as memory:
            x = torch.zeros(100)
            y = x[:50].view(5, 10)
            assert memory.now == 400
            z = y + 1
            assert memory.now == 600
            del z
            assert (memory.now, memory.peak) == (400, 600)
            del x
            assert memory.now == 400, "the view keeps the storage"
            del y
            assert memory.now == 0

    def test_what_was_there_before_is_counted_from_the_start(self) -> None:
        known = torch.zeros(10)
        with LiveBytes([known, known[:5]]) as memory:
            known.add_(1)
        assert memory.now == memory.peak == 40

    def test_what_autograd_keeps_is_counted(self) -> None:
        w = torch.ones(100, requires_grad=True)
        with LiveBytes([w]) as memory:
            y = (w * 2).exp().sum()
            assert memory.now == 400 + 400 + 4, "exp keeps its result"
            y.backward()
        assert memory.peak >= 400 * 3
