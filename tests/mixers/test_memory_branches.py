"""Branches that read each row's own memory: lengths, rows, what is computed once, and the weights that can be seen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.mixers.modules import WIDTH, built, some
from torch import Tensor

from qkv.layers.context import MEMORY, Context, Memory
from qkv.layers.tap import Recorder
from qkv.ops.additive_attention import choose
from qkv.spec.branches import Branch
from qkv.spec.models.cross import AdditiveAttention, CrossAttention, FixedContext
from qkv.state import tree

ALL: dict[str, Branch] = {
    "cross attention": CrossAttention(num_heads=2, num_kv_heads=1),
    "cross attention, capped": CrossAttention(num_heads=2, softcap=0.3),
    "cross attention, normed": CrossAttention(num_heads=3, qk_norm=True, value_dim=5),
    "cross attention, biases apart": CrossAttention(num_heads=2, key_bias=False, value_dim=3),
    "additive attention": AdditiveAttention(hidden=7),
    **{f"fixed context, {how}": FixedContext(pooling=how) for how in ("first", "last", "mean", "max")},
}
ATTEND = [name for name in ALL if "attention" in name]
LENGTHS = (4, 1, 6, 0)


def memory(lengths: tuple[int, ...] = LENGTHS, dtype: torch.dtype = torch.float64) -> Memory:
    """Junk stands behind the real vectors."""
    vectors = some(len(lengths), max(*lengths, 1), dtype=dtype)
    real = torch.arange(vectors.shape[1]) < torch.tensor(lengths)[:, None]
    return Memory((torch.where(real[..., None], vectors, 1e3),), torch.tensor(lengths))


def context(known: Memory | None, count: int, past: int = 0) -> Context:
    return Context(torch.arange(past, past + count)[None], memories={MEMORY: known})


def at_once(branch: Any, x: Tensor, known: Memory) -> Tensor:
    return branch(x, context(known, x.shape[1]))[0]


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_each_row_reads_its_own_memory_and_none_of_its_padding(name: str) -> None:
    branch, x, known = built(ALL[name]), some(4), memory()
    y = at_once(branch, x, known)
    for row, length in enumerate(LENGTHS):
        alone = Memory((known.vectors[0][row : row + 1, :length],), torch.tensor([length]))
        if length:
            torch.testing.assert_close(y[row : row + 1], at_once(branch, x[row : row + 1], alone))
    torch.testing.assert_close(
        y[3], branch.output.bias.expand_as(y[3]), msg="a row without a memory gets the bias alone"
    )
    assert (y[0] - y[1]).abs().max() > 1e-3


@pytest.mark.parametrize("index", [[3, 0, 2, 1], [2], [2, 0, 0, 2, 3], []], ids=str)
@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_rows_take_their_memory_along(name: str, index: list[int]) -> None:
    branch, x, known = built(ALL[name]), some(4), memory()
    y, state = branch(x[:, :3], context(None, 3), branch.init_state(4, memory=known))
    moved = tree.rows(state, index)
    later, _ = branch(x[index, 3:], context(None, 4, past=3), moved)
    torch.testing.assert_close(torch.cat((y[index], later), 1), at_once(branch, x, known)[index])


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_the_state_is_read_and_never_written(name: str) -> None:
    branch, x = built(ALL[name]), some(4)
    state = branch.init_state(4, memory=memory())
    before = [t.clone() for t in tree.tensors(state)]
    for i in range(x.shape[1]):
        _, state = branch(x[:, i : i + 1], context(None, 1, past=i), state)
    assert all(torch.equal(a, b) for a, b in zip(before, tree.tensors(state), strict=True))


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_the_memory_is_mapped_once_for_a_sequence_that_is_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    branch, x = built(ALL[name]), some(4)
    state = branch.init_state(4, memory=memory())
    expected = branch(x, context(None, 7), state)[0]
    monkeypatch.setattr(type(branch), "remember", lambda *_: pytest.fail("the memory is read again"))
    torch.testing.assert_close(branch(x, context(None, 7), state)[0], expected)


def weights_of(branch: Branch, x: Tensor, context: Context, state: Any = None) -> Tensor | None:
    """What a tap sees of the weights."""
    tap = Recorder("weights")
    branch.assign_name("it")
    branch(x, replace(context, tap=tap), state)
    return dict(tap).get("it.weights")


@pytest.mark.parametrize("name", ATTEND)
@torch.no_grad()
def test_the_weights_are_those_that_the_output_is_made_of(name: str) -> None:
    """Linear in the values: with the weights and the mapped values of the state comes the output."""
    branch, x, known = built(ALL[name]), some(4), memory()
    weights = weights_of(branch, x, context(known, 7))
    heads = getattr(ALL[name], "num_heads", 1)
    assert weights.shape == (4, heads, 7, 6)
    torch.testing.assert_close(weights.sum(-1)[:3], torch.ones(3, heads, 7, dtype=torch.float64))
    assert not weights[3].any()
    for row, length in enumerate(LENGTHS):
        assert not weights[row, ..., length:].any()
    state = branch.init_state(4, memory=known)
    values = state.vectors[:, None] if isinstance(ALL[name], AdditiveAttention) else state.values
    mixed = weights @ values.repeat_interleave(heads // values.shape[1], 1)
    torch.testing.assert_close(branch.output(mixed.transpose(1, 2).flatten(2)), at_once(branch, x, known))
    torch.testing.assert_close(weights_of(branch, x, context(None, 7), state), weights)


def test_one_vector_for_all_has_no_weights() -> None:
    assert weights_of(built(FixedContext()), some(4), context(memory(), 7)) is None


@pytest.mark.parametrize("cast", ["weights in bf16", "autocast"])
@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_half_precision_gives_nearly_the_same(name: str, cast: str) -> None:
    x, known = some(3, dtype=torch.float32), memory((4, 1, 6), torch.float32)
    expected = at_once(built(ALL[name], dtype=torch.float32), x, known)
    if cast == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            seen = at_once(built(ALL[name], dtype=torch.float32), x, known)
    else:
        half = Memory((known.vectors[0].bfloat16(),), known.lengths)
        seen = at_once(built(ALL[name], dtype=torch.bfloat16), x.bfloat16(), half)
        assert seen.dtype == torch.bfloat16
    assert (seen.float() - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("name", ALL)
def test_the_ending_maps_onto_the_residual_stream(name: str) -> None:
    assert built(ALL[name]).ending().weight.shape[0] == WIDTH


def test_additive_attention_in_blocks_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    branch, x, known = built(ALL["additive attention"]), some(4), memory()
    plain = at_once(branch, x, known)
    grads = torch.autograd.grad(plain.square().sum(), list(branch.parameters()))
    monkeypatch.setattr(choose, "_LARGEST", 0)
    y = at_once(branch, x, known)
    torch.testing.assert_close(y, plain)
    for got, expected in zip(torch.autograd.grad(y.square().sum(), list(branch.parameters())), grads, strict=True):
        torch.testing.assert_close(got, expected)


@torch.no_grad()
def test_keys_without_a_bias_are_keys_whose_bias_is_zero() -> None:
    apart, zero = (built(CrossAttention(num_heads=2, value_dim=3, key_bias=given)) for given in (False, True))
    zero.memory.weight.copy_(apart.memory.weight)
    zero.memory.bias.copy_(torch.cat((torch.zeros(WIDTH), apart.value_bias)))
    zero.query.load_state_dict(apart.query.state_dict())
    zero.output.load_state_dict(apart.output.state_dict())
    assert apart.value_bias.abs().max() > 0
    x, known = some(4), memory()
    torch.testing.assert_close(at_once(apart, x, known), at_once(zero, x, known))


@torch.no_grad()
def test_capped_scores_are_those_of_a_loop() -> None:
    """Logits s become c tanh(s / c); the scores are large enough for the cap to show."""
    branch, x, known = built(CrossAttention(num_heads=2, softcap=0.3)), 5 * some(1, 3), memory((4,))
    vectors, features = known.vectors[0][0], WIDTH // 2
    q, heads = branch.query(x)[0], []
    k, v = branch.memory(vectors).split((WIDTH, WIDTH), -1)
    for h in range(2):
        part = slice(h * features, (h + 1) * features)
        rows = []
        for i in range(3):
            scores = [float(q[i, part] @ k[j, part]) / features**0.5 for j in range(4)]
            weights = torch.tensor([0.3 * math.tanh(s / 0.3) for s in scores], dtype=torch.float64).softmax(0)
            rows.append(sum(weights[j] * v[j, part] for j in range(4)))
        heads.append(torch.stack(rows))
    torch.testing.assert_close(at_once(branch, x, known)[0], branch.output(torch.cat(heads, -1)))
