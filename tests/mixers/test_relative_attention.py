"""Relative attention against XLNet's layer: both directions, memory, table of visible keys; outputs and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.mixers.modules import applied, built, following, some
from torch import Tensor
from transformers import XLNetConfig
from transformers.models.wavlm.modeling_wavlm import WavLMAttention
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from qkv.layers.context import Context
from qkv.mixers.registry import build_branch
from qkv.spec.masks import Causal, Full, Window
from qkv.spec.mixers.relative_attention import GatedBiasAttention, RelativeAttention
from qkv.system.errors import UserError

HEADS, DK, WIDTH = 3, 5, 12


def drawn(**fields: Any) -> Any:
    return built(RelativeAttention(**{"num_heads": HEADS, "head_dim": DK, **fields}), width=WIDTH)


def published(ours: Any) -> XLNetRelativeAttention:
    """XLNet's layer with the weights of ours; (D, H, Dk) where ours are (H Dk, D)."""
    config = XLNetConfig(d_model=WIDTH, n_head=HEADS, d_inner=4, n_layer=1, vocab_size=9, dropout=0.0)
    config.d_head = DK
    theirs = XLNetRelativeAttention(config).double()
    for name, weight in zip("qkv", ours.qkv.weight.chunk(3), strict=True):
        getattr(theirs, name).data = weight.data.T.reshape(WIDTH, HEADS, DK).clone()
    theirs.r.data = ours.position.weight.data.T.reshape(WIDTH, HEADS, DK).clone()
    theirs.o.data = ours.output.weight.data.reshape(WIDTH, HEADS, DK).clone()
    if ours.types is not None:
        theirs.r_s_bias.data = ours.types.bias.data.view(HEADS, DK).clone()
        theirs.seg_embed.data = ours.types.vectors.data.view(2, HEADS, DK).clone()
    theirs.r_w_bias.data, theirs.r_r_bias.data = (
        b.data.view(HEADS, DK).clone() for b in (ours.content_bias, ours.position_bias)
    )
    return theirs


def their_output(
    theirs: XLNetRelativeAttention, x: Tensor, hidden: Tensor, memory: Tensor | None = None, both: bool = True
) -> Tensor:
    """What the layer adds to its input, before residual and norm. x (B, N, D), hidden (B, N, M)."""
    h, mems = x.transpose(0, 1), None if memory is None else memory.transpose(0, 1)
    cat = h if mems is None else torch.cat((mems, h))
    config = XLNetConfig(d_model=WIDTH, n_head=1, attn_type="bi" if both else "uni", n_layer=1, d_inner=4, vocab_size=9)
    r = XLNetModel(config).relative_positional_encoding(h.shape[0], cat.shape[0]).double()
    q, k, v = (torch.einsum("ibh,hnd->ibnd", t, w) for t, w in ((h, theirs.q), (cat, theirs.k), (cat, theirs.v)))
    mask = hidden.permute(1, 2, 0)[..., None].double()
    vectors = theirs.rel_attn_core(q, k, v, torch.einsum("ibh,hnd->ibnd", r, theirs.r), attn_mask=mask)
    return torch.einsum("ibnd,hnd->ibh", vectors, theirs.o).transpose(0, 1)


def test_types_of_tokens_join_as_in_the_published_layer() -> None:
    ours, x = drawn(mask=Full(), by_type=True), some(2, 6, WIDTH)
    types = torch.tensor([[0, 0, 1, 1, 2, 0], [1, 1, 1, 0, 0, 0]])
    theirs = published(ours)
    different = (types[:, :, None] != types[:, None, :]).long()
    segments = torch.nn.functional.one_hot(different, 2).permute(1, 2, 0, 3).double()
    core = theirs.rel_attn_core
    theirs.rel_attn_core = lambda *args, **options: core(*args, seg_mat=segments, **options)
    expected = their_output(theirs, x, torch.zeros(2, 6, 6, dtype=torch.bool))
    seen = ours(x, Context(torch.arange(6)[None], types=types))[0]
    torch.testing.assert_close(seen, expected, rtol=1e-6, atol=1e-6)
    of_one = ours(x, Context(torch.arange(6)[None], types=torch.ones(1, 6, dtype=torch.long)))[0]
    torch.testing.assert_close(applied(ours, x), of_one)
    assert not torch.allclose(seen, of_one)


