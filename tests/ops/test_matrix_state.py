"""Matrix states by chunks, against one position after the other, in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.ops.matrix_state import decayed, delta, reference

ROWS, HEADS, KEY, VALUE = 2, 3, 4, 5


def inputs(count: int, seed: int = 0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=draw, dtype=torch.float64)

    keys = torch.nn.functional.normalize(normal(ROWS, HEADS, count, KEY), dim=-1)
    return {
        "q": normal(ROWS, HEADS, count, KEY),
        "k": keys,
        "v": normal(ROWS, HEADS, count, VALUE),
        "strength": normal(ROWS, HEADS, count).sigmoid(),
        "log_decay": -normal(ROWS, HEADS, count).exp(),
        "state": normal(ROWS, HEADS, KEY, VALUE),
    }


def chunked(name: str, given: dict[str, Tensor | None], **more: Any) -> tuple[Tensor, Tensor]:
    if name == "delta":
        return delta.delta(**given, **more)  # type: ignore[arg-type]
    return decayed.decayed(**{key: value for key, value in given.items() if key != "strength"}, **more)  # type: ignore[arg-type]


def looped(name: str, given: dict[str, Tensor | None]) -> tuple[Tensor, Tensor]:
    if name == "delta":
        return reference.delta(**given)  # type: ignore[arg-type]
    return reference.decayed(**{key: value for key, value in given.items() if key != "strength"})  # type: ignore[arg-type]


def part(given: dict[str, Tensor], rows: slice, positions: slice) -> dict[str, Tensor]:
    found = {key: value[rows, :, positions] for key, value in given.items() if key != "state"}
    return {**found, "state": given["state"][rows]}


@pytest.mark.parametrize("name", ["decayed", "delta"])
@pytest.mark.parametrize(("count", "chunk"), [(1, 4), (7, 1), (8, 4), (9, 4), (5, 64)])
@pytest.mark.parametrize("forgets", [True, False])
def test_chunks_equal_the_loop_in_values_and_gradients(name: str, count: int, chunk: int, forgets: bool) -> None:
    given = {key: value.requires_grad_() for key, value in inputs(count).items()}
    if not forgets:
        given["log_decay"] = None  # type: ignore[assignment]
    leaves = [value for key, value in given.items() if value is not None and (name == "delta" or key != "strength")]
    results = [chunked(name, given, chunk=chunk), looped(name, given)]  # type: ignore[arg-type]
    weight = torch.linspace(-1, 1, VALUE, dtype=torch.float64)
    gradients = [torch.autograd.grad((out * weight).sum() + last.square().sum(), leaves) for out, last in results]
    for one, other in zip((*results[0], *gradients[0]), (*results[1], *gradients[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["decayed", "delta"])
@pytest.mark.parametrize("chunk", [1, 3, 4, 16])
def test_documents_of_a_row_do_not_see_each_other(name: str, chunk: int) -> None:
    given = inputs(10)
    segments = torch.tensor([[4, 4, 4, 4, 4, 1, 1, 4, 4, 4], [0, 1, 1, 1, 2, 2, 2, 2, 2, 3]])
    found, last = chunked(name, given, segments=segments, chunk=chunk)
    for row, ends in enumerate([[0, 5, 7, 10], [0, 1, 4, 9, 10]]):
        for first, end in pairwise(ends):
            own = part(given, slice(row, row + 1), slice(first, end))
            if first:
                own["state"] = torch.zeros_like(own["state"])
            expected, state = looped(name, own)
            torch.testing.assert_close(found[row : row + 1, :, first:end], expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(last[row : row + 1], state, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["decayed", "delta"])
def test_padding_leaves_the_state(name: str) -> None:
    given = inputs(7)
    valid = torch.arange(7) < torch.tensor([7, 3])[:, None]
    found, last = chunked(name, given, valid=valid, chunk=2)
    expected, state = looped(name, part(given, slice(1, 2), slice(0, 3)))
    torch.testing.assert_close(found[1:, :, :3], expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(last[1:], state, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["decayed", "delta"])
def test_strong_decay_and_long_rows_stay_finite(name: str) -> None:
    """A product of decays underflows to 0, and quotients of products are never formed."""
    given = {key: value.float() for key, value in inputs(300).items()}
    given["log_decay"] = given["log_decay"] * 1e4
    found, last = chunked(name, {key: value.requires_grad_() for key, value in given.items()}, chunk=64)
    (found.sum() + last.sum()).backward()
    for each in (found, last, *(value.grad for value in given.values() if value.grad is not None)):
        assert each.isfinite().all()


@pytest.mark.parametrize("name", ["decayed", "delta"])
@pytest.mark.parametrize("count", [3, 9])
def test_no_state_is_an_empty_one(name: str, count: int) -> None:
    given = inputs(count)
    found, last = chunked(name, given | {"state": None}, chunk=4)  # type: ignore[dict-item]
    torch.testing.assert_close(found, chunked(name, given | {"state": torch.zeros_like(given["state"])}, chunk=4)[0])
    assert last is None


def test_without_decay_the_state_sums_outer_products() -> None:
    given = inputs(9)
    given["state"] = torch.zeros_like(given["state"])
    out, last = chunked("decayed", given | {"log_decay": None}, chunk=4)  # type: ignore[dict-item]
    torch.testing.assert_close(out, (given["q"] @ given["k"].mT).tril() @ given["v"])
    torch.testing.assert_close(last, given["k"].mT @ given["v"])


def test_the_delta_rule_replaces_the_value_of_a_key() -> None:
    """With orthonormal keys and full strength, a key returns the value that was written to it last."""
    keys = torch.eye(KEY, dtype=torch.float64)[[0, 1, 0, 2]].expand(ROWS, HEADS, 4, KEY)
    values = inputs(4)["v"]
    ones = torch.ones(ROWS, HEADS, 4, dtype=torch.float64)
    zero = torch.zeros(ROWS, HEADS, KEY, VALUE, dtype=torch.float64)
    _, last = delta.delta(keys, keys, values, ones, None, zero, chunk=3)
    expected = torch.stack((values[:, :, 2], values[:, :, 1], values[:, :, 3], zero[:, :, 0]), 2)
    torch.testing.assert_close(last, expected)
