"""Recurrent memory: limits, how far gradients pass, constant state, packed documents, generation, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.segments import through, vectors
from tests.models.stacks import VOCABULARY, ids, model

from qkv.costs.cost import cost
from qkv.generation.decode.sample import generate
from qkv.layers.context import Context
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import GRU, Attention, Branch, FeedForward
from qkv.spec.generation import Generation
from qkv.spec.masks import Blocks, Causal, Full, Prefix
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.model import Block, Encoder, Latents, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.models.segmentation import RecurrentMemory
from qkv.spec.parts import NoPositions, Reversible, Rope
from qkv.spec.recipe import Recipe
from qkv.state.tree import nbytes, rows
from qkv.system.errors import UserError

TEXT = Text(vocab_size=VOCABULARY, positions=NoPositions())
TURNED = Attention(num_heads=2, relative=Rope())


def carrying(*branches: Branch, segment: int = 4, num_memory: int = 2, bptt: int | None = None, **fields: Any) -> Model:
    memory = RecurrentMemory(segment=segment, num_memory=num_memory, bptt=bptt)
    block = Block(branches=branches or (TURNED, FeedForward()))
    return model(block, **{"frontend": TEXT, "num_layers": 2, "init_std": 0.5, "segmentation": memory, **fields})


def built(spec: Model) -> Transformer:
    found = build(spec).double().eval()
    assert found.segmentation is not None
    return found


# What it is equal to.


@torch.no_grad()
def test_one_segment_is_the_stack_after_its_memory() -> None:
    m, x = built(carrying(segment=9, num_memory=3)), vectors(2, 9)
    memory = m.get_parameter("segmentation.vectors.table").expand(2, -1, -1)
    row = torch.cat((memory, x), 1)
    expected = m.norm(m.last(row, Context(torch.arange(12)[None])), Context(torch.arange(12)[None]))
    torch.testing.assert_close(through(m, x), expected[:, 3:])


@torch.no_grad()
def test_without_a_way_to_the_memory_segments_are_rows_of_their_own() -> None:
    """Branches that mix no positions read neither memory nor segments."""
    spec = carrying(FeedForward(), segment=3)
    m, x = built(spec), vectors(2, 8)
    plain = build(spec.changed(segmentation=None)).double().eval()
    plain.load_state_dict({name: p for name, p in m.state_dict().items() if not name.startswith("segmentation.")})
    torch.testing.assert_close(through(m, x), plain.vectors(x, Context(torch.arange(8)[None])))


@torch.no_grad()
@pytest.mark.parametrize("segment", [1, 3, 4])
def test_all_later_segments_read_a_position_and_nothing_before_it_does(segment: int) -> None:
    m, x = built(carrying(segment=segment)), vectors(1, 12)
    other = x.clone()
    other[:, 5] = vectors(1, 13)[:, 12]
    changed = (through(m, other) - through(m, x)).abs().amax((0, 2)) > 1e-9
    assert changed.tolist() == [False] * 5 + [True] * 7


def test_the_context_does_not_bound_the_row() -> None:
    """Every segment has positions from 0 for the blocks, so that no distance is new to rotary attention."""
    m = built(carrying(context_length=8))
    y = m(ids(1, 40))[0]
    assert y.shape == (1, 40, VOCABULARY)
    assert y.isfinite().all()


# Gradients.


@pytest.mark.parametrize(("bptt", "first"), [(None, 0), (5, 0), (4, 0), (3, 9), (2, 6), (1, 9)])
def test_gradients_pass_through_the_memory_of_up_to_bptt_segments(bptt: int | None, first: int) -> None:
    """Four segments of three positions: the memory is detached at every multiple of bptt."""
    m, x = built(carrying(segment=3, bptt=bptt)), vectors(2, 12).requires_grad_()
    through(m, x)[:, -1].square().sum().backward()
    assert x.grad is not None
    reached = (x.grad.abs().amax((0, 2)) > 1e-12).tolist()
    assert reached == [False] * first + [True] * (12 - first)


@torch.no_grad()
def test_what_is_computed_does_not_depend_on_bptt() -> None:
    x, outs = vectors(2, 11), []
    for bptt in (None, 1, 2):
        m = built(carrying(segment=3, bptt=bptt))
        outs.append(through(m, x))
    torch.testing.assert_close(outs[0], outs[1])
    torch.testing.assert_close(outs[0], outs[2])


# State.


@torch.no_grad()
def test_the_state_is_as_large_after_any_number_of_positions() -> None:
    m = built(carrying(TURNED, GRU(), segment=4, num_memory=2))
    sizes = set()
    for length in (0, 3, 4, 5, 200):
        _, state = m(ids(3, length), m.init_state(3))
        sizes.add(nbytes(state.blocks))
        assert m.state_bytes(length, 3) == nbytes(state.blocks)
    keys, hidden, memory = 2 * 16 * (4 + 2 * 2), 16, 2 * 16
    assert sizes == {3 * 8 * (2 * keys + 2 * hidden + memory)}


@torch.no_grad()
def test_rows_at_different_places_of_their_segments_are_read_together() -> None:
    m, texts = built(carrying(segment=4)), ids(4, 13)
    lengths = torch.tensor([3, 4, 0, 6])
    _, state = m(Signal(texts[:, :6], lengths), m.init_state(4))
    more = torch.stack([texts[row, n : n + 7] for row, n in enumerate(lengths.tolist())])
    y, state = m(more, state)
    for row, n in enumerate(lengths.tolist()):
        alone = m(texts[row : row + 1, : n + 7])[0]
        torch.testing.assert_close(y[row : row + 1], alone[:, n:])
        again, _ = m(texts[row : row + 1, : n + 7], m.init_state(1))
        torch.testing.assert_close(again, alone)
    assert state.positions == (10, 11, 7, 13)
    y, _ = m(texts[:2, :1], rows(state, [3, 0]))
    torch.testing.assert_close(y[:1], m(torch.cat((texts[3:], texts[:1, :1]), 1))[0][:, -1:])


def test_a_state_cannot_be_cut() -> None:
    m = built(carrying())
    assert not m.rewindable
    with pytest.raises(UserError, match="the state of 'recurrent_memory' cannot be truncated"):
        m.rewind(m.init_state(1), torch.tensor([0]))


@torch.no_grad()
def test_generated_text_is_the_most_likely_of_whole_forward_passes() -> None:
    m, prompt = built(carrying(TURNED, FeedForward(), segment=3)), [1, 5, 2, 7, 7]
    (found,) = generate(m, [prompt], Generation(max_new_tokens=9, temperature=0.0))
    expected = list(prompt)
    for _ in range(9):
        expected.append(int(m(torch.tensor([expected]))[0][0, -1].argmax()))
    assert found == expected[len(prompt) :]


# Cost.


def test_costs_count_every_pass_and_a_state_of_constant_size() -> None:
    spec = carrying(TURNED, FeedForward(), segment=8, num_memory=2)
    counted = cost(spec, 2, 32)
    assert counted.parameters == sum(p.numel() for p in build(spec).parameters())
    plain = cost(spec.changed(segmentation=None), 2, 32)
    linear = {name: part.flops for name, part in counted.parts.items()}["feed_forward"]
    # Three segments of 2 + 8 + 2 positions, and the last one writes no memory.
    assert linear == plain.parts["feed_forward"].flops * (3 * 12 + 10) // 32
    model = build(spec)
    assert counted.total.state == model.state_bytes(32, 2) == model.state_bytes(4, 2)
    assert counted.at(64).step_flops() == counted.step_flops()


# Refusals.

SENTENCES: list[tuple[dict[str, Any], str]] = [
    (
        {"blocks": (Block(branches=(Attention(mask=Full()),)),)},
        r"^blocks\.0\.branches\.0: 'recurrent_memory' reads one segment after",
    ),
    (
        {"blocks": (Block(branches=(Attention(mask=Causal() | Prefix()),)),)},
        r"so blocks must be causal",
    ),
    ({"blocks": (Block(residual=Reversible()),), "head": "language_model(tied=false)"}, r"blocks have two; use 'add'"),
    (
        {"encoder": Encoder(frontend=TEXT), "blocks": (Block(branches=(CrossAttention(),)),)},
        r"^encoder: .* leave it",
    ),
    (
        {"latents": Latents(), "blocks": (Block(branches=(CrossAttention(),)),)},
        r"^latents: the blocks of 'recurrent_memory' read only segments of the row",
    ),
    ({"frontend": {"kind": "patches", "patch": 4}, "head": "classification(num_classes=2)"}, r"^frontend: .* a grid"),
    (
        {"blocks": (Block(branches=({"kind": "relative_attention", "by_type": True},)),)},  # type: ignore[arg-type]
        r"vectors without a token type",
    ),
]


@pytest.mark.parametrize(("fields", "sentence"), SENTENCES)
def test_what_cannot_read_segments_is_refused(fields: dict[str, Any], sentence: str) -> None:
    data = {"width": 16, "frontend": TEXT, "segmentation": RecurrentMemory(), **fields}
    with pytest.raises(UserError, match=sentence):
        Model.parse(data)


def test_hashed_attention_is_exact_if_a_segment_and_its_memory_are_one_chunk() -> None:
    """A state of the blocks is no longer than a segment, so longer rows need no longer chunks."""
    for chunk, path in ((8, ()), (7, ("blocks", 0, "branches", 0))):
        spec = carrying(LSHAttention(chunk_length=chunk), segment=4, num_memory=2)
        assert spec.first_inexact(1000)[0] == path


def test_visible_keys_are_refused() -> None:
    m = built(carrying())
    with pytest.raises(UserError, match=r"a table of visible keys .* which 'recurrent_memory' reads in segments"):
        m(Signal(ids(1, 3), visible=torch.ones(1, 3, 3, dtype=torch.bool)))


def test_a_recipe_of_a_language_model_is_accepted() -> None:
    model_of = {"segmentation": "recurrent_memory(16, num_memory=4)", "frontend": {"kind": "text", "positions": "none"}}
    recipe = Recipe.parse({"data": {"source": "x.txt"}, "task": "next_token", "model": model_of})
    assert recipe.model.segmentation == RecurrentMemory(segment=16, num_memory=4)


# Recall beyond a segment.


def recalled(spec: Model, steps: int) -> float:
    """Share of first symbols that a model trained for ``steps`` steps repeats at the end of rows of 14 positions."""
    torch.manual_seed(0)
    m = build(spec).train()
    optimizer = torch.optim.AdamW(m.parameters(), 5e-3)
    for step in range(steps + 1):
        rows_ = torch.randint(4, VOCABULARY, (64, 14))
        rows_[:, 0], rows_[:, -1] = torch.randint(4, (64,)), VOCABULARY - 1
        logits = m(rows_)[0][:, -1]
        if step == steps:
            return (logits.argmax(-1) == rows_[:, 0]).float().mean().item()
        loss = torch.nn.functional.cross_entropy(logits, rows_[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError


def test_memory_recalls_what_a_stack_limited_to_a_segment_cannot() -> None:
    local = Block(branches=(Attention(num_heads=2, mask=Causal() & Blocks(size=4), relative=Rope()), FeedForward()))
    spec = carrying(segment=4, num_memory=2, init_std=0.1, num_layers=1, width=32)
    assert recalled(spec, 200) > 0.95
    assert recalled(spec.changed(segmentation=None, blocks=(local,)), 200) < 0.6
