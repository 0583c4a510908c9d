"""Taps: declared points of a model, and the values there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.layers.tap import POINTS, Recorder
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.masks import Causal, Window
from qkv.spec.mixers.relative_attention import RelativeAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Alibi, Rope

IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 3, 5]])
MIXERS = {
    "rope": Attention(num_heads=2, num_kv_heads=1, relative=Rope()),
    "alibi": Attention(num_heads=2, mask=Causal() & Window(size=3), relative=Alibi()),
    "top k": Attention(num_heads=2, top_k=2),
    "relative": RelativeAttention(num_heads=2),
}


def built(mixer: Attention, order: str = "pre") -> Transformer:
    block = Block(branches=(mixer, FeedForward()), order=order)  # type: ignore[arg-type]
    return (
        build(
            Model(
                width=16, num_layers=2, context_length=16, frontend=Text(vocab_size=11), blocks=(block,), init_std=0.4
            )
        )
        .double()
        .eval()
    )


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
@torch.no_grad()
def test_weights_times_values_is_what_attention_gives(mixer: Attention) -> None:
    m, tap = built(mixer), Recorder("v", "scores", "weights", "output")
    m(IDS, tap=tap)
    for branch in (b for b in m.branches if b.spec == mixer):
        weights, v = tap.seen[f"{branch.name}.weights"], tap.seen[f"{branch.name}.v"]
        torch.testing.assert_close(tap.seen[f"{branch.name}.scores"].softmax(-1), weights)
        mixed = weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
        torch.testing.assert_close(branch.ending()(mixed.transpose(1, 2).flatten(2)), tap.seen[branch.name])  # type: ignore[misc]


@pytest.mark.parametrize("order", ["pre", "parallel"])
@torch.no_grad()
def test_a_branch_adds_its_output_to_the_stream(order: str) -> None:
    m, tap = built(MIXERS["rope"], order), Recorder("frontend", "before", "output", "after", "norm", "head")
    logits, _ = m(IDS, tap=tap)
    stream = tap.seen["frontend"]
    for branch in m.branches:
        torch.testing.assert_close(tap.seen[f"{branch.name}.before"], stream)
        stream = stream + tap.seen[branch.name]
        torch.testing.assert_close(tap.seen[f"{branch.name}.after"], stream)
    torch.testing.assert_close(tap.seen["head"], logits)
    torch.testing.assert_close(m.head(tap.seen["norm"]), logits)


@torch.no_grad()
def test_every_point_is_seen_with_a_state_too() -> None:
    m, tap = built(MIXERS["rope"]), Recorder(*POINTS)
    whole, _ = m(IDS, tap=tap)
    once, state, parts = dict(tap.seen), m.init_state(2), []
    assert {name.rsplit(".", 1)[-1] for name in once} == (POINTS.keys() - {"output", "router"}) | {"0", "1"}
    for place in range(5):
        y, state = m(IDS[:, place : place + 1], state, tap=tap)
        parts.append(y)
        torch.testing.assert_close(
            tap.seen["blocks.1.branches.0.weights"][:, :, 0],
            once["blocks.1.branches.0.weights"][:, :, place, : place + 1],
        )
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("point", ["frontend", "before", "q", "k", "v", "output", "after", "norm", "head"])
@torch.no_grad()
def test_a_value_is_replaced(point: str) -> None:
    m = built(MIXERS["rope"])

    class Doubling:
        points = (point,)

        def __call__(self, name: str, value: Tensor) -> Tensor:
            return 2 * value

    assert not torch.allclose(m(IDS, tap=Doubling())[0], m(IDS)[0])


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no point 'query'; there are frontend, before, q"):
        Recorder("query")
