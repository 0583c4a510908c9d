"""The orders of a block and the head against formulas written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models.stacks import ids, model
from torch import Tensor

from qkv.layers.context import Context
from qkv.models.build import build
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.heads import LanguageModelHead
from qkv.spec.model import Block
from qkv.spec.parts import Gated, LayerNorm, NoNorm, NoResidual, Residual, RMSNorm, Scaled

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
HERE = Context(torch.arange(5)[None])


def block(order: Any, **fields: Any) -> Any:
    """One block with weights of its own everywhere, in float64."""
    built = build(
        model(Block(branches=(Attention(num_heads=2), FeedForward(activation="tanh")), order=order, **fields))
    )
    generator = torch.Generator().manual_seed(3)
    for parameter in built.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return built.double().blocks[0]


def parts(block: Any) -> tuple[Callable[[Tensor], Tensor], ...]:
    """(norm 1, branch 1, norm 2, branch 2), whichever of them the order has."""
    first, second = block.branches
    found: list[Any] = []
    for slot in (first, second):
        found.append(lambda x, norm=block.norm or slot.norm: norm(x, HERE))
        found.append(lambda x, body=slot.body: body(x, HERE)[0])
    return tuple(found)


def layer_norm(x: Tensor, norm: Any) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def test_pre_norm_is_x_plus_f_of_norm_x() -> None:
    made = block("pre")
    norm1, f, norm2, g = parts(made)
    x = X + f(norm1(X))
    torch.testing.assert_close(made(X, HERE)[0], x + g(norm2(x)))
    torch.testing.assert_close(norm1(X), layer_norm(X, made.branches[0].norm))


def test_post_norm_is_norm_of_x_plus_f_of_x() -> None:
    made = block("post")
    norm1, f, norm2, g = parts(made)
    x = norm1(X + f(X))
    torch.testing.assert_close(made(X, HERE)[0], norm2(x + g(x)))


def test_sandwich_norms_before_and_after_the_branch() -> None:
    made = block("sandwich", norm=RMSNorm())
    norm1, f, norm2, g = parts(made)
    after1, after2 = (slot.norm_after for slot in made.branches)
    x = X + after1(f(norm1(X)), HERE)
    torch.testing.assert_close(made(X, HERE)[0], x + after2(g(norm2(x)), HERE))
    assert not torch.equal(after1.weight, made.branches[0].norm.weight)


def test_parallel_branches_read_one_norm_and_are_summed() -> None:
    made = block("parallel")
    norm, f, _, g = parts(made)
    torch.testing.assert_close(made(X, HERE)[0], X + f(norm(X)) + g(norm(X)))
    assert sum("norm" in name for name, _ in made.named_parameters()) == 2, "one norm, with its weight and its bias"


def test_parallel_branches_with_norms_of_their_own() -> None:
    """GPT-NeoX, and Falcon's larger models."""
    made = block("parallel", norms=(LayerNorm(), RMSNorm()))
    norm1, f, norm2, g = parts(made)
    torch.testing.assert_close(made(X, HERE)[0], X + f(norm1(X)) + g(norm2(X)))
    assert made.norm is None
    assert [name for name, _ in made.named_parameters() if "norm" in name] == [
        "branches.0.norm.weight",
        "branches.0.norm.bias",
        "branches.1.norm.weight",
    ]


def test_outputs_of_branches_have_factors() -> None:
    """Falcon-H1."""
    made = block("parallel", factors=(0.5, -2.0))
    norm, f, _, g = parts(made)
    torch.testing.assert_close(made(X, HERE)[0], X + 0.5 * f(norm(X)) - 2.0 * g(norm(X)))
    with pytest.raises(SpecError, match="factors: 1 factors are given for 2 branches; give one for each, or none"):
        Block.parse({"factors": [0.5]})


def test_a_branch_may_go_without_the_norm_of_the_others() -> None:
    """ModernBERT's first layer: its front end has normed already."""
    made = block("pre", norms=(NoNorm(), LayerNorm()))
    _, f, norm, g = parts(made)
    x = X + f(X)
    torch.testing.assert_close(made(X, HERE)[0], x + g(norm(x)))


