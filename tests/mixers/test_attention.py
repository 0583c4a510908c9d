"""Multi-head attention against torch's module, single heads, and itself with repeated keys and values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.mixers.modules import WIDTH, applied, built, some
from tests.ops.clock import forget_choices
from torch import Tensor, nn

from qkv.ops.attention import choose
from qkv.ops.selection.choices import Choice
from qkv.spec.branches import Attention
from qkv.spec.errors import SpecError
from qkv.spec.masks import Blocks, Causal, Full, Prefix, Strided, Window
from qkv.spec.mixers.lsh_attention import CollisionAttention
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import LayerNorm, NoNorm, RMSNorm, Rope
from qkv.state.tree import nbytes, tensors


def torch_attention(ours: Any, heads: int) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(WIDTH, heads, bias=True, batch_first=True).double()
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = ours.qkv.weight.data.clone(), ours.qkv.bias.data.clone()
    theirs.out_proj.load_state_dict(ours.output.state_dict())
    return theirs


@pytest.mark.parametrize("heads", [1, 3, 12])
@pytest.mark.parametrize("causal", [True, False])
def test_it_equals_torch_s_multi_head_attention_with_gradients(heads: int, causal: bool) -> None:
    ours = built(Attention(num_heads=heads, mask=Causal() if causal else Full()))
    theirs = torch_attention(ours, heads)
    x, y = some().requires_grad_(), some().requires_grad_()
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    expected, _ = theirs(y, y, y, attn_mask=hidden, need_weights=False)
    seen = applied(ours, x)
    torch.testing.assert_close(seen, expected)
    seen.pow(3).sum().backward()
    expected.pow(3).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad)
    torch.testing.assert_close(ours.qkv.bias.grad, theirs.in_proj_bias.grad)


def test_keys_without_a_bias_are_keys_whose_bias_is_zero() -> None:
    ours, zero = (
        built(Attention(num_heads=3, mask=Full(), relative=Rope(), key_bias=apart)) for apart in (False, True)
    )
    with torch.no_grad():
        zero.qkv.weight.copy_(ours.qkv.weight)
        zero.output.load_state_dict(ours.output.state_dict())
        zero.qkv.bias.copy_(torch.cat((ours.query_bias, torch.zeros(WIDTH), ours.value_bias)))
    x = some()
    seen, wanted = applied(ours, x), applied(zero, x)
    torch.testing.assert_close(seen, wanted)
    seen.pow(3).sum().backward()
    wanted.pow(3).sum().backward()
    queries, keys, values = zero.qkv.bias.grad.split(WIDTH)
    torch.testing.assert_close(ours.query_bias.grad, queries)
    torch.testing.assert_close(ours.value_bias.grad, values)
    assert float(keys.abs().max()) > 1e-6, "under RoPE a bias of keys changes the weights"


def test_rows_of_different_lengths_equal_torch_s_key_padding() -> None:
    ours = built(Attention(num_heads=3, mask=Full()))
    lengths = torch.tensor([7, 3])
    real = torch.arange(7) < lengths[:, None]
    x = some()
    expected, _ = torch_attention(ours, 3)(x, x, x, key_padding_mask=~real, need_weights=False)
    torch.testing.assert_close(applied(ours, x, lengths)[real], expected[real])


MASKS = [Full(), Window(size=2), Blocks(size=3), Causal() | Prefix(length=3), Strided(stride=2)]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_attention_that_sees_later_positions_sees_no_padding_and_no_other_document(mask: Any) -> None:
    ours = built(Attention(num_heads=3, mask=mask, relative=Rope()))
    x = some(3, 8).requires_grad_()
    lengths = torch.tensor([8, 5, 0])
    seen = applied(ours, x, lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(seen[row, :length], applied(ours, x[row : row + 1, :length])[0])
    real = torch.arange(8) < lengths[:, None]
    (grad,) = torch.autograd.grad(seen[real].pow(2).sum(), x)
    assert bool(grad.isfinite().all())
    assert not grad[~real].any()
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]] * 3)
    packed = applied(ours, x, segments=segments)
    for part in (slice(0, 3), slice(3, 7), slice(7, 8)):
        torch.testing.assert_close(packed[:, part], applied(ours, x[:, part]))


def one_head(ours: Any, part: Attention, head: int) -> Any:
    """The attention of a single head whose weights are the slices of the whole."""
    dk, dv = part.dims(WIDTH)
    shared = head * part.kv_heads // part.num_heads
    starts = [head * dk, part.num_heads * dk + shared * dk, (part.num_heads + part.kv_heads) * dk + shared * dv]
    slices = torch.cat([torch.arange(start, start + size) for start, size in zip(starts, (dk, dk, dv), strict=True)])
    single = built(part.changed(num_heads=1, num_kv_heads=1, head_dim=dk, value_dim=dv))
    single.qkv.weight.data, single.qkv.bias.data = ours.qkv.weight[slices].data, ours.qkv.bias[slices].data
    single.output.weight.data = ours.output.weight[:, head * dv : (head + 1) * dv].data
    single.output.bias.data = ours.output.bias.data / part.num_heads
    return single


PARTS = [
    Attention(num_heads=3),
    Attention(num_heads=4, num_kv_heads=2, relative=Rope(fraction=0.7)),
    Attention(num_heads=3, num_kv_heads=1, head_dim=6, value_dim=5, temperature=0.5),
]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_several_heads_equal_single_heads_with_the_sliced_weights(part: Attention) -> None:
    ours, x = built(part), some()
    total = sum((applied(one_head(ours, part, head), x) for head in range(part.num_heads)), torch.zeros_like(x))
    torch.testing.assert_close(applied(ours, x), total)


def repeated(ours: Any, part: Attention, whole: Attention) -> Any:
    """Attention with as many K/V heads as heads, each group's weights written once for each of its heads."""
    dk, dv = part.dims(WIDTH)
    times = part.num_heads // part.kv_heads
    many = built(whole)
    for mine, theirs in zip(many.qkv.parameters(), ours.qkv.parameters(), strict=True):
        q, k, v = theirs.data.split(ours.sizes)
        k, v = (
            t.unflatten(0, (part.kv_heads, width)).repeat_interleave(times, 0).flatten(0, 1)
            for t, width in ((k, dk), (v, dv))
        )
        mine.data = torch.cat((q, k, v))
    many.output.load_state_dict(ours.output.state_dict())
    return many


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_shared_keys_and_values_equal_repeated_ones(groups: int) -> None:
    part = Attention(num_heads=6, num_kv_heads=groups, relative=Rope())
    ours = built(part)
    torch.testing.assert_close(
        applied(ours, some()), applied(repeated(ours, part, part.changed(num_kv_heads=6)), some())
    )


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_the_state_is_smaller_by_heads_over_shared_heads(groups: int) -> None:
    """Multi-query attention, with one shared head, remembers H times less."""
    whole, shared = built(Attention(num_heads=6)), built(Attention(num_heads=6, num_kv_heads=groups))
    for length in (1, 100):
        assert whole.state_bytes(length, 3) * groups == shared.state_bytes(length, 3) * 6
        sizes = [nbytes(m.init_state(3, length)) for m in (whole, shared)]
        assert sizes[0] * groups == sizes[1] * 6
        assert sizes[0] == whole.state_bytes(length, 3)


