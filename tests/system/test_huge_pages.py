"""Memory in huge pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from qkv.system import huge_pages


def test_blocks_are_apart_aligned_and_zero() -> None:
    found = huge_pages.blocks([100, 1, 5 << 20])
    assert [t.nbytes for t in found] == [100, 1, 5 << 20]
    assert all(t.data_ptr() % huge_pages.ALIGNMENT == 0 and not t.any() for t in found)
    assert found[0].data_ptr() % huge_pages.SIZE == 0
    for i, t in enumerate(found):
        t.fill_(i + 1)
    assert [t.unique().tolist() for t in found] == [[1], [2], [3]]
    assert len({t.untyped_storage().data_ptr() for t in found}) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_blocks_are_private_memory_for_which_huge_pages_are_asked() -> None:
    """Shared memory has a setting of its own, which is mostly off."""
    (block,) = huge_pages.blocks([8 << 20])
    of_mapping: dict[str, str] = {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            begin, end = (int(each, 16) for each in first.split("-"))
            of_mapping = {"mode": rest.split()[0]} if begin <= block.data_ptr() < end else {}
        elif of_mapping:
            of_mapping[first] = rest
            if first == "VmFlags:":
                break
    assert of_mapping["mode"].endswith("p")
    if huge_pages.possible():
        assert "hg" in of_mapping["VmFlags:"].split()


def test_blocks_outlive_each_other() -> None:
    first, second = huge_pages.blocks([64, 64])
    first.fill_(7)
    del second
    assert torch.equal(first, torch.full((64,), 7, dtype=torch.uint8))