def test_types_are_not_remembered() -> None:
    ours = drawn(by_type=True)
    context = following(0, 1, 1, types=torch.zeros(1, 1))
    with pytest.raises(UserError, match="relative attention supports token types without a state only"):
        ours(some(1, 1, WIDTH), context, ours.init_state(1))


def same_gradients(ours: Any, theirs: XLNetRelativeAttention) -> None:
    grads = {
        "r": (ours.position.weight.grad, theirs.r.grad.reshape(WIDTH, -1).T),
        "o": (ours.output.weight.grad, theirs.o.grad.reshape(WIDTH, -1)),
        "u": (ours.content_bias.grad, theirs.r_w_bias.grad.flatten()),
        "v": (ours.position_bias.grad, theirs.r_r_bias.grad.flatten()),
        "qkv": (ours.qkv.weight.grad, torch.cat([getattr(theirs, n).grad.reshape(WIDTH, -1).T for n in "qkv"])),
    }
    for name, (mine, wanted) in grads.items():
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("causal", [False, True])
def test_outputs_and_gradients_equal_those_of_the_published_layer(causal: bool) -> None:
    """Rows of different lengths, both ways and causal."""
    ours = drawn(mask=Causal() if causal else Full())
    theirs, lengths = published(ours), torch.tensor([9, 4, 1])
    real = torch.arange(9) < lengths[:, None]
    hidden = ~real[:, None].expand(-1, 9, -1) | (
        torch.ones(9, 9, dtype=torch.bool).triu(1) if causal else torch.tensor(False)
    )
    x, y = some(3, 9, WIDTH).requires_grad_(), some(3, 9, WIDTH).requires_grad_()
    seen, expected = applied(ours, x, lengths), their_output(theirs, y, hidden)
    torch.testing.assert_close(seen[real], expected[real], rtol=1e-6, atol=1e-6)
    seen[real].pow(3).sum().backward()
    expected[real].pow(3).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-6)
    same_gradients(ours, theirs)


@pytest.mark.parametrize("pieces", [[4, 5], [4, 1, 1, 1, 1, 1]])
def test_a_state_is_the_published_memory(pieces: list[int]) -> None:
    """A segment with the memory of the one before, as Transformer-XL reads on."""
    ours, x = drawn(), some(2, 9, WIDTH)
    state, outs, past = ours.init_state(2), [], 0
    with torch.no_grad():
        for count in pieces:
            y, state = ours(x[:, past : past + count], following(past, count, 2), state)
            outs.append(y)
            past += count
        hidden = (torch.arange(9) > torch.arange(4, 9)[:, None]).expand(2, -1, -1)
        expected = their_output(published(ours), x[:, 4:], hidden, x[:, :4], both=False)
    torch.testing.assert_close(torch.cat(outs[1:], 1), expected, rtol=1e-6, atol=1e-6)


def test_a_window_remembers_a_fixed_number_of_positions() -> None:
    ours = drawn(mask=Causal() & Window(size=4))
    assert ours.state_bytes(4) == ours.state_bytes(400) == ours.init_state(1).keys.nbytes * 2


