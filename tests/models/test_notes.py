"""The worked examples, digit for digit, and common wrong statements: what they give, and what is right here."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.norms import build_norm
from qkv.mixers.registry import build_branch
from qkv.models.build import build
from qkv.models.families.presets import preset
from qkv.models.transformer import Transformer
from qkv.ops.attention import reference
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import blockwise
from qkv.ops.masks import Blocks, Causal, Full, Prefix, Sites
from qkv.spec import branches, parts
from qkv.spec.model import Block, Model, Text

WORDS = ("the₁", "cat", "sat", "on", "the₂", "mat")
QUERY = torch.tensor([0.9, 0.1, 0.2, 0.3])
KEYS = torch.tensor([[0, 0, 0, 1], [1, 0, 0.3, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])
VALUES = torch.tensor(
    [[0.1, 0, 0, 0.8], [0.9, 0, 0.1, 0.7], [0, 0.9, 0, 0.3], [0, 0, 0.5, 0], [0, 0, 0, 0.9], [0, 0, 0.9, 0.6]]
)


def rounded(values: Tensor, digits: int) -> list[float]:
    return [round(v, digits) + 0.0 for v in values.flatten().tolist()]


def one_query(scale: float) -> AttentionProblem:
    """A single query that sees all six words."""
    return AttentionProblem(Full(), Sites(torch.tensor([[5]]), torch.arange(6)[None], aligned=True), scale)


def attended(scale: float) -> tuple[Tensor, Tensor]:
    """(weights, output) of the worked example."""
    q, k, v = QUERY[None, None, None], KEYS[None, None], VALUES[None, None]
    return reference.weights(q, k, one_query(scale)), reference.attention(q, k, v, one_query(scale))


def test_the_worked_example_of_attention_over_six_words() -> None:
    scores = KEYS @ QUERY
    assert rounded(scores, 2) == [0.30, 0.96, 0.10, 0.0, 0.30, 0.20]
    assert rounded(scores / math.sqrt(4), 2) == [0.15, 0.48, 0.05, 0.0, 0.15, 0.10]
    weights, output = attended(1 / math.sqrt(4))
    assert rounded(weights, 2) == [0.16, 0.23, 0.15, 0.14, 0.16, 0.16]
    assert WORDS[int(weights.argmax())] == "cat"
    assert output.flatten().tolist() == pytest.approx([0.223, 0.135, 0.237, 0.574], abs=0.006)


def test_the_printed_output_of_the_worked_example_comes_from_the_rounded_weights() -> None:
    printed = torch.tensor([0.16, 0.23, 0.15, 0.14, 0.16, 0.16])
    assert (printed @ VALUES).tolist() == pytest.approx([0.223, 0.135, 0.237, 0.574], abs=1e-6)
    _, output = attended(0.5)
    assert rounded(output, 3) == [0.221, 0.133, 0.233, 0.576]


def test_the_dot_products_of_chasing_cat_and_mouse() -> None:
    chasing = torch.tensor([-2, 3, 2.5, -1, 1.5, -2])
    cat, mouse = torch.tensor([-1.8, 2.8, 3, 0.2, 2.5, -1.5]), torch.tensor([-1.5, -2, 2.8, -0.5, -2, 3])
    assert rounded(torch.stack((chasing @ cat, chasing @ mouse)), 4) == [26.05, -4.5]


def test_attention_matrices_of_eight_heads_at_1024_tokens_take_33_5_megabytes_a_layer() -> None:
    steps = torch.arange(1024)[None]
    q = torch.zeros(1, 8, 1024, 1)
    weights = reference.weights(q, q, AttentionProblem(Full(), Sites(steps, steps, aligned=True), 1.0))
    assert weights.numel() * weights.element_size() == 33_554_432


def causal_problem(count: int) -> AttentionProblem:
    steps = torch.arange(count)[None]
    return AttentionProblem(Causal(), Sites(steps, steps, aligned=True), 1.0)


def test_a_mask_multiplied_into_the_logits_turns_hidden_keys_into_certain_ones_and_zeros_into_nan() -> None:
    """Wrong: logits · -∞. A negative logit becomes +∞ and takes all the weight; 0 becomes NaN. Right: + (-∞)."""
    logits = torch.tensor([[1.0, -2.0], [0.5, 1.0]])
    after = torch.tensor([[1.0, -torch.inf], [1.0, 1.0]])
    assert (logits * after)[0, 1] == torch.inf
    assert (torch.zeros(2, 2) * after)[0, 1].isnan()
    assert (logits * after).softmax(-1)[0].isnan().any()
    q, k = torch.eye(2)[None, None], logits.t()[None, None]
    weights = reference.weights(q, k, causal_problem(2))[0, 0]
    assert weights[0].tolist() == [1.0, 0.0]
    assert weights[1].tolist() == pytest.approx(logits[1].softmax(-1).tolist())


def test_a_causal_mask_hides_the_key_that_comes_after_the_query_and_not_the_one_before() -> None:
    """Wrong: -∞ where the query's index i is above the key's j, which hides the past and shows the future."""
    shown = causal_problem(3).sites.visible(Causal(), 1)[0, 0]
    query, key = torch.arange(3)[:, None], torch.arange(3)[None]
    assert torch.equal(shown, ~(key > query))
    assert not torch.equal(shown, ~(query > key))


def test_true_minus_infinity_works_where_a_row_without_keys_is_handled() -> None:
    """Wrong: -1e9 in its place. It overflows fp16, and where all keys are hidden it shows them all alike."""
    assert torch.tensor(-1e9).half().item() == -torch.inf
    hidden = torch.tensor([0.3, -1.0, 2.0])
    assert rounded((hidden - 1e9).softmax(-1), 3) == [0.333, 0.333, 0.333]
    assert (hidden - torch.inf).softmax(-1).isnan().all()
    steps = torch.arange(3)[None]
    blind = AttentionProblem(Blocks(1) & Prefix(1), Sites(steps, steps, aligned=True), 1.0)
    q = torch.randn(1, 1, 3, 4, requires_grad=True)
    out = reference.attention(q, q, torch.ones(1, 1, 3, 4), blind)
    assert out[0, 0, :, 0].tolist() == [1.0, 0.0, 0.0]
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert bool(grad.isfinite().all())


def test_scores_are_scaled_by_the_head_width_and_not_by_the_embedding_width() -> None:
    """Wrong: 1/√D. With 8 heads the scores' deviation is then 1/√8 of 1, and the weights are nearly uniform."""
    torch.manual_seed(0)
    width, heads = 256, 8
    attention = build_branch(branches.Attention(num_heads=heads), width)
    q, k = torch.randn(2, 1, heads, 200, width // heads)
    right, wrong = q @ k.mT * attention.scale, q @ k.mT / math.sqrt(width)  # type: ignore[operator]
    assert float(right.std()) == pytest.approx(1.0, abs=0.02)
    assert float(wrong.std()) == pytest.approx(1 / math.sqrt(heads), abs=0.02)


def test_batch_norm_is_per_feature_over_the_real_tokens_and_not_over_everything() -> None:
    """Wrong: ``x.mean(keepdim=True)``, one number for all features, padding included."""
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1.0, 10.0, 100.0]
    ) + torch.tensor([0.0, 5.0, -7.0])
    real = torch.arange(4) < torch.tensor([4, 2])[:, None]
    x = torch.where(real[..., None], x, 1e4)
    norm = build_norm(parts.BatchNorm(), 3)
    seen = norm(x, Context(torch.arange(4)[None], torch.tensor([4, 2])))[real].detach()
    assert seen.mean(0).tolist() == pytest.approx([0.0] * 3, abs=1e-5)
    assert seen.std(0, correction=0).tolist() == pytest.approx([1.0] * 3, abs=1e-3)
    wrong = ((x - x.mean(dim=(0, 1, 2), keepdim=True)) / x.std())[real]
    assert wrong.std(0).max() < 0.1
    assert wrong.mean(0).abs().max() > 0.5


