"""Roles of heads whose weights are set by hand, scores against loops, and the loss when a head is taken out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contracts.subjects import scrambled
from tests.lens.views.planted import TOKENS, planted, rows
from tests.models.stacks import ids, model, seven
from torch.nn import functional as F

import qkv
from qkv.layers.signal import Signal
from qkv.lens.views.attention_maps import attention_maps
from qkv.lens.views.head_roles import ROLES, head_roles, repeated_tokens
from qkv.models.build import build
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Text
from qkv.spec.models.cross import CrossAttention
from qkv.system.errors import UserError


def test_planted_heads_are_named() -> None:
    heads = head_roles(planted(), rows(), start=8)
    assert [(head.layer, head.head, head.role) for head in heads] == [
        (0, 0, "previous token"),
        (0, 1, "sink"),
        (1, 0, "induction"),
        (1, 1, "no-op"),
    ]
    assert heads[0].scores["previous token"] > 0.99
    assert heads[1].scores["no-op"] == 1
    # The first position has itself before it, so that the first repeated token reads two positions alike.
    assert heads[2].scores["induction"] == pytest.approx(7.5 / 8)
    assert heads[2].scores["copying"] == 1
    assert heads[1].scores["copying"] < 1


def test_the_loss_rises_where_a_head_is_needed() -> None:
    heads = head_roles(planted(), rows(), start=8)
    rises = [head.rise for head in heads]
    assert all(rise is not None for rise in rises)
    assert min(heads[0].rise or 0, heads[2].rise or 0) > 1
    assert abs(heads[1].rise or 0) < 1e-6
    assert abs(heads[3].rise or 0) < 1e-6
    low, high = heads[2].interval or (0, 0)
    assert low <= (heads[2].rise or 0) <= high


@torch.no_grad()
def test_taking_a_head_out_equals_a_loop_by_hand() -> None:
    m = build(model(num_layers=2)).double().eval()
    signal = Signal(ids(3, 8), lengths=torch.tensor([8, 8, 5]))
    found = head_roles(m, signal)[5]

    def loss(logits: Any) -> Any:
        means = [F.cross_entropy(logits[b, : n - 1], signal.values[b, 1:n]) for b, n in enumerate((8, 8, 5))]
        return sum(means) / 3

    def replaced(module: Any, z: Any) -> Any:
        changed, own = z[0].clone(), slice(4, 8)
        for t in range(8):
            rows = [0, 1, 2] if t < 5 else [0, 1]
            changed[rows, t, own] = z[0][rows, t, own].mean(0)
        return (changed,)

    before = loss(m(signal)[0])
    hook = m.branches[2].output.register_forward_pre_hook(replaced)  # type: ignore[union-attr]
    after = loss(m(signal)[0])
    hook.remove()
    assert (found.layer, found.head) == (1, 1)
    assert found.loss == pytest.approx(float(after))
    assert found.rise == pytest.approx(float(after - before))


def test_scores_equal_loops() -> None:
    m = build(model(Block(branches=(Attention(),)))).double()
    tokens = torch.tensor([[1, 2, 3, 1, 2, 7, 3, 3], [4, 4, 4, 0, 7, 0, 1, 5]])
    signal = Signal(tokens, lengths=torch.tensor([8, 6]))
    (weights,) = (each.weights for each in attention_maps(m, signal))
    scores = {name: [list[float]() for _ in range(4)] for name in ROLES}
    for b, length in enumerate((8, 6)):
        row = tokens[b].tolist()
        for t in range(length):
            same = [s for s in range(t) if row[s] == row[t]]
            after = [s + 1 for s in same if s + 1 < t]
            marks = [s for s in range(1, 8) if row[s] == 7]
            keys = {"previous token": [t - 1], "sink": [0], "delimiter": marks} if t else {}
            keys |= {"duplicate token": same} if same else {}
            keys |= {"induction": after} if after else {}
            for name, places in keys.items():
                for h in range(4):
                    scores[name][h].append(sum(float(weights[b, h, t, s]) for s in places))
    for h, head in enumerate(head_roles(m, signal, delimiters=[7], ablate=0)):
        for name, each in scores.items():
            if each[h]:
                assert head.scores[name] == pytest.approx(sum(each[h]) / len(each[h])), name
        assert head.rise is None


def test_heads_of_every_stack_are_listed() -> None:
    encoder = Encoder(frontend=Text(vocab_size=9), blocks=(Block(branches=(Attention(mask=Full()), FeedForward())),))
    reads = Block(branches=(Attention(), CrossAttention(num_heads=2)))
    m = build(model(reads, encoder=encoder, frontend=Text(vocab_size=9)))
    heads = head_roles(m, ids(2, 5) % 9, source=ids(2, 7, 3) % 9)
    assert [(head.stack, head.head) for head in heads] == [(s, h) for s in ("encoder", "model") for h in range(4)]
    assert all(head.rise for head in heads)
    assert len(head_roles(build(seven()))) == 4  # of two branches with two heads; rows are made
    pictures = {
        "width": 8,
        "blocks": [{"branches": ["attention(2, mask=full)"]}],
        "frontend": {"kind": "patches", "patch": 4, "height": 8, "width": 8, "channels": 1},
        "head": "classification(2)",
    }
    m = scrambled(qkv.build(qkv.Model.parse(pictures)), torch.float64)
    heads = head_roles(m, Signal(torch.randn(3, 1, 8, 8, dtype=torch.float64)))
    assert [set(head.scores) for head in heads] == [{"previous token", "sink", "no-op"}] * 2
    assert all(head.rise and head.rise > 0 for head in heads)


def test_the_highest_of_each_role_alone_are_taken_out() -> None:
    heads = head_roles(planted(), rows(), start=8, ablate=1)
    assert [head.rise is not None for head in heads] == [True, True, True, False]


def test_repeated_tokens_repeat() -> None:
    made = repeated_tokens(TOKENS, rows=50, length=6, first=3)
    assert torch.equal(made[:, 1:7], made[:, 7:])
    assert (made[:, 0] == 3).all()
    assert set(made[:, 1:].flatten().tolist()) == set(range(TOKENS)) - {3}


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(UserError, match="ablate is -1"):
        head_roles(build(model()), ablate=-1)