def test_a_permutation_sees_what_the_published_streams_see() -> None:
    """Content and query stream side by side in one row: both at the same positions, with a table of visible keys."""
    ours = drawn(mask=Full())
    theirs, count = published(ours), 6
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    place = order.argsort()
    earlier = place[None, :] < place[:, None]
    itself = earlier | torch.eye(count, dtype=torch.bool)
    content, query = some(2, count, WIDTH), some(2, count + 1, WIDTH)[:, :count]
    visible = torch.zeros(2, 2 * count, 2 * count, dtype=torch.bool)
    visible[:, :count, :count], visible[:, count:, :count] = itself, earlier
    positions = torch.arange(count).repeat(2)[None]
    seen = ours(torch.cat((content, query), 1), Context(positions, visible=visible))[0]
    torch.testing.assert_close(
        seen[:, :count], their_output(theirs, content, ~itself.expand(2, -1, -1)), rtol=1e-6, atol=1e-6
    )
    expected = _query_stream(theirs, query, content, ~earlier.expand(2, -1, -1))
    first = int(order[0])  # it sees nothing, which ours answers with 0
    others = [i for i in range(count) if i != first]
    torch.testing.assert_close(seen[:, count:][:, others], expected[:, others], rtol=1e-6, atol=1e-6)
    assert not seen[:, count + first].any()


def _query_stream(theirs: XLNetRelativeAttention, g: Tensor, h: Tensor, hidden: Tensor) -> Tensor:
    """The published g-stream before residual and norm: queries of g, keys and values of h."""
    config = XLNetConfig(d_model=WIDTH, n_head=1, n_layer=1, d_inner=4, vocab_size=9)
    r = XLNetModel(config).relative_positional_encoding(g.shape[1], h.shape[1]).double()
    q, k, v = (torch.einsum("bih,hnd->ibnd", t, w) for t, w in ((g, theirs.q), (h, theirs.k), (h, theirs.v)))
    mask = hidden.permute(1, 2, 0)[..., None].double()
    vectors = theirs.rel_attn_core(q, k, v, torch.einsum("ibh,hnd->ibnd", r, theirs.r), attn_mask=mask)
    return torch.einsum("ibnd,hnd->ibh", vectors, theirs.o).transpose(0, 1)


def test_positions_may_lie_anywhere() -> None:
    """Only distances count, also where they are larger than the row is long."""
    ours, x = drawn(mask=Full()), some(2, 5, WIDTH)
    places = torch.tensor([[3, 40, 7, 100, 11]])
    visible = torch.ones(2, 5, 5, dtype=torch.bool)
    near = ours(x, Context(places, visible=visible))[0]
    far = ours(x, Context(places + 1000, visible=visible))[0]
    torch.testing.assert_close(near, far)
    assert not torch.allclose(near, applied(ours, x))


def test_distances_beyond_the_furthest_are_alike() -> None:
    ours, x = drawn(mask=Full(), max_distance=2), some(2, 5, WIDTH)
    visible = torch.ones(2, 5, 5, dtype=torch.bool)
    wide, wider = (ours(x, Context(torch.arange(5)[None] * step, visible=visible))[0] for step in (2, 7))
    torch.testing.assert_close(wide, wider)


def test_gated_biases_equal_those_of_the_published_layer() -> None:
    torch.manual_seed(0)
    theirs = WavLMAttention(12, 3, num_buckets=8, max_distance=9).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    part = GatedBiasAttention(num_heads=3, num_buckets=8, max_distance=9, mask=Full())
    ours = build_branch(part, 12).double()
    maps = [theirs.q_proj, theirs.k_proj, theirs.v_proj]
    ours.load_state_dict(
        {
            **{f"qkv.{leaf}": torch.cat([getattr(each, leaf) for each in maps]) for leaf in ("weight", "bias")},
            **{f"output.{leaf}": getattr(theirs.out_proj, leaf) for leaf in ("weight", "bias")},
            **{f"gate.{leaf}": getattr(theirs.gru_rel_pos_linear, leaf) for leaf in ("weight", "bias")},
            "factor": theirs.gru_rel_pos_const.flatten(),
            "buckets.table": theirs.rel_attn_embed.weight,
        }
    )
    x = torch.randn(2, 13, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(x, Context(torch.arange(13)[None]))[0], theirs(x)[0])
