"""The axes of a recipe and the number of processes give each process its place and its share of the rows."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.parallel.mesh import arrange, place, share, sizes
from qkv.spec.errors import SpecError
from qkv.spec.recipes.parallel import Parallel
from qkv.system.errors import UserError
from qkv.system.world import ALONE, World


class Member(World):
    """Process ``rank`` of ``size`` that exchange nothing."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size


@pytest.mark.parametrize(
    ("fields", "processes", "expected"),
    [
        ({}, 1, (1, 1)),
        ({}, 6, (6, 1)),
        ({"shard": 2}, 6, (3, 2)),
        ({"shard": -1, "replicate": 1}, 3, (1, 3)),
        ({"shard": 2, "replicate": 2}, 4, (2, 2)),
    ],
)
def test_the_rest_of_the_processes_fills_an_axis(
    fields: dict[str, int], processes: int, expected: tuple[int, int]
) -> None:
    mesh = sizes(Parallel(**fields), processes)
    assert (mesh["replicate"], mesh["shard"], mesh["context"]) == (*expected, 1)


@pytest.mark.parametrize(
    ("fields", "processes", "sentence"),
    [
        ({"shard": 4}, 2, "shard 4 × context 1 needs a multiple of 4 processes, but there are 2 processes"),
        ({"shard": 4}, 1, "there is 1 process"),
        ({"shard": 2, "replicate": 2}, 8, "replicate 2 × shard 2 × context 1 needs 4 processes, but there are 8"),
    ],
)
def test_axes_that_do_not_fit_the_processes_are_refused(fields: dict[str, int], processes: int, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        sizes(Parallel(**fields), processes)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"shard": 0}, "an axis has a size of 1 or more"),
        ({"shard": -1}, "only one axis can be -1"),
        ({"context": 2, "shard": 2}, "processes with all weights"),
        ({"shard": -2}, "greater than or equal to -1"),
        ({"shards": 2}, "did you mean 'shard'"),
    ],
)
def test_unusable_axes_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Parallel.parse(fields)


def test_ranks_count_through_the_last_axis_first() -> None:
    mesh = {"replicate": 2, "shard": 3, "context": 2}
    places = [place(mesh, rank) for rank in range(12)]
    assert [(p["replicate"], p["shard"], p["context"]) for p in places] == [
        (i, j, k) for i in range(2) for j in range(3) for k in range(2)
    ]


def test_processes_along_the_context_share_rows() -> None:
    shares = list[tuple[int, int]]()
    for rank in range(8):
        world = Member(rank, 8)
        world.mesh = {"replicate": 2, "shard": 2, "context": 2}
        shares.append(share(world))
    assert shares == [(rank // 2, 4) for rank in range(8)]


def test_one_process_computes_all_rows_and_stays_as_it_is() -> None:
    arrange(ALONE, Parallel())
    assert (share(ALONE), dict(ALONE.mesh)) == ((0, 1), {})
    world = Member(1, 2)
    arrange(world, Parallel(shard=2))
    assert (share(world), world.mesh["shard"]) == ((1, 2), 2)
