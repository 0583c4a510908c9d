"""Influence of positions on positions: norms of blocks of a float64 Jacobian by differences, for every mixer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contracts.samples import BIDIRECTIONAL, SAMPLES, describe
from tests.contracts.subjects import OneBranch
from tests.models.stacks import ids, model, seven
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.lens.views.influence_maps import influence_maps, measure
from qkv.models.build import build
from qkv.ops.selection.choices import references
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Text
from qkv.spec.models.cross import CrossAttention
from qkv.system.errors import UserError

PARTS = {describe(part): part for part in (*(parts[0] for parts in SAMPLES.values()), *BIDIRECTIONAL)}
COUNT, STEP = 5, 1e-5
SURROGATE = ("collision_attention",)
"""Kinds whose gradient is by definition not that of their output."""


def by_differences(subject: OneBranch, x: Tensor) -> Tensor:
    """‖∂ y_t / ∂ x_s‖_F (N, N) of a row x (1, N, D), by central differences; all changed rows are read at once."""
    changes = STEP * torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape[1:])
    with torch.no_grad():
        slopes = (subject.whole(x + changes) - subject.whole(x - changes)) / (2 * STEP)
    blocks = slopes.view(COUNT, -1, COUNT, slopes.shape[-1])  # (s, feature, t, feature)
    return blocks.square().sum((1, 3)).sqrt().T


@pytest.mark.parametrize("name", PARTS)
def test_influence_equals_a_jacobian_by_differences(name: str) -> None:
    part = PARTS[name]
    subject = OneBranch(part)
    x = subject.inputs(1, COUNT, seed=2)
    leaf = x.clone().requires_grad_()
    with references():
        exact = measure(subject.whole(leaf), leaf)
        expected = by_differences(subject, x)
    assert exact.probes == 0
    if part.kind not in SURROGATE:
        torch.testing.assert_close(exact.norms[0], expected, rtol=1e-5, atol=1e-7)
    if part.causal:
        assert not exact.norms[0].triu(1).any()
    else:
        assert exact.norms[0].triu(1).any()


def test_probes_estimate_the_same_within_their_error() -> None:
    subject = OneBranch(PARTS[next(iter(PARTS))])
    leaf = subject.inputs(2, COUNT).requires_grad_()
    output = subject.whole(leaf)
    exact, estimate = measure(output, leaf), measure(output, leaf, 400)
    assert estimate.probes == 400
    difference = (estimate.norms - exact.norms).abs()
    assert (difference <= 4 * estimate.error + 1e-12).all()
    seen = exact.norms > 0
    assert (estimate.error[seen] / exact.norms[seen] < 1.2 / (2 * 400) ** 0.5).all()
    assert difference.sum() > 0


def test_every_mixer_of_a_model_is_measured_side_by_side() -> None:
    m = build(seven(num_layers=2)).double()
    found = influence_maps(m, ids(2, 6))
    assert [(each.layer, each.part) for each in found] == [
        (layer, branch.kind) for layer in (0, 1) for branch in m.spec.layers[0].branches if branch.mixes
    ]
    for each in found:
        assert each.norms.shape == (2, 6, 6)
        assert not each.norms.triu(1).any()
        assert (each.norms.diagonal(dim1=1, dim2=2) > 0).all()
    assert len(influence_maps(m, ids(2, 6), branches=("blocks.1.branches.*",))) == len(found) / 2
    (only,) = influence_maps(m, ids(2, 6), branches=("blocks.0.branches.5",), positions=[-1])
    torch.testing.assert_close(only.norms, found[[f.path for f in found].index(only.path)].norms[:, -1:])


def test_a_branch_is_measured_alone() -> None:
    """The function from the input of the branch to its output: layers below and residual connections have no part."""
    m = build(model(num_layers=2)).double().eval()
    (found,) = influence_maps(m, ids(1, COUNT), branches=("blocks.1.branches.0",))
    slot: Any = m.blocks[1].branches[0]  # type: ignore[index, union-attr]
    tap = dict[str, Any]()
    slot.body.register_forward_pre_hook(lambda module, inputs: tap.update(x=inputs[0], context=inputs[1]))
    with torch.no_grad():
        m(ids(1, COUNT))
    jacobian: Any = torch.autograd.functional.jacobian(lambda x: slot.body(x, tap["context"])[0], tap["x"])
    torch.testing.assert_close(found.norms[0], jacobian[0, :, :, 0].square().sum((1, 3)).sqrt())


def test_cross_attention_is_measured_over_the_memory() -> None:
    encoder = Encoder(frontend=Text(vocab_size=9), blocks=(Block(branches=(Attention(mask=Full()), FeedForward())),))
    reads = Block(branches=(Attention(), CrossAttention(num_heads=2)))
    m = build(model(reads, num_layers=2, encoder=encoder)).double()
    source = Signal(ids(2, 5) % 9, lengths=torch.tensor([5, 3]))
    found = influence_maps(m, ids(2, 4), source=source)
    assert [(each.stack, each.kind, tuple(each.norms.shape)) for each in found] == [
        ("encoder", "self", (2, 5, 5)),
        *[("model", "self", (2, 4, 4)), ("model", "cross", (2, 4, 5))] * 2,
    ]
    assert (found[2].norms[0] > 0).all()
    assert not found[2].norms[1, :, 3:].any()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"probes": -1}, "the number of probes is -1"),
        ({"positions": [6]}, "position 6 is outside the row"),
        (
            {"branches": ("blocks.7.branches.0",)},
            "no branch that mixes positions or reads a memory at blocks.7.branches.0",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        influence_maps(build(model()), ids(1, 6), **options)