def test_the_softmax_of_four_scores_is_not_the_printed_one() -> None:
    weights = torch.tensor([2.1, 0.3, -0.5, 1.8]).softmax(-1)
    assert rounded(weights, 3) == [0.505, 0.083, 0.038, 0.374]
    assert (weights - torch.tensor([0.58, 0.10, 0.04, 0.28])).abs().max() > 0.07


def test_the_softmax_of_three_similarities_is_not_the_printed_one_at_any_scale() -> None:
    similarities, printed = torch.tensor([4.0, 3.0, -1.0]), torch.tensor([0.70, 0.26, 0.04])
    assert rounded(similarities.softmax(-1), 3) == [0.727, 0.268, 0.005]
    scales = torch.linspace(0, 5, 5001)[:, None]
    assert ((scales * similarities).softmax(-1) - printed).abs().amax(-1).min() > 0.02, "rounding would explain 0.005"


def test_the_forward_pass_of_the_largest_gpt_over_its_context_is_717_teraflop() -> None:
    """2 · parameters · tokens. Wrong: 700 GFLOP, a thousand times less."""
    assert pytest.approx(717e12, rel=1e-3) == 2 * 175e9 * 2048
    with torch.device("meta"):
        counted = sum(p.numel() for p in Transformer(preset("gpt3")).parameters())
    assert 2 * counted * 2048 == pytest.approx(717e12, rel=3e-3)


