"""Token ids made into vectors with positions."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertEmbeddings

from qkv.frontends.text import TextFrontend
from qkv.layers.context import Context
from qkv.layers.signal import Signal
from qkv.ops.positions import sinusoid
from qkv.spec.base import problems_of
from qkv.spec.branches import Branch
from qkv.spec.errors import SpecError
from qkv.spec.mixers.relative_attention import RelativeAttention
from qkv.spec.model import Block, Model, Stack, Text
from qkv.spec.parts import LayerNorm, Learned, NoPositions, Positions, Sinusoidal
from qkv.system.errors import UserError

WIDTH, LENGTH = 8, 10
IDS = torch.tensor([[3, 0, 6], [1, 1, 5]])


def built(part: Text, *branches: Branch) -> TextFrontend:
    blocks = (Block(branches=branches),) if branches else ()
    frontend = TextFrontend(part, Stack(frontend=part, context_length=LENGTH, blocks=blocks), WIDTH)
    generator = torch.Generator().manual_seed(0)
    for parameter in frontend.parameters():
        parameter.data.normal_(generator=generator)
    return frontend.eval()


def applied(frontend: TextFrontend, positions: Tensor | None = None) -> Tensor:
    return frontend(Signal(IDS), Context(torch.arange(3)[None] if positions is None else positions))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("part", [Learned(), Sinusoidal(base=100.0), NoPositions()], ids=lambda p: p.kind)
def test_added_positions(part: Positions, scale: bool) -> None:
    frontend = built(Text(vocab_size=7, positions=part, scale=scale))
    vectors = frontend.table[IDS] * (math.sqrt(WIDTH) if scale else 1.0)
    torch.testing.assert_close(applied(frontend), vectors + expected_positions(frontend, part, WIDTH))


def test_narrow_embeddings_are_mapped_to_the_width_after_their_norm() -> None:
    part = Text(vocab_size=7, positions=Learned(), types=2, norm=LayerNorm(), embedding_width=3, scale=True)
    frontend = built(part)
    assert frontend.types is not None
    assert (frontend.table.shape, frontend.types.shape) == ((7, 3), (2, 3))
    vectors = frontend.table[IDS] * math.sqrt(3) + frontend.types[0] + expected_positions(frontend, Learned(), 3)
    norm, projection = frontend.norm, frontend.projection
    vectors = torch.nn.functional.layer_norm(vectors, (3,), norm.weight, norm.bias)
    torch.testing.assert_close(applied(frontend), vectors @ projection.weight.T + projection.bias)


@pytest.mark.parametrize("part", [Learned(), Sinusoidal()], ids=lambda p: p.kind)
def test_concatenated_positions_take_half_of_the_width(part: Positions) -> None:
    frontend = built(Text(vocab_size=7, positions=part, join="concatenate"))
    seen = applied(frontend)
    assert frontend.table.shape == (7, WIDTH // 2)
    assert seen.shape == (2, 3, WIDTH)
    torch.testing.assert_close(seen[..., : WIDTH // 2], frontend.table[IDS])
    torch.testing.assert_close(seen[..., WIDTH // 2 :], expected_positions(frontend, part, WIDTH // 2).expand(2, 3, -1))


def expected_positions(frontend: TextFrontend, part: Positions, width: int) -> Tensor:
    match part:
        case Learned():
            return frontend.positions.table[:3][None]  # type: ignore[union-attr,index]
        case Sinusoidal():
            return sinusoid(torch.arange(3), width, part.base)[None]
    return torch.zeros(1, 3, width)


def test_positions_added_after_the_norm() -> None:
    first = built(Text(vocab_size=7, norm=LayerNorm(), norm_first=True))
    with torch.no_grad():
        first.norm.weight.copy_(torch.arange(1.0, WIDTH + 1))
        first.norm.bias.zero_()
        x = first.table[IDS]
        centred = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        torch.testing.assert_close(
            applied(first), centred * torch.arange(1.0, WIDTH + 1) + expected_positions(first, Learned(), WIDTH)
        )
    with pytest.raises(ValidationError) as raised:
        Text(vocab_size=7, norm=LayerNorm(), norm_first=True, join="concatenate")
    assert "norm_first" in str(SpecError(problems_of(raised.value, Text)))


def test_a_sinusoid_may_count_from_another_position() -> None:
    plain, later = (built(Text(vocab_size=7, positions=Sinusoidal(offset=offset))) for offset in (0, 4))
    vectors = later.table[IDS]
    torch.testing.assert_close(applied(later) - vectors, applied(plain, torch.arange(4, 7)[None]) - plain.table[IDS])


def test_mask_tokens_are_dropped_out_and_the_others_make_up_for_them() -> None:
    """The share counts the real positions of each row; a row of mask tokens alone has no vectors."""
    frontend = built(Text(vocab_size=7, positions=NoPositions(), mask_token=2)).to(torch.float64)
    ids, lengths = torch.tensor([[3, 2, 6, 2], [2, 5, 1, 2], [4, 4, 2, 2]]), torch.tensor([4, 3, 2])
    seen = frontend(Signal(ids), Context(torch.arange(4)[None], lengths=lengths))
    for row, length in enumerate(lengths.tolist()):
        share = sum(int(ids[row, i]) == 2 for i in range(length)) / length
        for i in range(length):
            factor = 0.0 if ids[row, i] == 2 else 0.88 / (1 - share)
            torch.testing.assert_close(seen[row, i], frontend.table[ids[row, i]] * factor)
    alone = frontend(Signal(torch.full((1, 3), 2)), Context(torch.arange(3)[None]))
    assert not alone.any()


def test_a_row_of_mask_tokens_alone_is_finite_at_its_padding() -> None:
    frontend = built(Text(vocab_size=7, positions=NoPositions(), mask_token=2)).to(torch.float64)
    signal = Signal(torch.tensor([[4, 1, 3], [2, 0, 0]]), lengths=torch.tensor([3, 1]))
    assert frontend.embed(signal)[0].isfinite().all()


def test_a_model_whose_mask_tokens_are_dropped_out_does_not_decode() -> None:
    model = Model(frontend=Text(vocab_size=7, mask_token=2))
    assert not model.causal
    assert not model.decodes
    assert model.first_not_decoding() == ("frontend",)


def test_each_row_has_its_own_positions() -> None:
    frontend = built(Text(vocab_size=7))
    seen = applied(frontend, torch.tensor([[0, 1, 2], [7, 8, 9]]))
    torch.testing.assert_close(seen[1], frontend.table[IDS[1]] + frontend.positions.table[7:10])  # type: ignore[union-attr,index]


@pytest.mark.parametrize(
    ("part", "join"),
    [
        (Learned(), "add"),
        (Sinusoidal(), "add"),
        (Learned(), "concatenate"),
        (Sinusoidal(), "concatenate"),
        (NoPositions(), "add"),
    ],
)
def test_vectors_have_the_precision_of_the_table(part: Positions, join: Literal["add", "concatenate"]) -> None:
    frontend = built(Text(vocab_size=7, positions=part, join=join))
    assert applied(frontend.to(torch.float64)).dtype == torch.float64
    assert applied(frontend.to(torch.bfloat16)).dtype == torch.bfloat16


def test_only_a_learned_table_has_an_end() -> None:
    limits = [built(Text(vocab_size=7, positions=part)).limit for part in (Learned(), Sinusoidal(), NoPositions())]
    assert limits == [LENGTH, None, None]


def test_dropout_acts_in_training_alone() -> None:
    frontend = built(Text(vocab_size=7, dropout=0.5))
    plain = applied(frontend)
    torch.testing.assert_close(plain, applied(built(Text(vocab_size=7))))
    torch.manual_seed(0)
    dropped = applied(frontend.train())
    kept = dropped != 0
    assert 0 < int(kept.sum()) < dropped.numel()
    torch.testing.assert_close(dropped[kept], (2 * plain)[kept])


def test_gradients_reach_the_tokens_that_occur_and_the_positions_that_stand() -> None:
    frontend = built(Text(vocab_size=7))
    applied(frontend).sum().backward()
    assert frontend.table.grad is not None
    assert frontend.table.grad.sum(1).tolist() == [WIDTH, 2 * WIDTH, 0, WIDTH, 0, WIDTH, WIDTH]
    assert frontend.positions.table.grad.sum(1).tolist() == [2 * WIDTH] * 3 + [0] * 7  # type: ignore[union-attr]


def test_a_vocabulary_that_nobody_knows_is_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"model\.frontend\.vocab_size is not set: set it, or build the model together with its tokenizer",
    ):
        built(Text())


def test_concatenating_nothing_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"frontend\.join: there are no positions to concatenate; use 'add', or other positions than 'none'",
    ):
        Model.parse({"frontend": {"kind": "text", "positions": "none", "join": "concatenate"}})


def bert(**fields: int) -> BertEmbeddings:
    sizes = {
        "vocab_size": 7,
        "hidden_size": WIDTH,
        "max_position_embeddings": LENGTH,
        "type_vocab_size": 3,
        "num_attention_heads": 1,
    }
    theirs = BertEmbeddings(BertConfig(**{**sizes, **fields}, layer_norm_eps=1e-3, pad_token_id=None)).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in theirs.parameters():
        parameter.data.normal_(generator=generator)
    return theirs


@pytest.mark.parametrize(
    "types", [None, torch.tensor([[0, 2, 1], [1, 1, 0]]), torch.tensor([[0, 2, 2]])], ids=["none", "each", "one row"]
)
def test_types_and_norm_are_bert_s(types: Tensor | None) -> None:
    theirs, frontend = bert(), built(Text(vocab_size=7, types=3, norm=LayerNorm(eps=1e-3)))
    frontend.load_state_dict(
        {
            "table": theirs.word_embeddings.weight,
            "types": theirs.token_type_embeddings.weight,
            "positions.table": theirs.position_embeddings.weight,
            "norm.weight": theirs.LayerNorm.weight,
            "norm.bias": theirs.LayerNorm.bias,
        }
    )
    expected = theirs(IDS, token_type_ids=None if types is None else types.expand(2, -1))
    seen = frontend(Signal(IDS), Context(torch.arange(3)[None], types=types))
    torch.testing.assert_close(seen, expected, rtol=1e-5, atol=1e-6)


def test_types_stand_beside_the_tokens_and_before_the_positions() -> None:
    """Concatenated positions leave the types half of the width; scaled are the tokens alone."""
    frontend = built(Text(vocab_size=7, types=2, join="concatenate", scale=True))
    assert frontend.types is not None
    seen = frontend(Signal(IDS), Context(torch.arange(3)[None], types=torch.ones_like(IDS)))
    torch.testing.assert_close(seen[..., : WIDTH // 2], frontend.table[IDS] * math.sqrt(WIDTH) + frontend.types[1])


@pytest.mark.parametrize(
    ("part", "types", "sentence"),
    [
        (Text(vocab_size=7), IDS, "token types are given, but the front end reads none; set frontend.types"),
        (Text(vocab_size=7, types=2), IDS[:, :2], "2 × 2 types are given for 2 × 3 tokens; give one type per token"),
    ],
)
def test_types_that_do_not_fit_are_refused(part: Text, types: Tensor, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        built(part)(Signal(IDS), Context(torch.arange(3)[None], types=types))


def test_an_id_of_minus_one_is_the_query_vector() -> None:
    """Scaled and placed as a token's vector is; without one such an id is none."""
    frontend = built(Text(vocab_size=7, query=True, scale=True))
    assert frontend.query is not None
    context = Context(torch.arange(3)[None])
    ids = IDS.clone()
    ids[0, 1] = -1
    seen, without = frontend(Signal(ids), context), frontend(Signal(IDS), context)
    assert torch.equal(seen[1], without[1])
    torch.testing.assert_close(
        seen[0, 1] - without[0, 1], math.sqrt(WIDTH) * (frontend.query[0, 0] - frontend.table[IDS[0, 1]])
    )
    seen[0, 1].sum().backward()
    assert frontend.table.grad is not None
    assert not frontend.table.grad.any()
    torch.testing.assert_close(frontend.query.grad, torch.full((1, 1, WIDTH), math.sqrt(WIDTH)))


def test_types_may_be_read_by_someone_behind_the_front_end() -> None:
    frontend, types = (
        built(Text(vocab_size=7, positions=NoPositions()), RelativeAttention(by_type=True)),
        torch.ones_like(IDS),
    )
    frontend.table.data.normal_()
    assert torch.equal(frontend(Signal(IDS), Context(torch.arange(3)[None], types=types)), frontend.table[IDS])
    with pytest.raises(UserError, match="2 × 2 types are given for 2 × 3 tokens"):
        frontend(Signal(IDS), Context(torch.arange(3)[None], types=types[:, :2]))
