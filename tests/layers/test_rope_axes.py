"""Rotation by positions on several axes, against loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qkv.frontends.joined import walk_places
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.ops.positions import axes_rotation, inverse_frequencies, rotate
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.model import Block, Model
from qkv.spec.parts import NoPositions, Rope, RopeAxes
from qkv.spec.signals.joined import Joined
from qkv.spec.signals.video import Tubelets
from qkv.system.errors import UserError

VIDEO = Tubelets(patch=2, depth=1, frames=2, height=6, width=8, channels=1, positions=NoPositions())
"""Grid of 2 × 3 × 4 positions: no two axes are alike."""


def turned(x: list[float], place: tuple[int, int, int], part: RopeAxes) -> list[float]:
    """One vector rotated pair by pair, by the docstring of ``rope_axes``."""
    half, out = len(x) // 2, list(x)
    for i in range(half):
        if part.interleaved:
            axis = i % 3 if i < 3 * part.sections[i % 3] else 0
        else:
            axis = 0 if i < part.sections[0] else 1 if i < part.sections[0] + part.sections[1] else 2
        angle = place[axis] * part.rope.base ** (-2 * i / len(x))
        a, b = x[i], x[i + half]
        out[i], out[i + half] = a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)
    return out


def places_of(rows: list[str]) -> list[tuple[int, int, int]]:
    """Positions of a row of words ("w") and videos ("v"), one after the other."""
    places, at = list[tuple[int, int, int]](), 0
    for each in rows:
        if each == "w":
            places.append((at, at, at))
            at += 1
        else:
            places += [(at + t, at + h, at + w) for t in range(2) for h in range(3) for w in range(4)]
            at += 4
    return places


@pytest.mark.parametrize("interleaved", [False, True])
def test_each_pair_is_turned_by_its_axis(interleaved: bool) -> None:
    part = RopeAxes(sections=(3, 2, 3) if not interleaved else (4, 2, 2), interleaved=interleaved)
    places = torch.tensor([(0, 0, 0), (5, 2, 9), (1, 7, 3)])
    x = torch.randn(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frequencies = inverse_frequencies(16, part.rope.base, dtype=torch.float64)
    found = rotate(x, *axes_rotation(places, part.axis_of_pairs(), frequencies))
    expected = [turned(row, tuple(place), part) for row, place in zip(x.tolist(), places.tolist(), strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_words_after_a_video_go_on_from_its_largest_position() -> None:
    row = ["w", "w", "v", "w", "v", "v", "w"]
    ids = [index for each in row for index in ([7] if each == "w" else [-1] * 24)]
    places, after = walk_places(ids, [(2, 3, 4)], 0, 3)
    assert list(map(tuple, places.tolist())) == places_of(row)
    assert after == 2 + 4 + 1 + 4 + 4 + 1
    assert walk_places(ids, [(2, 3, 4)], 5, 3)[0].tolist() == (places + 5).tolist()
    flat, _ = walk_places([-1] * 6, [(2, 3)], 0, 3)
    assert flat.tolist() == [[0, h, w] for h in range(2) for w in range(3)]


def model(part: RopeAxes | Rope) -> Model:
    return Model(
        width=24,
        num_layers=2,
        context_length=128,
        frontend=Joined(vocab_size=20, positions=NoPositions(), inputs={"video": VIDEO}),
        blocks=(Block(branches=(Attention(num_heads=2, head_dim=12, relative=part), FeedForward())),),
    )


def looped(q: Tensor, places: list[tuple[int, int, int]], part: RopeAxes) -> Tensor:
    """Queries (H, N, D) rotated one by one."""
    return torch.tensor([[turned(x, p, part) for x, p in zip(h, places, strict=True)] for h in q.tolist()])


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_row_read_in_parts_equals_one_call(interleaved: bool) -> None:
    """Rows of two lengths with videos; decoded from a state, the words after a video keep their positions."""
    torch.manual_seed(0)
    part = RopeAxes(sections=(2, 2, 2), interleaved=interleaved)
    net = build(model(part)).eval().double()
    rows = [["w", "v", "w", "w", "w"], ["w", "w", "w", "v", "w"]]
    ids = torch.tensor([[i for each in row for i in ([5] if each == "w" else [-1] * 24)] for row in rows])
    ids[ids == 5] = torch.randint(20, (8,))
    videos = torch.randn(2, 2, 1, 6, 8, dtype=torch.float64)
    with torch.no_grad():
        whole, _ = net(Signal(ids, lengths=torch.tensor([28, 28]), inputs={"video": Signal(videos)}))
        first, state = net(Signal(ids[:1, :26], inputs={"video": Signal(videos[:1])}), net.init_state(1))
        steps = [first]
        for i in (26, 27):
            each, state = net(Signal(ids[:1, i : i + 1]), state)
            steps.append(each)
        assert state.behind == (24 - 4,)
        torch.testing.assert_close(torch.cat(steps, 1), whole[:1], rtol=1e-9, atol=1e-9)
        behind = build(model(part.rope)).eval().double()
        behind.load_state_dict(net.state_dict())
        other, _ = behind(Signal(ids, inputs={"video": Signal(videos)}))
    assert float((other - whole).abs().max()) > 1e-4
    with pytest.raises(UserError, match="the state of 'attention' cannot be truncated"):
        net.rewind(state, torch.tensor([3]))


def test_the_attention_of_a_mixed_row_is_that_of_a_loop() -> None:
    """The first layer's attention, with queries and keys rotated one by one at t, h and w."""
    torch.manual_seed(1)
    part = RopeAxes(sections=(1, 3, 2))
    net = build(model(part)).eval().double()
    row = ["w", "v", "w", "w"]
    ids = torch.tensor([[i for each in row for i in ([5] if each == "w" else [-1] * 24)]])
    with torch.no_grad():
        x, context = net.embed(Signal(ids, inputs={"video": Signal(torch.randn(1, 2, 1, 6, 8, dtype=torch.float64))}))
        block = net.blocks[0].branches[0]
        normed = block.norm(x, context)
        found, _ = block.body(normed, context)
        q, k, v = block.body.qkv(normed)[0].unflatten(-1, (3, 2, 12)).permute(1, 2, 0, 3)
        q, k = looped(q, places_of(row), part).double(), looped(k, places_of(row), part).double()
        scores = (q @ k.mT / math.sqrt(12)).masked_fill(torch.ones(27, 27).triu(1).bool(), -math.inf)
        expected = block.body.output((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-6)


def test_words_alone_are_turned_as_by_one_axis() -> None:
    torch.manual_seed(2)
    part = RopeAxes(sections=(1, 3, 2))
    net, plain = build(model(part)).eval(), build(model(part.rope)).eval()
    plain.load_state_dict(net.state_dict())
    ids = torch.randint(20, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(net(ids)[0], plain(ids)[0], rtol=1e-5, atol=1e-6)


def test_sections_that_do_not_fit_are_refused() -> None:
    (problem,) = RopeAxes(sections=(1, 2, 2)).head_problems(12)
    assert "[1, 2, 2] are 5 pairs, but 6 of a head are rotated" in problem.sentence
    scaled = {"kind": "dynamic", "factor": 2, "original_length": 8}
    with pytest.raises(SpecError, match="frequencies that depend on the length of a row"):
        RopeAxes.parse({"rope": {"scaling": scaled}})
