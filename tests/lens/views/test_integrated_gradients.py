"""Integrated gradients: complete, and equal to a Riemann sum; rollout and flow beside ablation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.lens.views.planted import planted
from tests.lens.views.planted import rows as planted_rows
from tests.models.stacks import ids, model, seven
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.lens.capture.edits import replace
from qkv.lens.views.importance import NOT_EXPLANATIONS, flow, importance, rank_correlation
from qkv.lens.views.integrated_gradients import gauss_legendre, integrated_gradients
from qkv.models.build import build
from qkv.models.edit.quantize import quantize
from qkv.models.rollout import rollout
from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import ClassificationHead, RegressionHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.models.quantization import Quantization
from qkv.spec.parts import NoNorm
from qkv.system.errors import UserError

ENCODER = Encoder(frontend=Text(vocab_size=9), blocks=(Block(branches=(Attention(mask=Full()), FeedForward())),))
FORMS: dict[str, Model] = {
    "decoder": model(num_layers=2),
    "seven mixers": seven(),
    "classifier": model(num_layers=2, head=ClassificationHead(num_classes=3)),
    "regression": model(head=RegressionHead()),
    "encoder–decoder": model(Block(branches=(Attention(), CrossAttention(num_heads=2))), encoder=ENCODER),
}


def made(name: str) -> Transformer:
    m = build(FORMS[name]).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in m.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return m


@pytest.mark.parametrize("baseline", ["zero", "mean"])
@pytest.mark.parametrize("name", FORMS)
def test_the_sum_is_the_difference_of_the_outputs(name: str, baseline: Any) -> None:
    m = made(name)
    source = ids(2, 5, 3) % 9 if m.encoder else None
    found = integrated_gradients(m, ids(), 0, baseline=baseline, source=source)
    assert found.complete
    assert found.error.max() <= 1e-3
    with torch.no_grad():
        output = m.eval()(ids(), memory=None if source is None else m.encode(source))[0]
    torch.testing.assert_close(found.output, output[:, 0] if output.dim() == 2 else output[:, -1, 0])
    torch.testing.assert_close(found.values.sum(1), found.output - found.baseline_output, rtol=1e-3, atol=1e-9)
    assert found.baseline == {"zero": "zero vectors", "mean": "mean vector of all positions"}[baseline]


def test_values_equal_a_riemann_sum() -> None:
    m = made("decoder").eval()
    other = ids(2, 9, 5)
    found = integrated_gradients(m, ids(), 4, position=3, baseline=other)
    with torch.no_grad():
        x, b = (m.embed(Signal(rows))[0] for rows in (ids(), other))
    total, count = torch.zeros(2, 9, dtype=torch.float64), 400
    for i in range(count):
        y = (b + (i + 0.5) / count * (x - b)).requires_grad_()
        output = m(ids(), tap=replace("frontend.output", y))[0][:, 3, 4]
        total += (torch.autograd.grad(output.sum(), y)[0] * (x - b)).sum(-1) / count
    torch.testing.assert_close(found.values, total, rtol=1e-3, atol=1e-5)
    assert not found.values[:, 4:].any()


def test_sharp_attention_is_complete_in_double_precision() -> None:
    m = made("decoder").eval()
    with torch.no_grad():
        for name, parameter in m.named_parameters():
            if name.endswith("qkv.weight"):
                parameter *= 12  # attention moves between positions within a small part of the path
    exact = integrated_gradients(m, ids(), 4, 3)
    assert exact.complete
    assert exact.steps > 64
    assert str(exact).endswith(f"after {exact.steps} gradients; baseline: mean vector of all positions")
    single = copy.deepcopy(m).to(torch.float32)
    found = integrated_gradients(single, ids(), 4, 3)
    torch.testing.assert_close(found.values, exact.values, rtol=1e-3, atol=1e-4)
    assert next(single.parameters()).dtype == torch.float32
    with single.tapped("head.output") as recorder:  # the tap of the block sees the passes of the copy
        integrated_gradients(single, ids(), 4, 3, most=32)
    assert {value.dtype for _, value in recorder} == {torch.float64}


def test_narrow_weights_are_complete() -> None:
    """Products with weights of few bits round x where no gradient is taken; both have to be of one function."""
    m = build(model(num_layers=2))
    quantize(m, Quantization(bits=8))
    found = integrated_gradients(m, ids(), 4, 3)
    assert found.complete


def test_a_source_has_values_of_its_own() -> None:
    m = made("encoder–decoder")
    found = integrated_gradients(m, ids(2, 3), 1, source=ids(2, 5) % 9, over="source")
    assert found.values.shape == (2, 5)
    assert found.complete
    with pytest.raises(UserError, match="needs an encoder and a source"):
        integrated_gradients(made("decoder"), ids(), 1, over="source")


def test_the_quadrature_is_exact_for_polynomials() -> None:
    nodes, weights = gauss_legendre(5)
    for power in range(10):
        assert float((weights * nodes**power).sum()) == pytest.approx(1 / (power + 1))


def test_ablation_is_the_fall_of_the_logit() -> None:
    m = made("decoder").eval()
    found = importance(m, ids(), 4, baseline="mean")
    with torch.no_grad():
        x = m.embed(Signal(ids()))[0]
        mean = x.flatten(0, 1).mean(0)
        for s in (0, 8):
            changed = torch.cat((x[:, :s], mean.expand(2, 1, -1), x[:, s + 1 :]), 1)
            logits = m(ids(), tap=replace("frontend.output", changed))[0]
            torch.testing.assert_close(found.ablation[:, s], (m(ids())[0] - logits)[:, -1, 4])
    assert found.sentence == NOT_EXPLANATIONS
    assert "Jain & Wallace 2019" in NOT_EXPLANATIONS
    assert found.agreement.keys() == {"integrated gradients", "rollout", "flow"}
    assert all((each.abs() <= 1).all() for each in found.agreement.values())


def test_positions_with_the_highest_gradients_are_taken_out() -> None:
    m = made("decoder").eval()
    whole, some = importance(m, ids(), 4), importance(m, ids(), 4, ablated=3)
    measured = ~some.ablation.isnan()
    assert measured.sum(1).tolist() == [3, 3]
    torch.testing.assert_close(some.ablation[measured], whole.ablation[measured])
    highest = whole.gradients.values.abs().amax(0).topk(3).indices
    assert measured[0].nonzero()[:, 0].tolist() == sorted(highest.tolist())
    columns = measured[0].nonzero()[:, 0]
    expected = rank_correlation(whole.gradients.values[:, columns], whole.ablation[:, columns])
    torch.testing.assert_close(some.agreement["integrated gradients"], expected)


def test_the_measures_point_to_the_token_that_is_copied() -> None:
    rows = planted_rows()[:, :9]  # the ninth token is the first once more; the second is copied
    found = importance(planted(), rows, int(rows[0, 1]), baseline="zero")
    assert found.ablation[0].argmax() == 1
    assert found.gradients.values[0].argmax() == 1
    assert found.rollout is not None
    assert found.rollout[0].argmax() == 0  # the sink, whose head adds nothing


def test_rollout_and_flow_need_weights() -> None:
    found = importance(build(seven()), ids(), 1)
    assert found.rollout is not None
    bare = model(Block(branches=(FeedForward(),)), norm=NoNorm())
    other = importance(build(bare), ids(), 1)
    assert other.rollout is None
    assert other.flow is None


def test_flow_equals_the_smallest_cut() -> None:
    """Of one layer, flow is the capacity itself; of two, the smallest cut of all that separate both ends."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.rand(1, 2, 4, 4, generator=generator, dtype=torch.float64).softmax(-1) for _ in range(2)]
    torch.testing.assert_close(flow(weights[:1], [2]), rollout(weights[:1])[:, 2])
    low, high = ((each[0].mean(0) + torch.eye(4)) / 2 for each in weights)
    for end in range(4):
        cuts = [_cut(high[2], low[:, end], kept) for kept in range(16)]
        assert float(flow(weights, [2])[0, end]) == pytest.approx(min(*cuts, 1.0))


def _cut(out: Tensor, into: Tensor, middle: int) -> float:
    """Capacity of the cut with the middle nodes whose bit is set on the side of the source."""
    return sum(float(into[i]) if middle >> i & 1 else float(out[i]) for i in range(4))


def test_ranks_are_correlated() -> None:
    a = torch.tensor([[1.0, 5.0, 3.0, 9.0]])
    torch.testing.assert_close(rank_correlation(a, a**3), torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(rank_correlation(a, -a), -torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": 13}, "output 13 does not exist; allowed: 0 to 12"),
        ({"target": 1, "position": 9}, "position 9 is outside the row"),
        ({"target": 1, "baseline": "black"}, "there is no baseline 'black'"),
        ({"target": 1, "baseline": ids(2, 4)}, "the baseline has the shape"),
    ],
)
def test_what_has_no_meaning_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        integrated_gradients(build(model()), ids(), **options)
