"""A world of one process exchanges nothing, and one of a process group exchanges through it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from qkv.system.errors import UserError
from qkv.system.world import ALONE, ProcessGroupWorld


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_one_process_exchanges_nothing() -> None:
    value, values = object(), [1.0, 2.0]
    assert (ALONE.rank, ALONE.size, ALONE.first, dict(ALONE.mesh)) == (0, 1, True, {})
    assert ALONE.agree(value) is value
    assert ALONE.lead(lambda: value) is value
    assert ALONE.sum(values) is values
    ALONE.barrier()


def test_a_process_group_of_one_is_a_world(process_group: None) -> None:
    world = ProcessGroupWorld()
    assert (world.rank, world.size, world.first, dict(world.mesh)) == (0, 1, True, {"replicate": 1})
    assert world.agree({"steps": 3}) == {"steps": 3}
    assert world.lead(lambda: "read") == "read"
    assert world.sum([2**53, 0.5]) == [2**53, 0.5]

    def refuse() -> None:
        raise UserError("the disk is full")

    with pytest.raises(UserError, match="the disk is full"):
        world.lead(refuse)
    assert dict(ProcessGroupWorld({"replicate": 1, "shard": 1}).mesh) == {"replicate": 1, "shard": 1}
    with pytest.raises(UserError, match="is for 2 processes, but there are 1"):
        ProcessGroupWorld({"replicate": 2})


def test_without_a_process_group_it_is_refused() -> None:
    with pytest.raises(UserError, match="has no process group"):
        ProcessGroupWorld()


def test_the_module_needs_no_torch() -> None:
    code = "import sys, qkv.system.world; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
