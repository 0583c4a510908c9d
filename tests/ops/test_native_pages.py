"""Attention that reads keys and values in pages, against loops in float64, by every instruction path of the machine."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch
from tests.ops.attention_cases import by_loops
from tests.ops.present import needs_native
from torch import Tensor

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Causal, Sites
from qkv.ops.native.pages import MOST, PageTable, ScoreTerms, attention, suits


class Held(NamedTuple):
    """What each row holds, (H, n, D), and the positions that come."""

    keys: list[Tensor]
    values: list[Tensor]
    past: list[int]
    after: list[int]


class Size(NamedTuple):
    """Sizes of a call; ``past``: positions of each row before it, ``came``: of each row in it."""

    heads: int
    kv_heads: int
    width: int
    value_width: int
    page: int
    past: tuple[int, ...]
    came: tuple[int, ...]


SIZES = [
    Size(2, 2, 16, 16, 4, (0,), (1,)),
    Size(4, 2, 64, 64, 32, (5, 31, 32, 200), (1, 1, 1, 1)),
    Size(6, 1, 10, 7, 4, (0, 3, 17), (3, 0, 2)),
    Size(3, 3, 20, 33, 8, (0, 0, 70), (0, 5, 5)),
    Size(8, 4, 32, 80, 16, (100, 1), (MOST, 2)),
]
TERMS = {
    "plain": ScoreTerms(0.3),
    "slopes": ScoreTerms(0.3, slopes=torch.linspace(0.02, 0.4, 8)),
    "softcap": ScoreTerms(0.8, softcap=1.5),
    "sink": ScoreTerms(0.3, sink=torch.linspace(-2, 3, 8)),
    "all": ScoreTerms(0.5, 2.0, torch.linspace(0.02, 0.4, 8), torch.linspace(-2, 3, 8)),
}


def sample(size: Size) -> tuple[tuple[Tensor, Tensor, Tensor], list[Tensor], PageTable, Held]:
    """New q, k, v; the pages, in no order; their table; and what the rows hold once the new ones are stored."""
    generator, shuffled = torch.Generator().manual_seed(sum(size.past)), random.Random(1)
    heads, rows, count = size.kv_heads, len(size.past), max(1, *size.came)

    def drawn(number: int, width: int) -> Tensor:
        """As a projection of positions gives them, (B, heads, N, D)."""
        return torch.randn(rows, count, number, width, generator=generator).transpose(1, 2)

    new = drawn(size.heads, size.width), drawn(heads, size.width), drawn(heads, size.value_width)
    after = [past + came for past, came in zip(size.past, size.came, strict=True)]
    table = torch.zeros(rows, -(-max(after) // size.page) + 1, dtype=torch.long)
    places = [(row, p) for row in range(rows) for p in range(-(-after[row] // size.page))]
    shuffled.shuffle(places)
    pages, held = list[Tensor](), Held([], [], list(size.past), after)
    for row, p in places:
        pages.append(torch.full((heads * size.page * (size.width + size.value_width),), torch.nan))
        table[row, p] = pages[-1].data_ptr()
    of = {int(table[row, p]): page for (row, p), page in zip(places, pages, strict=True)}
    for row in range(rows):
        for to, fresh, width, begin in (
            (held.keys, new[1], size.width, 0),
            (held.values, new[2], size.value_width, heads * size.page * size.width),
        ):
            old = torch.randn(heads, size.past[row], width, generator=generator)
            for p in range(size.past[row]):
                page = of[int(table[row, p // size.page])][begin : begin + heads * size.page * width]
                page.view(heads, size.page, width)[:, p % size.page] = old[:, p]
            to.append(torch.cat((old, fresh[row, :, : size.came[row]]), 1))
    return new, pages, PageTable(table, size.page), held


def expected(q: Tensor, held: Held, row: int, how: ScoreTerms) -> Tensor:
    """Outputs (H, n, Dv) of the new positions of a row."""
    past, after = held.past[row], held.after[row]
    steps = torch.arange(after)[None]
    heads = q.shape[1]
    slopes, sink = (None if t is None else t[:heads].double() for t in (how.slopes, how.sink))
    sites = Sites(steps[:, past:], steps, aligned=True)
    problem = AttentionProblem(Causal(), sites, how.scale, slopes, softcap=how.softcap, sink=sink)
    own = [t[None].double() for t in (q[row, :, : after - past], held.keys[row], held.values[row])]
    return by_loops(own[0], own[1], own[2], problem)[0]


def worst_error(size: Size, how: ScoreTerms) -> float:
    (q, k, v), pages, table, held = sample(size)
    slopes, sink = (None if t is None else t[: size.heads] for t in (how.slopes, how.sink))
    found = attention(q, k, v, table, held.past, held.after, how._replace(slopes=slopes, sink=sink))
    assert found.shape == (*q.shape[:3], size.value_width)
    worst = 0.0
    for row, came in enumerate(size.came):
        if came:
            worst = max(worst, float((found[row, :, :came] - expected(q, held, row, how)).abs().max()))
    assert len(pages) == int((table.addresses != 0).sum())
    return worst


@needs_native
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("terms", TERMS)
@torch.no_grad()
def test_outputs_equal_loops(size: Size, terms: str) -> None:
    assert worst_error(size, TERMS[terms]) < 2e-6


@needs_native
@torch.no_grad()
def test_new_keys_and_values_are_stored_and_nothing_else() -> None:
    size = SIZES[2]
    (q, k, v), pages, table, held = sample(size)
    before = [page.isnan() for page in pages]
    attention(q, k, v, table, held.past, held.after, TERMS["plain"])
    came = sum(size.came) * size.kv_heads * (size.width + size.value_width)
    assert sum(int((was & ~page.isnan()).sum()) for was, page in zip(before, pages, strict=True)) == came


@needs_native
@torch.no_grad()
def test_threads_and_other_rows_change_nothing() -> None:
    size = SIZES[1]
    (q, k, v), pages, table, held = sample(size)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3, 16):
            torch.set_num_threads(count)
            found.append(attention(q, k, v, table, held.past, held.after, TERMS["plain"]))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    alone = PageTable(table.addresses[2:3].contiguous(), size.page)
    found.append(attention(q[2:3], k[2:3], v[2:3], alone, held.past[2:3], held.after[2:3], TERMS["plain"]))
    assert torch.equal(found[3], found[0][2:3])
    assert pages


@needs_native
def test_it_is_used_only_for_what_it_computes() -> None:
    q = torch.zeros(2, 3, 1, 16)
    with torch.no_grad():
        assert suits(q)
        assert not suits(q.double())
        assert not suits(q[:, :, :0])
        assert not suits(q.expand(-1, -1, MOST + 1, -1))
        assert not suits(q.to("meta"))
    assert not suits(q), "there are no gradients"