@pytest.mark.parametrize(("part", "width"), [(Attention(num_heads=3), 4), (Attention(num_heads=3, head_dim=8), 8)])
def test_scores_are_scaled_by_the_width_of_a_head_and_not_of_the_model(part: Attention, width: int) -> None:
    assert built(part).scale == pytest.approx(width**-0.5)
    assert built(part.changed(temperature=2.0)).scale == pytest.approx(width**-0.5 / 2)


def test_a_low_temperature_looks_one_position_up() -> None:
    """Heads of the identity on sharp inputs: each output is the value of the position itself."""
    ours = built(Attention(num_heads=1, mask=Full(), temperature=1e-3, bias=False))
    ours.qkv.weight.data, ours.output.weight.data = (
        torch.eye(WIDTH, dtype=torch.float64).repeat(3, 1),
        torch.eye(WIDTH, dtype=torch.float64),
    )
    x = torch.nn.functional.normalize(some(), dim=-1)
    torch.testing.assert_close(applied(ours, x), x)


def test_query_and_key_norm_make_scores_independent_of_their_length() -> None:
    ours = built(Attention(num_heads=3, qk_norm=RMSNorm(), bias=False))
    x = some()
    before = applied(ours, x)
    ours.qkv.weight.data[: 2 * WIDTH] *= 100.0
    torch.testing.assert_close(applied(ours, x), before, rtol=1e-4, atol=1e-4)
    ours.query_norm.weight.data *= 2
    assert not torch.allclose(applied(ours, x), before, atol=1e-2)


