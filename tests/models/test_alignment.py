"""What each word of a target looks at in the source."""

from __future__ import annotations

import pytest
import torch
from tests.models.stacks import model

from qkv.layers.tap import Recorder
from qkv.models.alignment import alignment
from qkv.models.build import build
from qkv.ops.attention import reference
from qkv.spec.branches import GRU, Attention, FeedForward
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Text
from qkv.spec.models.cross import AdditiveAttention, CrossAttention, FixedContext
from qkv.system.errors import UserError

SOURCE, TARGET = [3, 1, 4, 1, 5], [2, 6, 5]
ENCODER = Encoder(
    frontend=Text(vocab_size=9), blocks=(Block(branches=(Attention(mask=Full()), FeedForward()), dropout=0.5),)
)
READS = Block(
    branches=(Attention(), CrossAttention(num_heads=2), GRU(), AdditiveAttention(), FixedContext()), dropout=0.5
)


def test_every_branch_that_attends_is_named_in_order() -> None:
    found = alignment(build(model(READS, num_layers=2, encoder=ENCODER)), SOURCE, TARGET)
    assert [name for name, _ in found] == [f"blocks.{i}.branches.{j}" for i in (0, 1) for j in (1, 3)]
    assert [weights.shape for _, weights in found] == [(heads, 3, 5) for heads in (2, 1)] * 2
    for _, weights in found:
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


def test_a_copy_of_the_source_is_found_again() -> None:
    """Queries, keys and token vectors made so that a target looks at its own word in the source."""
    shared = ENCODER.changed(share_embedding=True, frontend=Text(vocab_size=13))
    m = build(model(Block(branches=(CrossAttention(num_heads=1, bias=False),)), encoder=shared, width=16))
    branch, encoder = m.branches[0], m.encoder
    assert encoder is not None
    with torch.no_grad():
        m.frontend.table.copy_(100 * torch.eye(13, 16))
        encoder.frontend.table, m.frontend.positions.table, encoder.frontend.positions.table = (  # type: ignore[union-attr]
            m.frontend.table,
            *(torch.nn.Parameter(torch.zeros(256, 16)) for _ in range(2)),
        )
        for p in encoder.blocks.parameters():
            p.zero_()
        branch.query.weight.copy_(4 * torch.eye(16))  # type: ignore[union-attr]
        branch.memory.weight[:16].copy_(4 * torch.eye(16))  # type: ignore[union-attr]
    ((_, weights),) = alignment(m, [3, 1, 4, 5], [5, 3, 4])
    assert weights[0].argmax(-1).tolist() == [3, 0, 2]
    assert weights.max(-1).values.min() > 0.99


def test_the_model_goes_on_as_it_was() -> None:
    m = build(model(READS, encoder=ENCODER)).train()
    first, second = (alignment(m, SOURCE, TARGET) for _ in range(2))
    assert m.training
    assert m.encoder is not None
    assert m.encoder.training
    torch.testing.assert_close(first[0][1], second[0][1], msg="dropout is out while one looks")


def test_weights_are_computed_for_those_alone_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    m = build(model(READS, encoder=ENCODER)).eval()
    memory, ids, other = m.encode(torch.tensor([SOURCE])), torch.tensor([TARGET]), Recorder("frontend.output", "output")
    expected = m(ids, memory=memory)[0]
    torch.testing.assert_close(m(ids, memory=memory, tap=Recorder("weights"))[0], expected)
    monkeypatch.setattr(reference, "weights", lambda *_: pytest.fail("nobody asked"))
    m(ids, memory=memory, tap=other)
    branches = [f"blocks.0.branches.{j}.output" for j in range(5)]
    assert [path for path, _ in other] == ["frontend.output", *branches, "norm.output", "head.output"]


def test_weights_can_be_seen_while_decoding() -> None:
    m = build(model(READS, encoder=ENCODER)).eval()
    state, rows = m.init_state(1, memory=m.encode(torch.tensor([SOURCE]))), []
    for token in TARGET:
        tap = Recorder("weights")
        _, state = m(torch.tensor([[token]]), state, tap=tap)
        rows.append(tap["blocks.0.branches.1.weights"])
    torch.testing.assert_close(torch.cat(rows, 2)[0], alignment(m, SOURCE, TARGET)[0][1])


@pytest.mark.parametrize(
    ("blocks", "encoder", "sentence"),
    [
        ((GRU(), FixedContext()), ENCODER, "no branch of the model attends to the encoder's output"),
        ((GRU(),), None, "the model has no encoder, which reads a source"),
    ],
)
def test_where_nothing_is_aligned(blocks: tuple[GRU, ...], encoder: Encoder | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        alignment(build(model(Block(branches=blocks), encoder=encoder)), SOURCE, TARGET)
