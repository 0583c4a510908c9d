"""Mixers with matrices over positions: their size, rows shorter and longer than it, initial values, saved tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.mixers.modules import applied, built, following, some
from torch import Tensor

from qkv.costs.cost import cost
from qkv.generation.decode.sample import generate
from qkv.layers.branch import linear_maps
from qkv.layers.context import Context
from qkv.layers.signal import Signal
from qkv.mixers.registry import build_branch
from qkv.models.build import build
from qkv.ops.fourier import fourier
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.generation import Generation
from qkv.spec.heads import ClassificationHead
from qkv.spec.masks import Full
from qkv.spec.mixers.linformer import Linformer
from qkv.spec.mixers.position_matrices import GMLP, Fourier, RandomMixing, TokenMLP
from qkv.spec.model import Block, Encoder, Latents, Model, Queries, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import NoPositions, Sinusoidal
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

KINDS = (TokenMLP, GMLP, RandomMixing, Linformer)


def model(*branches: Branch, context_length: int = 9, **fields: Any) -> Model:
    text = Text(vocab_size=7, positions=Sinusoidal())
    blocks = (Block(branches=branches),)
    head = ClassificationHead(num_classes=2)
    return Model.parse(
        {"width": 8, "context_length": context_length, "frontend": text, "blocks": blocks, "head": head} | fields
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_that_of_the_rows(kind: type[Branch]) -> None:
    """Of the stack that a branch lies in: context_length, number of latents, number of queries."""
    reads = Block(branches=(CrossAttention(num_heads=2), kind()))
    spec = model(
        *reads.branches, latents=Latents(count=5, blocks=(reads,)), queries=Queries(count=3, positions=Sinusoidal())
    )
    built_lengths = [branch.length for branch in build(spec).every_branch if isinstance(branch.spec, kind)]
    assert built_lengths == [5, 3]
    assert spec.position_limit is None, "latents read rows of any length"
    assert build(model(kind())).branches[0].length == 9
    assert build(model(kind(length=12))).branches[0].length == 12


def test_the_size_in_an_encoder_is_that_of_its_sources() -> None:
    encoder = Encoder(
        context_length=6, frontend=Text(vocab_size=7, positions=Sinusoidal()), blocks=(Block(branches=(TokenMLP(),)),)
    )
    spec = model(Attention(num_heads=2), CrossAttention(num_heads=2), encoder=encoder)
    built_model = build(spec)
    assert built_model.encoder is not None
    assert built_model.encoder.branches[0].length == 6
    assert (spec.position_limit, encoder.position_limit) == (None, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_estimated_parameters_are_those_of_the_model(kind: type[Branch]) -> None:
    spec = model(kind(), FeedForward(), num_layers=3)
    assert cost(spec, 2).parameters == sum(p.numel() for p in build(spec).parameters())


def test_flops_are_those_of_two_products_over_positions() -> None:
    """2 N F + 2 F N per feature."""
    with_branch, without = (
        cost(model(*branches, head=ClassificationHead(num_classes=2)), 1, 9)
        for branches in ([TokenMLP(hidden=5), FeedForward()], [FeedForward()])
    )
    assert with_branch.forward_flops - without.forward_flops == 8 * (2 * 9 * 5 + 2 * 5 * 9)


@pytest.mark.parametrize("kind", KINDS)
def test_longer_rows_are_refused(kind: type[Branch]) -> None:
    m = build(model(kind()))
    with pytest.raises(
        UserError, match=f"10 positions are more than the 9 for which '{kind.kind}' has weights; shorten"
    ):
        m(torch.zeros(1, 10, dtype=torch.long))
    with pytest.raises(UserError, match=f"10 positions are more than the 9 of '{kind.kind}'"):
        cost(model(kind()), 1, 10)
    branch = build_branch(kind(length=4), 8)
    with pytest.raises(UserError, match="5 positions are more than the 4 for which"):
        applied(branch, some(1, 5, 8, torch.float32))


def test_packed_rows_may_be_longer_than_their_documents() -> None:
    branch = built(TokenMLP(length=4))
    x, segments = some(1, 7), torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    y = applied(branch, x, segments=segments)
    assert torch.allclose(y[:, 4:], applied(branch, x[:, 4:]))


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_positions_than_a_row_has_are_refused(kind: type[Branch]) -> None:
    with pytest.raises(SpecError, match=r"blocks\.0\.branches\.0\.length: 4 positions are fewer than the 9 of a row"):
        model(kind(length=4))


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_is_needed_outside_of_a_model(kind: type[Branch]) -> None:
    with pytest.raises(UserError, match=f"the length of '{kind.kind}' is unknown outside of a model"):
        build_branch(kind(), 8)


@pytest.mark.parametrize("kind", KINDS)
def test_visible_keys_are_refused(kind: type[Branch]) -> None:
    x = some(1, 3, 8, torch.float32)
    with pytest.raises(UserError, match="cannot apply a table of visible keys"):
        build_branch(kind(length=3), 8)(
            x, Context(torch.arange(3)[None], visible=torch.ones(1, 3, 3, dtype=torch.bool))
        )


def test_gmlp_begins_near_identity_of_its_gate() -> None:
    """The gate is 1 within 1 %, so that a position does hardly depend on others."""
    branch = build(model(GMLP(), context_length=64)).branches[0]
    v = torch.randn(2, 64, 24)
    context = Context(torch.arange(64)[None])
    gate = branch.mixed(branch.norm(v, context), None, context)  # type: ignore[operator]
    assert (gate - 1).abs().max() < 0.01
    assert (gate - 1).abs().max() > 0


def test_a_causal_random_matrix_is_lower_triangular_and_its_rows_sum_to_1() -> None:
    matrix = build_branch(RandomMixing(length=5, mask="causal"), 8).matrix
    assert torch.equal(matrix, matrix.tril())
    assert torch.allclose(matrix.sum(1), torch.ones(5))
    assert matrix[0, 0] == 1


@pytest.mark.parametrize("kind", [GMLP, RandomMixing])
def test_a_causal_form_is_the_full_one_with_a_lower_triangular_matrix(kind: type[GMLP | RandomMixing]) -> None:
    causal, full, x = built(kind(length=7, mask="causal")), built(kind(length=7)), some(2, 7)
    assert causal.causal
    assert not full.causal
    causal.load_state_dict(full.state_dict())
    assert (applied(causal, x) - applied(full, x)).abs().max() > 1e-4
    for name in ("weight", "matrix"):
        if hasattr(full, name):
            getattr(full, name).data = getattr(full, name).data.tril()
    torch.testing.assert_close(applied(causal, x), applied(full, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [GMLP, RandomMixing])
def test_a_causal_form_decodes_up_to_its_length_and_no_further(kind: type[GMLP | RandomMixing]) -> None:
    branch, x = built(kind(length=4, mask="causal")), some(2, 5)
    _, state = branch(x[:, :3], following(0, 3, 2), branch.init_state(2))
    last, state = branch(x[:, 3:4], following(3, 1, 2), state)
    torch.testing.assert_close(last, applied(branch, x[:, :4])[:, 3:], rtol=1e-12, atol=1e-12)
    with pytest.raises(UserError, match=f"5 positions are more than the 4 for which '{kind.kind}' has weights"):
        branch(x[:, 4:], following(4, 1, 2), state)


@pytest.mark.parametrize("mixer", ["gmlp(mask=causal)", "random_mixing(mask=causal)", "monet(mask=causal)"])
def test_causal_forms_model_language_and_generate_up_to_the_context_length(mixer: str) -> None:
    recipe = Recipe.parse({"data": "x", "model": {"context_length": 8, "blocks": [{"branches": [mixer]}]}})
    assert recipe.model.decodes
    m = build(recipe.model.changed(width=8, frontend=Text(vocab_size=7, positions=NoPositions())))
    assert len(generate(m, [[1, 2]], Generation(max_new_tokens=6))[0]) == 6
    if "monet" not in mixer:
        with pytest.raises(UserError, match="9 positions are more than the 8"):
            m(torch.zeros(1, 9, dtype=torch.long))


@pytest.mark.parametrize(
    ("mixer", "advice"),
    [("token_mlp", "hidden units read the whole row; use attention, or gmlp"), ("gmlp", "use a causal mask")],
)
def test_what_reads_whole_rows_is_refused_where_a_model_decodes(mixer: str, advice: str) -> None:
    with pytest.raises(SpecError, match=f"needs a model that decodes; .*{advice}"):
        Recipe.parse({"data": "x", "model": {"blocks": [{"branches": [mixer]}]}})


def test_random_mixing_is_saved_and_not_trained() -> None:
    m = build(model(RandomMixing(), FeedForward(), num_layers=2))
    first, second = (branch.matrix for branch in m.branches if isinstance(branch.spec, RandomMixing))
    assert torch.allclose(first.sum(1), torch.ones(9))
    assert not torch.equal(first, second), "each layer has its own"
    assert "blocks.0.branches.0.body.matrix" in m.state_dict()
    assert all("matrix" not in name for name, _ in m.named_parameters())
    assert torch.equal(first, build(m.spec).branches[0].matrix), "drawn from the seed of the weights"


def test_adapters_reach_the_token_mlp() -> None:
    m = build(model(TokenMLP(), GMLP()))
    assert [path.split("body.")[1] for path in linear_maps(m)] == ["up", "down", "up", "down"]


def test_bidirectional_attention_has_no_such_limit() -> None:
    m = build(model(Attention(num_heads=2, mask=Full())))
    out: Tensor = m(Signal(torch.zeros(1, 30, dtype=torch.long)))[0]
    assert (m.limit, out.shape) == (None, (1, 2))


def test_two_transforms_reverse_a_row() -> None:
    """F F is n times the reversal that leaves the first element; the real part keeps the even half of a row."""
    x = some(2, 7)
    reversed_row = x.flip(1).roll(1, 1).flip(2).roll(1, 2)
    twice = applied(built(Fourier()), applied(built(Fourier()), x))
    torch.testing.assert_close(twice, x.shape[1] * x.shape[2] * (x + reversed_row) / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fourier_transform_by_products_equals_the_fft(dtype: torch.dtype) -> None:
    x = some(3, 300, 24).to(dtype)
    close = 1e-5 if dtype is torch.float32 else 1e-2
    fast, products = fourier(x), fourier(x, torch.ones(3, 300, dtype=torch.bool))
    assert fast.dtype == products.dtype == dtype
    assert float((fast - products).abs().max() / fast.abs().max()) < close
