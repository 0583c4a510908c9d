"""Norms against torch's own modules, and batch norm over the real tokens alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

from qkv.layers.context import Context
from qkv.layers.norms import build_norm
from qkv.spec import parts as spec
from qkv.spec.errors import SpecError

WIDTH = 6


def context(length: int, lengths: Tensor | None = None) -> Context:
    return Context(torch.arange(length)[None], lengths)


def some(batch: int = 3, length: int = 5, seed: int = 0) -> Tensor:
    return 2 + 3 * torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scrambled(norm: Any) -> Any:
    for parameter in norm.parameters():
        parameter.data = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    return norm.double()


THEIRS: dict[str, tuple[spec.Norm, nn.Module]] = {
    "layer norm": (spec.LayerNorm(eps=1e-2), nn.LayerNorm(WIDTH, eps=1e-2)),
    "layer norm without bias": (spec.LayerNorm(bias=False), nn.LayerNorm(WIDTH, bias=False)),
    "rms norm": (spec.RMSNorm(eps=1e-2), nn.RMSNorm(WIDTH, eps=1e-2)),
    "rms norm without weight": (spec.RMSNorm(weight=False), nn.RMSNorm(WIDTH, eps=1e-6, elementwise_affine=False)),
}


@pytest.mark.parametrize("name", THEIRS)
def test_norms_of_a_position_equal_torch_with_gradients(name: str) -> None:
    part, theirs = THEIRS[name]
    ours = scrambled(build_norm(part, WIDTH))
    theirs.load_state_dict(ours.state_dict())
    theirs.double()
    x, y = some().requires_grad_(), some().requires_grad_()
    seen, expected = ours(x, context(5)), theirs(y)
    torch.testing.assert_close(seen, expected)
    (seen**3).sum().backward()
    (expected**3).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    for (_, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["fp64", "fp32", "bf16"])
def test_a_zero_centred_norm_is_gemma_s(dtype: torch.dtype) -> None:
    """In bf16 too: what multiplies by 1 + w is not rounded before."""
    ours = scrambled(build_norm(spec.RMSNorm(eps=1e-2, zero_centred=True), WIDTH)).to(dtype)
    theirs = GemmaRMSNorm(WIDTH, eps=1e-2).to(dtype)
    theirs.load_state_dict(ours.state_dict())
    x = some().to(dtype)
    if dtype == torch.float64:  # Gemma's own norm has no more than fp32
        expected = x / (x.square().mean(-1, keepdim=True) + 1e-2).sqrt() * (1 + ours.weight)
    else:
        expected = theirs(x)
    assert ours(x, context(5)).dtype == dtype
    torch.testing.assert_close(ours(x, context(5)), expected, rtol=2**-8 if dtype == torch.bfloat16 else 1e-6, atol=0.0)


def test_a_zero_centred_norm_starts_at_the_scale_1_and_learns_the_deviation() -> None:
    part = spec.RMSNorm(zero_centred=True)
    ours, plain, x = build_norm(part, WIDTH).double(), build_norm(spec.RMSNorm(), WIDTH).double(), some()
    assert not ours.weight.any()  # type: ignore[operator]
    torch.testing.assert_close(ours(x, context(5)), plain(x, context(5)))
    for norm in (ours, plain):
        norm(x, context(5)).pow(3).sum().backward()
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad)


def test_a_scale_that_is_not_there_has_no_centre() -> None:
    with pytest.raises(SpecError, match="zero_centred: there is no weight to centre"):
        spec.RMSNorm.parse({"weight": False, "zero_centred": True})


@pytest.mark.parametrize(
    "part",
    [spec.LayerNorm(), spec.RMSNorm(), spec.RMSNorm(zero_centred=True), spec.BatchNorm()],
    ids=["layer", "rms", "zero-centred", "batch"],
)
@pytest.mark.parametrize("training", [True, False])
def test_under_autocast_both_precisions_are_taken(part: spec.Norm, training: bool) -> None:
    norm = build_norm(part, WIDTH).train(training)
    x = some().float()
    expected = norm(x, context(5))
    with torch.autocast("cpu", torch.bfloat16):
        for given in (x, x.bfloat16()):
            torch.testing.assert_close(norm(given, context(5)).float(), expected, rtol=0.03, atol=0.05)


def batch_norm(**fields: float) -> Any:
    return build_norm(spec.BatchNorm(**fields), WIDTH).double()


def test_batch_norm_equals_torch_over_many_steps() -> None:
    ours, theirs = batch_norm(eps=1e-3, momentum=0.3), nn.BatchNorm1d(WIDTH, eps=1e-3, momentum=0.3).double()
    for step in range(4):
        x = some(seed=step)
        torch.testing.assert_close(ours(x, context(5)), theirs(x.mT).mT)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x, context(5)), theirs.eval()(x.mT).mT)


def test_batch_norm_is_per_feature_over_all_real_tokens() -> None:
    """By the formula, one feature at a time."""
    lengths = torch.tensor([5, 2, 4])
    norm, x = batch_norm(), some()
    seen = norm(x, context(5, lengths)).detach()
    for feature in range(WIDTH):
        real = [float(x[b, i, feature]) for b, n in enumerate(lengths.tolist()) for i in range(n)]
        mean = sum(real) / len(real)
        var = sum((v - mean) ** 2 for v in real) / len(real)
        assert float(seen[1, 1, feature]) == pytest.approx((float(x[1, 1, feature]) - mean) / (var + 1e-5) ** 0.5)
        assert float(norm.running_mean[feature]) == pytest.approx(0.1 * mean)
        assert float(norm.running_var[feature]) == pytest.approx(0.9 + 0.1 * var * len(real) / (len(real) - 1))


@pytest.mark.parametrize("training", [True, False])
def test_a_padded_batch_is_an_unpadded_one(training: bool) -> None:
    """Whatever stands in the padding; gradients included."""
    padded, plain = batch_norm().train(training), batch_norm().train(training)
    rows = [some(1, n, seed=n)[0] for n in (4, 1, 3)]
    x = torch.full((3, 6, WIDTH), 1e3, dtype=torch.float64)
    for row, tokens in enumerate(rows):
        x[row, : len(tokens)] = tokens
    x.requires_grad_()
    joined = torch.cat(rows)[None].requires_grad_()
    seen = padded(x, context(6, torch.tensor([4, 1, 3])))
    expected = plain(joined, context(8))
    real = torch.arange(6) < torch.tensor([4, 1, 3])[:, None]
    torch.testing.assert_close(seen[real], expected[0])
    assert not seen[~real].any()
    torch.testing.assert_close(padded.running_mean, plain.running_mean)
    torch.testing.assert_close(padded.running_var, plain.running_var)
    (seen**3).sum().backward()
    (expected**3).sum().backward()
    assert x.grad is not None
    assert joined.grad is not None
    torch.testing.assert_close(x.grad[real], joined.grad[0])
    assert not x.grad[~real].any()


def test_in_eval_batch_norm_looks_at_no_other_token() -> None:
    norm = batch_norm()
    norm(some(seed=4), context(5))
    norm.eval()
    before = norm.running_mean.clone()
    torch.testing.assert_close(norm(some()[:, 2:3], context(1)), norm(some(), context(5))[:, 2:3])
    assert torch.equal(norm.running_mean, before)


def test_one_token_has_no_variance_so_the_running_statistics_stand_in() -> None:
    norm = batch_norm()
    norm.running_mean += 2.0
    x = some(1, 1)
    torch.testing.assert_close(norm(x, context(1)), (x - 2) / (1 + 1e-5) ** 0.5)


def test_a_forward_pass_that_is_computed_again_counts_once_in_the_running_statistics() -> None:
    """As activation checkpointing does; a second batch counts anew."""
    norm, here = batch_norm(momentum=0.5), context(5)
    first, again = norm(some(), here), norm(some(), here)
    assert torch.equal(first, again)
    torch.testing.assert_close(norm.running_mean, 0.5 * some().mean((0, 1)))
    norm(some(), context(5))
    torch.testing.assert_close(norm.running_mean, 0.75 * some().mean((0, 1)))


def test_no_norm_changes_nothing() -> None:
    norm, x = build_norm(spec.NoNorm(), WIDTH), some()
    assert norm(x, context(5)) is x
    assert not list(norm.parameters())
