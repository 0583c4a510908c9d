"""The loss of a language model against plain cross entropy in float64, whole and in shares."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.data.batching.batch import Batch
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.models.build import build
from qkv.models.heads import language_loss
from qkv.models.heads.cross_entropy import chunked_cross_entropy, cross_entropy, smoothed_entropy
from qkv.models.heads.head import LanguageModelHead
from qkv.spec.heads import LanguageModelHead as HeadSpec
from qkv.spec.model import Model, Text
from qkv.spec.tasks import NextToken
from qkv.tasks.registry import build_task
from qkv.tasks.task import Scale, Totals


def head(vocab: int, width: int, dtype: torch.dtype = torch.float64, **spec: object) -> LanguageModelHead:
    made = LanguageModelHead(
        HeadSpec.parse({"tied": False, **spec}), width, torch.nn.Parameter(torch.zeros(vocab, width))
    ).to(dtype)
    for p in made.parameters():
        nn.init.normal_(p)
    return made


def some_targets(count: int, vocab: int) -> Tensor:
    targets = torch.randint(vocab, (count,))
    targets[torch.rand(count) < 0.3] = -100
    return targets


def gradients(loss: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, tensors)


@given(
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(2, 7),
    st.sampled_from([None, 3.0]),
    st.booleans(),
    st.integers(0, 99),
)
def test_shares_have_the_value_and_the_gradients_of_the_whole(
    count: int, rows: int, vocab: int, softcap: float | None, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    made = head(vocab, 4, bias=bias, softcap=softcap)
    hidden, targets = torch.randn(count, 4, dtype=torch.float64, requires_grad=True), some_targets(count, vocab)
    logits = hidden @ made.weight.T + (made.bias if bias else 0)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    whole = F.cross_entropy(logits, targets, reduction="sum", ignore_index=-100)
    shares = chunked_cross_entropy(hidden, made, targets, rows)
    torch.testing.assert_close(shares.double(), whole, rtol=1e-5, atol=1e-5)
    wanted = gradients(3 * whole, hidden, *made.parameters())
    for found, expected in zip(gradients(3 * shares, hidden, *made.parameters()), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_tied_table_gets_the_gradient_of_both_its_uses() -> None:
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(9, 4, dtype=torch.float64))
    tied = LanguageModelHead(HeadSpec(), 4, table)
    ids, targets = torch.randint(9, (10,)), some_targets(10, 9)
    whole = cross_entropy(F.embedding(ids, table) @ table.T, targets)
    shares = chunked_cross_entropy(F.embedding(ids, table), tied, targets, 3)
    torch.testing.assert_close(gradients(shares, table)[0], gradients(whole, table)[0], rtol=1e-5, atol=1e-6)


def test_a_frozen_head_still_passes_the_gradient_on() -> None:
    made = head(7, 4).requires_grad_(False)
    hidden, targets = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.arange(6)
    expected = gradients(cross_entropy(made(hidden), targets), hidden)[0]
    torch.testing.assert_close(gradients(chunked_cross_entropy(hidden, made, targets, 4), hidden)[0], expected)


def test_without_gradients_nothing_is_kept() -> None:
    made = head(7, 4)
    hidden, targets = torch.randn(6, 4, dtype=torch.float64), torch.arange(6)
    with torch.no_grad():
        loss = chunked_cross_entropy(hidden, made, targets, 4)
    assert not loss.requires_grad
    torch.testing.assert_close(loss.double(), cross_entropy(made(hidden), targets).double(), rtol=1e-5, atol=1e-5)


def test_shares_in_bf16_are_as_good_as_the_whole_in_bf16() -> None:
    torch.manual_seed(0)
    made, hidden, targets = head(50, 16, torch.float32), torch.randn(64, 16, requires_grad=True), some_targets(64, 50)
    exact = cross_entropy(made(hidden), targets)
    with torch.autocast("cpu", torch.bfloat16):
        whole, shares = cross_entropy(made(hidden), targets), chunked_cross_entropy(hidden, made, targets, 7)
    assert abs(shares - exact) <= 2 * abs(whole - exact) + 0.01 * abs(exact)
    exact_grads = gradients(exact, hidden, made.weight)
    for found, usual, wanted in zip(
        gradients(shares, hidden, made.weight), gradients(whole, hidden, made.weight), exact_grads, strict=True
    ):
        assert found.dtype == torch.float32
        assert (found - wanted).norm() <= 2 * (usual - wanted).norm()


def test_memory_does_not_grow_with_the_number_of_positions() -> None:
    # The head's outputs are seen as they are made: none has more than 5 rows of logits.
    made = head(11, 4)
    seen: list[int] = []
    made.register_forward_hook(lambda module, args, output: seen.append(output.shape[0]))
    hidden = torch.randn(23, 4, dtype=torch.float64, requires_grad=True)
    chunked_cross_entropy(hidden, made, torch.zeros(23, dtype=torch.long), 5).backward()
    assert seen == [5, 5, 5, 5, 3]


@pytest.mark.parametrize("most_logits", [1 << 24, 1], ids=["whole", "shares"])
def test_the_task_sums_nats_over_real_targets(most_logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_loss, "_MOST_LOGITS", most_logits)
    model = build(Model(width=8, num_layers=1, context_length=6, frontend=Text(vocab_size=5))).double()
    ids = torch.randint(5, (3, 6))
    targets = torch.randint(5, (3, 6))
    targets[1, 4:] = targets[2, 2:] = -100
    batch = Batch.of(Signal(ids, lengths=torch.tensor([6, 4, 2])), targets)
    loss, count = build_task(NextToken()).summed_loss(model, batch), batch.num_targets
    assert count == 12
    expected = sum(
        -model(ids[i : i + 1, :n])[0].log_softmax(-1)[0, j, targets[i, j]]
        for i, n in enumerate((6, 4, 2))
        for j in range(n)
    )
    torch.testing.assert_close(loss.double(), torch.as_tensor(expected), rtol=1e-5, atol=1e-5)


def test_the_tap_sees_every_branch() -> None:
    model = build(Model(width=8, num_layers=2, context_length=6, frontend=Text(vocab_size=5)))
    batch = Batch.of(torch.randint(5, (2, 6)), torch.randint(5, (2, 6)))
    tap = Recorder("output")
    build_task(NextToken()).summed_loss(model, batch, tap)
    branches = {f"blocks.{i}.branches.{j}" for i in range(2) for j in range(2)}
    assert {place.module for place in tap.records} == {"frontend", *branches, "norm", "head"}


def test_figures_are_those_of_the_definitions() -> None:
    figures = build_task(NextToken()).figures(
        Totals(math.log(2) * 30, 10), Scale(characters_per_token=4, bytes_per_token=5)
    )
    assert figures == pytest.approx(
        {
            "loss": 3 * math.log(2),
            "perplexity": 8,
            "bits_per_token": 3,
            "bits_per_character": 0.75,
            "bits_per_byte": 0.6,
        }
    )


def test_figures_of_nothing_and_of_too_much_are_no_error() -> None:
    task = build_task(NextToken())
    assert math.isnan(task.figures(Totals(0.0, 0), Scale(1, 1))["loss"])
    assert task.figures(Totals(1e6, 1), Scale(1, 1))["perplexity"] == math.inf


@pytest.mark.parametrize(("classes", "smoothing"), [(2, 0.1), (7, 0.5), (3, 0.0)])
def test_no_logits_have_a_lower_loss_than_the_entropy_of_the_smoothed_target(classes: int, smoothing: float) -> None:
    probabilities = torch.full((classes,), smoothing / classes, dtype=torch.float64)
    probabilities[0] += 1 - smoothing
    best = cross_entropy(probabilities.clamp(min=1e-30).log()[None], torch.tensor([0]), smoothing)
    assert smoothed_entropy(classes, smoothing) == pytest.approx(best.item(), abs=1e-12)