@pytest.mark.parametrize("norm", [RMSNorm(eps=1e-2), LayerNorm(eps=1e-2, bias=False)], ids=lambda norm: norm.kind)
def test_queries_and_keys_are_normed_over_the_width_of_a_head(norm: Any) -> None:
    """What torch's own norm makes of each head goes into torch's own attention."""
    ours, x = built(Attention(num_heads=3, num_kv_heads=1, qk_norm=norm)), some()
    f = torch.nn.functional.rms_norm if isinstance(norm, RMSNorm) else torch.nn.functional.layer_norm
    q, k, v = ours.qkv(x).split((12, 4, 4), -1)
    q = f(q.unflatten(-1, (3, 4)), (4,), ours.query_norm.weight, eps=1e-2)
    k = f(k, (4,), ours.key_norm.weight, eps=1e-2)
    out = nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k[:, None].expand(-1, 3, -1, -1), v[:, None].expand(-1, 3, -1, -1), is_causal=True
    )
    torch.testing.assert_close(applied(ours, x), ours.output(out.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(
    ("written", "meant"), [(True, RMSNorm()), (False, NoNorm()), ("layer_norm(1e-3)", LayerNorm(eps=1e-3))]
)
def test_the_norm_of_heads_is_a_norm_or_a_switch(written: Any, meant: Any) -> None:
    assert Attention.parse({"qk_norm": written}).qk_norm == CrossAttention.parse({"qk_norm": written}).qk_norm == meant


@pytest.mark.parametrize(("bias", "output"), [(True, False), (False, True)])
def test_the_last_map_may_differ_in_its_bias(bias: bool, output: bool) -> None:
    """Qwen2 has biases for queries, keys and values alone; without a word the last map does as the others."""
    for part in (Attention, CrossAttention):
        ours = built(part(num_heads=3, bias=bias, output_bias=output))
        assert (ours.output.bias is not None) is output
        maps = [ours.qkv] if part is Attention else [ours.query, ours.memory]
        assert all((one.bias is not None) is bias for one in maps)
        assert (built(part(num_heads=3, bias=bias)).output.bias is not None) is bias


def test_heads_have_no_batch_norm() -> None:
    with pytest.raises(SpecError, match="qk_norm: batch_norm normalises over positions, not heads"):
        Attention.parse({"qk_norm": "batch_norm"})


@pytest.mark.parametrize("sinks", [0, 2])
def test_the_state_of_a_window_stops_growing(sinks: int) -> None:
    windowed = built(Attention(num_heads=3, mask=Causal() & Window(size=5, sinks=sinks)))
    assert windowed.state_bytes(3) * (5 + sinks) == windowed.state_bytes(10_000) * 3
    assert all(t.shape[2] == 5 + sinks for t in tensors(windowed.init_state(2)))


@pytest.mark.parametrize("twin", ["sdpa", "sdpa, oneDNN", "tiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_fast_path_serves_mixed_precision(monkeypatch: pytest.MonkeyPatch, twin: str, dtype: torch.dtype) -> None:
    """Large enough for the measured choice, with everything that touches the precision of q and k."""
    forget_choices(monkeypatch)
    monkeypatch.setattr(choose, "_measured", lambda case, *_: Choice("attention", case, twin, "given"))
    ours = built(
        Attention(num_heads=4, num_kv_heads=2, head_dim=8, qk_norm=RMSNorm(), relative=Rope()), dtype=torch.float32
    )
    x = some(2, 70, dtype=torch.float32)
    expected = applied(ours, x)
    (wanted,) = torch.autograd.grad(expected.pow(2).sum(), ours.qkv.weight)
    with torch.autocast("cpu", torch.bfloat16):
        seen = applied(ours, x.to(dtype))
    (grad,) = torch.autograd.grad(seen.float().pow(2).sum(), ours.qkv.weight)
    assert seen.dtype == torch.bfloat16
    assert_near(seen, expected)
    assert_near(grad, wanted)


def assert_near(got: Tensor, expected: Tensor) -> None:
    assert (got.float() - expected).norm() < 0.03 * expected.norm()


def test_dropout_acts_in_training_alone() -> None:
    ours, x = built(Attention(num_heads=3, dropout=0.5)), some()
    plain = built(Attention(num_heads=3))
    torch.testing.assert_close(applied(ours.eval(), x), applied(plain, x))
    torch.manual_seed(0)
    many = x[:1].expand(4000, -1, -1)
    with torch.no_grad():
        seen = applied(ours.train(), many)
    assert seen.std(0).max() > 0.1
    assert (seen.mean(0) - applied(plain, x[:1])[0]).abs().max() < 0.1


def test_equal_queries_and_keys_collide_with_certainty() -> None:
    branch = built(CollisionAttention(num_heads=3, mask=Full(), hash_length=5))
    with torch.no_grad():
        branch.qkv.weight[: 2 * WIDTH] = 0.0
        branch.qkv.bias[WIDTH : 2 * WIDTH] = branch.qkv.bias[:WIDTH]
    x = some()
    values = branch.qkv(x)[..., 2 * WIDTH :].sum(1).unflatten(-1, (3, -1))
    wanted = branch.output((values / values.norm(dim=-1, keepdim=True)).flatten(-2))
    # The arc cosine has a root at 1: an error e of the cosine is one of √(2 e) of the angle.
    torch.testing.assert_close(applied(branch, x), wanted[:, None].expand_as(x), rtol=0, atol=1e-6)


def test_the_gradient_of_collisions_is_at_least_the_bound_of_the_paper() -> None:
    """By the cosine: τ p^τ / 2, which is below the exact derivative τ p^(τ-1) / π√(1 - c²)."""
    bound, exact = (built(CollisionAttention(num_heads=1, hash_length=4, gradient=way)) for way in ("bound", "exact"))  # type: ignore[arg-type]
    q, k = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.6, 0.8]]).double()
    slopes = []
    for branch in (bound, exact):
        keys = k.clone().requires_grad_()
        weights = branch._weights(q[None, None], keys[None, None])
        assert float(weights.detach()) == pytest.approx((1 - math.acos(0.6) / math.pi) ** 4)
        weights.backward()
        slopes.append(float(keys.grad[0, 0]))
    p, across = 1 - math.acos(0.6) / math.pi, 1 - 0.6**2
    assert slopes == pytest.approx([across * 4 * p**4 / 2, across * 4 * p**3 / (math.pi * 0.8)])
    assert slopes[0] < slopes[1]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"mask": Causal(), "value_convolution": 3}, "reads later positions"),
        ({"mask": Full(), "value_convolution": 4}, "have no middle; give an odd number"),
        ({"mask": Full(), "value_convolution": 3, "num_kv_heads": 2}, "4 heads share 2 of values"),
    ],
)
def test_convolutions_of_values_that_cannot_be_are_refused(fields: dict[str, Any], sentence: str) -> None:
    for kind in (Attention, CollisionAttention):
        with pytest.raises(SpecError, match=sentence):
            kind.parse({"num_heads": 4, **fields})
    with pytest.raises(SpecError, match="cosines have no temperature"):
        CollisionAttention.parse({"temperature": 0.5})
