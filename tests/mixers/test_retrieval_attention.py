"""Attention that searches what is older than its window: limits, search by faiss, gradients, refusal."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from tests.mixers.modules import WIDTH, built
from torch import Tensor

from qkv.layers.context import Context
from qkv.mixers.sparse import retrieval_attention as mixer
from qkv.ops.sparse.retrieval import largest_products
from qkv.spec.branches import Attention
from qkv.spec.masks import Causal, Window
from qkv.spec.mixers.retrieval_attention import RetrievalAttention
from qkv.state.arrival import Arrival, Counts
from qkv.system.errors import UserError


def inputs(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def whole(m: Any, x: Tensor) -> Tensor:
    return m(x, Context(torch.arange(x.shape[1])[None]))[0]


def pair(part: RetrievalAttention, other: Attention) -> tuple[Any, Any]:
    """Both with the same weights."""
    m, plain = built(part), built(other)
    plain.load_state_dict({name: p for name, p in m.state_dict().items() if name != "gate"})
    return m, plain


# What it is equal to.


@torch.no_grad()
def test_a_closed_gate_leaves_window_attention() -> None:
    m, plain = pair(RetrievalAttention(window=3, num_retrieved=2), Attention(mask=Causal() & Window(size=3)))
    m.gate.fill_(-1e3)
    torch.testing.assert_close(whole(m, inputs(2, 11)), whole(plain, inputs(2, 11)))


@torch.no_grad()
def test_all_keys_retrieved_and_joined_by_their_weight_are_full_attention() -> None:
    """At one query, with the gate at the share of the older keys in the sum of exponentials."""
    m, plain = pair(RetrievalAttention(window=3, num_retrieved=99, num_heads=1), Attention(num_heads=1))
    x = inputs(1, 11)
    q, k, _ = m.qkv(x)[0].chunk(3, -1)
    raw = (q[-1] @ k.T / WIDTH**0.5).exp()
    m.gate.copy_((raw[:-3].sum() / raw[-3:].sum()).log()[None])
    torch.testing.assert_close(whole(m, x)[:, -1], whole(plain, x)[:, -1])
    assert (whole(m, x)[:, 5] - whole(plain, x)[:, 5]).abs().max() > 1e-3


@torch.no_grad()
def test_one_retrieved_key_gives_its_value() -> None:
    m = built(RetrievalAttention(window=2, num_retrieved=1, num_heads=1))
    m.gate.fill_(1e3)
    x = inputs(1, 9)
    q, k, v = m.qkv(x)[0].chunk(3, -1)
    best = int((q[-1] @ k[:-2].T).argmax())
    torch.testing.assert_close(whole(m, x)[0, -1], m.output(v[best]))


def test_gradients_pass_to_retrieved_keys_of_the_same_call() -> None:
    m, x = built(RetrievalAttention(window=2, num_retrieved=1, num_heads=1)), inputs(1, 9).requires_grad_()
    whole(m, x)[0, -1].sum().backward()
    q, k, _ = m.qkv(x)[0].chunk(3, -1)
    best = int((q[-1] @ k[:-2].T).argmax())
    assert x.grad is not None
    assert {i for i in range(9) if x.grad[0, i].abs().max() > 1e-12} == {best, 7, 8}


# Search by faiss.


def test_faiss_finds_the_largest_products() -> None:
    q, keys = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 50, 8)
    found = largest_products(q, keys, [50, 3], 5)
    for h in range(4):
        expected = (q[0, h] @ keys[0, h // 2].T).topk(5).indices
        assert torch.equal(found[0, h], expected)
        assert torch.equal(found[1, h, :, :3].sort().values, torch.arange(3).expand(3, 3))
    assert (found[1, :, :, 3:] == -1).all()


@torch.no_grad()
@pytest.mark.parametrize("fields", [{}, {"num_kv_heads": 2, "value_dim": 3}, {"num_retrieved": 40}])
def test_search_by_faiss_decodes_as_one_call(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows at different places, several queries at once."""
    monkeypatch.setattr(mixer, "SEARCHED", 1)
    m = built(RetrievalAttention(**{"window": 3, "num_retrieved": 2, "search": "faiss", **fields}))
    x, past, state, searched = inputs(2, 20), [0, 0], m.init_state(2), 0
    expected = whole(m, x)
    for counts in ([6, 2], [1, 1], [4, 0], [5, 7], [1, 1], [1, 1]):
        count = max(counts)
        piece = torch.stack([x[b, past[b] : past[b] + count] for b in range(2)])
        lengths = torch.tensor(counts)
        arrival = Arrival(Counts(past), count, lengths)
        searched += m._searched(Context(arrival.positions, lengths, arrival=arrival)) is not None
        y, state = m(piece, Context(arrival.positions, lengths, arrival=arrival), state)
        for b in range(2):
            torch.testing.assert_close(y[b, : counts[b]], expected[b, past[b] : past[b] + counts[b]])
        past = [p + n for p, n in zip(past, counts, strict=True)]
    assert searched == 5


def test_without_faiss_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixer, "SEARCHED", 1)
    monkeypatch.setitem(sys.modules, "faiss", None)
    m, x = built(RetrievalAttention(window=1, search="faiss")), inputs(1, 4)
    arrival = Arrival(Counts((0,)), 3)
    with torch.no_grad():
        _, state = m(x[:, :3], Context(arrival.positions, arrival=arrival), m.init_state(1))
        arrival = Arrival(Counts((3,)), 1)
        with pytest.raises(UserError, match=r"needs the library faiss, which is not installed; pip install"):
            m(x[:, 3:], Context(arrival.positions, arrival=arrival), state)
