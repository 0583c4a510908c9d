"""The k largest scores among equal ones: keys of the lowest positions, wherever they are stored."""

from __future__ import annotations

from functools import lru_cache, partial

import pytest
import torch
from tests.ops.attention_cases import SITES, Case, by_loops
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from torch import Tensor

from qkv.ops.attention import reference
from qkv.ops.attention.twins import top_k
from qkv.ops.attention.twins.largest import largest

TWINS = {"reference": reference.attention, "top k": partial(top_k.attention, block=300)}


def of_few_values(case: Case, dtype: torch.dtype) -> list[Tensor]:
    """Inputs whose products are small whole numbers, so that many of them are equal."""
    q, k, v = case.inputs(dtype)
    return [q.clamp(-1, 1).round(), k.clamp(-1, 1).round(), v]


@pytest.mark.parametrize("twin", TWINS)  # on top: the next test is that of the other twin, with the same loops
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("mask", ["causal", "window with sinks", "some see nothing", "full"])
@pytest.mark.parametrize("sites", SITES)
def test_equal_scores_are_taken_in_the_order_of_positions(twin: str, sites: str, mask: str, dtype: torch.dtype) -> None:
    for case in (Case(mask, sites, 11, top_k=3), Case(mask, sites, 12, (4, 4), top_k=1, alibi=True)):
        found = outputs_and_gradients(partial(TWINS[twin], problem=case.problem()), of_few_values(case, dtype))
        assert_all_same(found, looped(case, dtype))


@lru_cache(maxsize=2)
def looped(case: Case, dtype: torch.dtype) -> list[Tensor]:
    """Outputs and gradients by loops."""
    inputs = [t.double() for t in of_few_values(case, dtype)]
    return outputs_and_gradients(lambda q, k, v: by_loops(q, k, v, case.problem()), inputs)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_a_rounding_of_the_products_changes_nothing(twin: str, k: int) -> None:
    case = Case("causal", queries=14, top_k=k)
    q, keys, v = of_few_values(case, torch.float64)
    q = 3 * q + 0.7
    noise = 1 + 4e-16 * torch.randn(keys.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_same(TWINS[twin](q, keys * noise, v, case.problem()), TWINS[twin](q, keys, v, case.problem()), 1e-12)


def test_a_clear_difference_is_none_of_rounding() -> None:
    scores = torch.tensor([[[[1.0, 1.001, 0.999, 1.0, 1.0, -torch.inf]]]])
    steps = torch.arange(6)[None]
    assert largest(scores, 1, steps).tolist() == [[[[1]]]]
    assert sorted(largest(scores, 3, steps)[0, 0, 0].tolist()) == [0, 1, 3]
    assert sorted(largest(scores, 3, steps.flip(1))[0, 0, 0].tolist()) == [1, 3, 4]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tells_its_own_steps_apart(dtype: torch.dtype) -> None:
    """Two steps of the last digit are a difference, however far the scores are from 0."""
    scores = torch.tensor([[[[100.0, 102.0, 101.0, 102.0]]]], dtype=dtype)
    assert sorted(largest(scores, 2, torch.arange(4)[None])[0, 0, 0].tolist()) == [1, 3]
