"""Each optional path is said to be unavailable in turn, as on a processor that lacks it: nothing takes it, and the
results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tests.ops.clock import forget_choices, inject_times
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from torch import Tensor
from torch.nn import functional as F

from qkv.models.fast import replayed_step
from qkv.ops import activation
from qkv.ops.attention import choose as attention
from qkv.ops.attention import reference as attention_reference
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import native as native_attention
from qkv.ops.linear import choose as linear
from qkv.ops.linear import onednn as onednn_linear
from qkv.ops.linear import operator, precision
from qkv.ops.linear.activated import activated
from qkv.ops.masks import Causal, Sites
from qkv.ops.native import library, loading, pages
from qkv.ops.orthogonal import choose as orthogonal
from qkv.ops.quantized import choose as quantized
from qkv.ops.quantized import reference as quantized_reference
from qkv.ops.selection import choices, onednn
from qkv.system import huge_pages
from qkv.system.optional import ALL, PATHS, VARIABLE

CPU = torch.device("cpu")
CACHES: tuple[Any, ...] = (library._loaded, native_attention._loaded, pages._loaded, onednn_linear._fused)
TWINS_OF = {
    "native": {"native"},
    "onednn": {"oneDNN", "sdpa, oneDNN"},
    "onednn-operator": {"oneDNN operator"},
    "bf16": {"bf16"},
}
"""Names of the twins that a path computes."""


@pytest.fixture(params=[*PATHS, ALL])
def without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A path that is turned off, or all, where nothing is chosen yet, and every twin that remains seems the fastest in
    turn, as ``torch`` takes longest.
    """
    monkeypatch.setenv(VARIABLE, request.param)
    for cached in CACHES:
        cached.cache_clear()
    forget_choices(monkeypatch)
    yield request.param
    for cached in CACHES:
        cached.cache_clear()


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_nothing_offers_it(without: str) -> None:
    """What says whether a path is there says no, for reasons of this machine or of the setting."""
    offers: dict[str, Callable[[], bool]] = {
        "native": lambda: library.available() or pages.available(random(1)) or native_attention.suits(*QUERIES[:2]),
        "tiles": library.has_tiles,
        "onednn": onednn.available,
        "onednn-operator": lambda: operator.available() or onednn_linear._fused(),
        "bf16": lambda: precision.runs_in("bf16", CPU) == "bf16" or library.rounds_to_bf16(),
        "huge-pages": huge_pages.possible,
        "graphs": lambda: not replayed_step._off(),
    }
    assert offers.keys() == PATHS.keys()
    with torch.no_grad():
        assert not [path for path in PATHS if without in (path, ALL) and offers[path]()]
    if without in ("native", ALL):
        assert loading.names() is None
        assert library.described().endswith(f"QKV_WITHOUT={without} turns it off")


QUERIES = [random(1, 2, 40, 16), random(1, 2, 40, 32)[..., :16].clone(), random(1, 2, 40, 48)[..., :16].clone()]


def work() -> dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Tensor]]]:
    """Operations with their references in float64 and their inputs."""
    steps = torch.arange(40)[None]
    problem = AttentionProblem(Causal(), Sites(steps, steps, aligned=True), 0.25)
    gelu = activation.Activation("gelu", F.gelu)
    maps = {
        f"{rows} rows": (linear.linear, F.linear, [random(rows, 512), random(520, 512), random(520)])
        for rows in (1, 5, 30, 100)
    }
    return {
        **maps,
        "attention": (
            partial(attention.attention, problem=problem),
            partial(attention_reference.attention, problem=problem),
            QUERIES,
        ),
        "linear and activation": (
            lambda x, w: activated(x, w, None, gelu),
            lambda x, w: F.gelu(F.linear(x, w)),
            [random(100, 512), random(520, 512)],
        ),
    }


@pytest.mark.parametrize("slow", ["none", "oneDNN operator", "native"])
def test_results_are_the_same_whatever_is_left(without: str, slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Races are between what is left, in which one of the paths takes longest."""
    monkeypatch.setattr(attention, "_SMALLEST", 1)
    races = inject_times(monkeypatch, lambda name: 9.0 if name in (slow, "torch", "sdpa", "apart") else 1.0 + len(name))
    for function, expected, inputs in work().values():
        with torch.no_grad():
            assert_same(function(*inputs), expected(*(t.double() for t in inputs)))
        assert_all_same(
            outputs_and_gradients(function, inputs), outputs_and_gradients(expected, [t.double() for t in inputs])
        )
    missing = set().union(*(TWINS_OF.get(path, set()) for path in PATHS if without in (path, ALL)))
    assert not missing & {name for race in races for name in race}
    assert not missing & {choice.twin for choice in choices.all_choices()}


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_quantised_weights_are_read_by_what_is_left(without: str, bits: int) -> None:
    packed, x = quantized_reference.pack(random(70, 96), bits, 32 if bits < 16 else 0), random(6, 96)
    with torch.no_grad():
        found = quantized.linear(x, packed)
    dense = quantized_reference.unpack(packed).double()
    step = x.unflatten(-1, (-1, 32)).abs().amax(-1).repeat_interleave(32, -1).double() / 254
    most = (step if bits < 16 else x.double().abs() / 256) @ dense.abs().t()
    assert (found - x.double() @ dense.t()).abs().le(most + 1e-5).all()
    if without in ("native", ALL):
        assert_same(found, x.double() @ dense.t())
        assert {choice.twin for choice in choices.all_choices()} == {"torch"}


def test_matrices_are_made_orthogonal_by_what_is_left(without: str) -> None:
    found = orthogonal.orthogonal(random(48, 64))
    values = torch.linalg.svdvals(found.double())
    assert values.min() > 0.5
    assert values.max() < 1.3
    missing = set().union(*(TWINS_OF.get(path, set()) for path in PATHS if without in (path, ALL)))
    assert not missing & {choice.twin for choice in choices.all_choices()}
