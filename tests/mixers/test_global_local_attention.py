"""Global and local attention: Longformer's layer, outputs and gradients, and dense attention under the same mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.mixers.modules import WIDTH, applied, built, some
from torch import Tensor, nn
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from qkv.costs.cost import cost
from qkv.layers.context import Context
from qkv.ops.attention import reference
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import global_local
from qkv.ops.masks import Explicit, Sites
from qkv.spec.mixers.sparse_attention import GlobalLocalAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions


class Published(nn.Module):
    """Longformer's layer with the weights of ours; rows are padded to a multiple of its window, as its model does."""

    def __init__(self, ours: Any):
        super().__init__()
        part = ours.spec
        config = LongformerConfig(
            hidden_size=ours.width,
            num_attention_heads=part.num_heads,
            attention_window=[2 * part.window],
            attention_probs_dropout_prob=0.0,
        )
        self.window = 2 * part.window
        self.layer = LongformerSelfAttention(config, 0).double()
        names = ("query", "key", "value", "query_global", "key_global", "value_global")
        for name, weight, bias in zip(names, self._joined(ours, "weight"), self._joined(ours, "bias"), strict=True):
            getattr(self.layer, name).load_state_dict({"weight": weight, "bias": bias})
        self.output = nn.Linear(ours.width, ours.width).double()
        self.output.load_state_dict(ours.output.state_dict())

    @staticmethod
    def _joined(ours: Any, kind: str) -> list[Tensor]:
        maps = (getattr(m, kind).data for m in (ours.qkv, ours.global_query, ours.global_key_value))
        return list(torch.cat(list(maps)).chunk(6))

    def forward(self, x: Tensor, real: Tensor, everywhere: Tensor) -> Tensor:
        rest = -x.shape[1] % self.window
        x, real, everywhere = (
            nn.functional.pad(t, (0, 0, 0, rest) if t.dim() == 3 else (0, rest))
            for t in (x, real.long(), everywhere.long())
        )
        mask = (10000.0 * everywhere - 10000.0 * (1 - real)).double()
        hidden, chosen = mask < 0, mask > 0
        out = self.layer(x, mask, hidden, chosen, bool(chosen.any()))[0]
        return self.output(out)[:, : x.shape[1] - rest]


def drawn(**fields: Any) -> Any:
    return built(GlobalLocalAttention(**{"num_heads": 3, "window": 3, **fields}))


@pytest.mark.parametrize(("window", "few"), [(2, 3), (3, 1), (4, 2), (5, 7)])
def test_outputs_and_gradients_equal_those_of_the_published_layer(
    window: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several blocks of queries, rows of different lengths.

    Their gradient of a row of padding alone is NaN; ours is held by the battery.
    """
    monkeypatch.setattr(GlobalLocalAttention, "block", property(lambda part: max(part.window, 4)))
    ours = drawn(window=window, num_global=few)
    theirs, lengths = Published(ours), torch.tensor([19, 12, 8])
    places = torch.arange(19)
    real = places < lengths[:, None]
    x, y = some(3, 19).requires_grad_(), some(3, 19).requires_grad_()
    seen, expected = applied(ours, x, lengths), theirs(y, real, (places < few) & real)
    # Their softmax is in float32.
    torch.testing.assert_close(seen[real], expected[real], rtol=1e-5, atol=1e-6)
    seen[real].pow(2).sum().backward()
    expected[real].pow(2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
    grads = torch.cat([m.weight.grad for m in (ours.qkv, ours.global_query, ours.global_key_value)])
    names = ("query", "key", "value", "query_global", "key_global", "value_global")
    torch.testing.assert_close(
        grads, torch.cat([getattr(theirs.layer, name).weight.grad for name in names]), rtol=1e-4, atol=1e-5
    )


def test_a_row_s_own_prefix_is_global() -> None:
    """As a question before its text; one row has none."""
    ours = drawn(num_global=None, window=2)
    theirs, prefix, x = Published(ours), torch.tensor([4, 1, 0]), some(3, 13)
    seen = ours(x, Context(torch.arange(13)[None], prefix=prefix))[0]
    everywhere = torch.arange(13) < prefix[:, None]
    torch.testing.assert_close(seen, theirs(x, torch.ones(3, 13), everywhere), rtol=1e-5, atol=1e-6)


def test_without_a_prefix_it_is_a_window() -> None:
    ours, x = drawn(num_global=None, window=2), some(3, 13)
    torch.testing.assert_close(
        applied(ours, x), Published(ours)(x, torch.ones(3, 13), torch.zeros(3, 13)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("hidden", [False, True])
def test_positions_may_lie_anywhere(hidden: bool) -> None:
    """A window counts distances of positions.

    Where these are in no order, the answer follows them, and what the caller hides is hidden.
    """
    ours, count = drawn(num_global=2), 70
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    visible = torch.rand(2, count, count, generator=torch.Generator().manual_seed(2)) > 0.4 if hidden else None
    mixed_up = None if visible is None else visible[:, order][:, :, order]
    x = some(2, count)
    in_order = ours(x, Context(torch.arange(count)[None], visible=visible))[0]
    seen = ours(x[:, order], Context(order[None], visible=mixed_up))[0]
    torch.testing.assert_close(seen, in_order[:, order])


@pytest.mark.parametrize("block", [1, 4, 64])
def test_the_blocks_are_dense_attention_under_the_mask(block: int) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, 21, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    places = torch.arange(21)
    chosen = (places < 2)[None]
    sites = Sites(places[None], places[None])
    seen = global_local.windowed(q, k, v, global_local.place(chosen, 2, sites, True), 3, block, (0.5, 0.0))
    table = ((places[:, None] - places).abs() <= 3) | (places < 2)
    torch.testing.assert_close(
        seen, reference.attention(q, k, v, AttentionProblem(Explicit(table[None, None]), sites, 0.5))
    )


def test_cost_follows_the_window_and_not_the_length() -> None:
    part = GlobalLocalAttention(window=64, num_heads=2)
    model = Model(
        width=32,
        frontend=Text(vocab_size=9, positions=NoPositions()),
        blocks=(Block(branches=(part,)),),
        context_length=4096,
    )
    flops = [cost(model, 1, length).total.attended for length in (1024, 2048, 4096)]
    assert flops[1] / flops[0] == pytest.approx(2, rel=0.05)
    assert flops[2] / flops[1] == pytest.approx(2, rel=0.05)


def test_it_works_in_half_precision_and_drops_in_training_alone() -> None:
    ours, x = (
        built(GlobalLocalAttention(num_heads=3, window=2, dropout=0.5), dtype=torch.float32).eval(),
        some(dtype=torch.float32),
    )
    expected = applied(ours, x)
    with torch.autocast("cpu", torch.bfloat16):
        seen = applied(ours, x)
    assert (seen.float() - expected).norm() < 0.03 * expected.norm()
    assert expected.shape == (2, 7, WIDTH)
    assert not torch.allclose(applied(ours.train(), x), expected)