def test_an_encoder_block_has_a_norm_for_each_of_its_two_branches() -> None:
    """Both orders are options; a single norm belongs to the parallel block alone."""

    def norms(order: str) -> int:
        block = Block(branches=(branches.Attention(), branches.FeedForward()), order=order)  # type: ignore[arg-type]
        built = build(Model(width=8, frontend=Text(vocab_size=5), blocks=(block,), norm=parts.NoNorm()))
        return sum(type(module).__name__ == "LayerNorm" for module in built.modules())

    assert {order: norms(order) for order in ("pre", "post", "sandwich", "res_post", "parallel")} == {
        "pre": 2,
        "post": 2,
        "sandwich": 4,
        "res_post": 2,
        "parallel": 1,
    }


def test_values_are_as_wide_as_keys_by_default_and_free_otherwise() -> None:
    """Wrong: d_v = d with d_k = d / heads, which would make the output H times too wide."""
    assert branches.Attention(num_heads=8).dims(512) == (64, 64)
    assert branches.Attention(num_heads=8, value_dim=512).dims(512) == (64, 512)
    narrow, wide = (build_branch(branches.Attention(num_heads=8, value_dim=v), 64) for v in (None, 64))
    assert narrow.output.weight.shape == (64, 64)  # type: ignore[union-attr]
    assert wide.output.weight.shape == (64, 512)  # type: ignore[union-attr]


def online_without_maximum(scores: Tensor, values: Tensor) -> Tensor:
    """The derivation as it is often printed: raw exponentials are added up key by key."""
    above, below = torch.zeros(()), torch.zeros(())
    for s, v in zip(scores, values, strict=True):
        above, below = above + s.exp() * v, below + s.exp()
    return above / below


@pytest.mark.parametrize("shift", [0.0, 100.0, -200.0])
def test_the_running_maximum_is_what_keeps_online_softmax_finite(shift: float) -> None:
    """Wrong: raw exponentials, which overflow fp32 from a score of 89 on and are all 0 below -104."""
    scores, values = torch.tensor([1.0, 3.0, 2.0, 0.5]) + shift, torch.tensor([1.0, 2.0, 3.0, 4.0])
    expected = float((scores.double().softmax(-1) * values).sum())
    places = Sites(torch.tensor([[3]]), torch.arange(4)[None], aligned=True)
    q, k, v = torch.ones(1, 1, 1, 1), scores[None, None, :, None], values[None, None, :, None]
    assert blockwise.attention(q, k, v, AttentionProblem(Full(), places, 1.0), block=1).item() == pytest.approx(
        expected, rel=1e-5
    )
    assert online_without_maximum(scores, values).isfinite() == (shift == 0.0)
