"""All seven mixers in one stack: it learns, it decodes, and computing blocks again changes nothing."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from tests.models.stacks import VOCABULARY, ids, model, seven
from torch import Tensor
from torch.nn import functional as F

from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import GRU, Attention, FeedForward
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import BatchNorm
from qkv.state.tree import nbytes, rows


def loss(built: Transformer, batch: Tensor) -> Tensor:
    logits, _ = built(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def test_seven_mixers_in_one_stack_learn_and_decode() -> None:
    """Rows that count upwards by a step of their own: knowable only from what came before."""
    steps = torch.arange(1, 7)[:, None]
    batch = (torch.arange(16)[None] * steps + steps) % VOCABULARY
    built = build(seven(), seed=1)
    optimizer = torch.optim.AdamW(built.parameters(), lr=5e-3)
    before = float(loss(built, batch).detach())
    for _ in range(60):
        optimizer.zero_grad()
        loss(built, batch).backward()
        optimizer.step()
    with torch.no_grad():
        assert before > 2.3
        assert float(loss(built.eval(), batch)) < 0.4
        assert torch.equal(continued(built, batch[:, :4], 12), batch)


def continued(built: Transformer, prompt: Tensor, count: int) -> Tensor:
    """The likeliest next ids, one step at a time through the state."""
    logits, state = built(prompt, built.init_state(prompt.shape[0]))
    found = [prompt]
    for _ in range(count):
        found.append(logits[:, -1:].argmax(-1))
        logits, state = built(found[-1], state)
    return torch.cat(found, 1)


@torch.no_grad()
def test_steps_equal_one_pass_and_rows_can_be_forked() -> None:
    built = build(seven(init_std=0.3)).eval()
    whole = built(ids(3, 20))[0]
    logits, state = built(ids(3, 20)[:, :12], built.init_state(3))
    torch.testing.assert_close(logits, whole[:, :12], atol=1e-5, rtol=1e-4)
    fork = rows(state, [2, 0, 2])
    for i in range(12, 20):
        logits, fork = built(ids(3, 20)[[2, 0, 2], i : i + 1], fork)
        torch.testing.assert_close(logits[:, 0], whole[[2, 0, 2], i], atol=1e-4, rtol=1e-4)
    assert state.positions.tolist() == [12, 12, 12]
    assert fork.positions.tolist() == [20, 20, 20]
    assert nbytes(fork.blocks) >= built.state_bytes(20, 3)


@pytest.mark.parametrize(
    "spec", [seven(), model(Block(norm=BatchNorm(), dropout=0.3, drop_path=0.3), num_layers=3, norm=BatchNorm())]
)
def test_computing_blocks_again_gives_equal_gradients_and_statistics(spec: Any) -> None:
    """Dropout draws the same numbers the second time, and batch norm counts a batch once."""
    kept, again = build(spec), build(spec)
    again.recompute = True
    for built in (kept, again):
        torch.manual_seed(0)
        loss(built.train(), ids()).backward()
    for (name, p), q in zip(kept.named_parameters(), again.parameters(), strict=True):
        assert p.grad is not None, name
        torch.testing.assert_close(q.grad, p.grad, msg=lambda text, name=name: f"{name}: {text}")
    for (name, a), b in zip(kept.named_buffers(), again.buffers(), strict=True):
        torch.testing.assert_close(b, a, msg=lambda text, name=name: f"{name}: {text}")


def test_computing_blocks_again_keeps_less(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = model(Block(branches=(Attention(num_heads=2), FeedForward())), num_layers=4)
    kept = []
    for recompute in (False, True):
        built, sizes = build(spec), []
        built.recompute = recompute
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            loss(built, ids(4, 32))
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 3


def test_a_pattern_of_blocks_repeats_with_weights_of_its_own() -> None:
    built = build(model(Block(branches=(GRU(),)), Block(branches=(FeedForward(),)), num_layers=5))
    kinds = [block.branches[0].body.spec.kind for block in built.blocks]  # type: ignore[union-attr,index]
    assert kinds == ["gru", "feed_forward", "gru", "feed_forward", "gru"]
    first, third = (built.blocks[i].branches[0].body.cells[0].input_weight for i in (0, 2))  # type: ignore[union-attr,index]
    assert not torch.equal(first, third)


@torch.no_grad()
def test_a_whole_model_in_bf16_is_near_to_fp32() -> None:
    built = build(seven(init_std=0.2)).eval()
    expected = built(ids(3, 20))[0]
    seen, state = built.to(torch.bfloat16)(ids(3, 20)[:, :15], built.init_state(3))
    rest, state = built(ids(3, 20)[:, 15:], state)
    assert seen.dtype == torch.bfloat16
    assert (torch.cat((seen, rest), 1) - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("stack", ["blocks", "encoder.blocks"])
def test_without_gradients_only_the_latest_vectors_are_kept(stack: str) -> None:
    """Of a model's own blocks and of an encoder's."""
    text = Text(vocab_size=VOCABULARY)
    encoder = Encoder(
        context_length=32, frontend=text, blocks=(Block(branches=(Attention(mask=Full()),)),), num_layers=5
    )
    reads = Block(branches=(Attention(), CrossAttention()))
    built = build(model(reads, num_layers=5, encoder=encoder))
    left: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def keep(_: object, __: object, output: tuple[Tensor, object]) -> None:
        alive.append(sum(seen() is not None for seen in left))
        left.append(weakref.ref(output[0]))

    for block in built.get_submodule(stack):  # type: ignore[union-attr]
        block.register_forward_hook(keep)
    with torch.no_grad():
        built(ids(), memory=built.encode(ids()))
    assert alive == [0, 1, 1, 1, 1]