def test_listed_norms_that_are_the_common_one_change_nothing() -> None:
    for order in ("pre", "post", "sandwich"):
        torch.testing.assert_close(
            block(order, norms=(LayerNorm(), LayerNorm()))(X, HERE)[0], block(order)(X, HERE)[0], rtol=0.0, atol=0.0
        )


def test_as_many_norms_as_branches() -> None:
    with pytest.raises(SpecError, match="norms: 1 norms are given for 2 branches; give one for each, or none"):
        Block.parse({"norms": ["layer_norm"]})


def test_parallel_branches_do_not_care_about_their_order() -> None:
    made = block("parallel")
    before = made(X, HERE)[0]
    made.branches = torch.nn.ModuleList(reversed(made.branches))
    torch.testing.assert_close(made(X, HERE)[0], before)


@pytest.mark.parametrize(
    ("residual", "keeps"), [(Scaled(initial=0.2), 1.0), (Gated(initial=0.4), 1.0), (NoResidual(), 0.0)]
)
def test_residuals_join_each_branch(residual: Residual, keeps: float) -> None:
    made = block("pre", residual=residual)
    norm1, f, norm2, g = parts(made)

    def joined(x: Tensor, y: Tensor, slot: Any) -> Tensor:
        match residual:
            case Scaled():
                return x + slot.residual.weight * y
            case Gated():
                return x + slot.residual.gate.tanh() * y
        return keeps * x + y

    first, second = made.branches
    x = joined(X, f(norm1(X)), first)
    torch.testing.assert_close(made(X, HERE)[0], joined(x, g(norm2(x)), second))


def test_without_random_parts_training_and_eval_agree() -> None:
    dropping = block("pre", dropout=0.5, drop_path=0.5)
    torch.testing.assert_close(dropping.eval()(X, HERE)[0], block("pre").eval()(X, HERE)[0])
    assert not torch.allclose(dropping.train()(X, HERE)[0], dropping.eval()(X, HERE)[0])


def logits(head: LanguageModelHead) -> tuple[Any, Tensor, Tensor]:
    """(the model, what its head reads, its logits)."""
    built = build(model(head=head, init_std=0.5)).eval()
    if built.head.bias is not None:
        torch.nn.init.normal_(built.head.bias)
    with torch.no_grad():
        return built, built.features(ids())[0], built(ids())[0]


def test_a_tied_head_is_the_embedding_table() -> None:
    built, x, seen = logits(LanguageModelHead())
    assert built.head.weight is built.frontend.table
    torch.testing.assert_close(seen, x @ built.frontend.table.t())
    assert len([p for p in built.parameters() if p.shape == built.head.weight.shape]) == 1


def test_gradients_of_both_uses_of_a_tied_table_are_added() -> None:
    tied, free = build(model()), build(model(head=LanguageModelHead(tied=False)))
    free.load_state_dict({**tied.state_dict(), "head.weight": tied.frontend.table.data.clone()})
    for built in (tied, free):
        built(ids())[0].pow(2).sum().backward()
    torch.testing.assert_close(tied.frontend.table.grad, free.frontend.table.grad + free.head.weight.grad)


def test_a_free_head_with_bias() -> None:
    built, x, seen = logits(LanguageModelHead(tied=False, bias=True))
    assert built.head.weight is not built.frontend.table
    torch.testing.assert_close(seen, x @ built.head.weight.t() + built.head.bias)


def test_a_soft_cap_bounds_the_logits_and_leaves_small_ones_alone() -> None:
    built, x, seen = logits(LanguageModelHead(softcap=2.0))
    plain = x @ built.frontend.table.t()
    torch.testing.assert_close(seen, 2.0 * torch.tanh(plain / 2.0))
    assert plain.abs().max() > 2.0 > seen.abs().max()
    small = plain.abs() < 0.05
    assert small.any()
    torch.testing.assert_close(seen[small], plain[small], rtol=1e-3, atol=0.0)
