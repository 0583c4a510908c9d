"""The guards of ``conftest`` work: each is shown catching what it is for."""

from __future__ import annotations

import os
import socket
import warnings

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_uninitialised_memory_is_nan(dtype: torch.dtype) -> None:
    some = torch.zeros(2, dtype=dtype)
    fresh = [
        torch.empty(3, dtype=dtype),
        torch.empty_like(some),
        some.new_empty(3),
        torch.empty_strided((2, 2), (2, 1), dtype=dtype),
        torch.zeros(0, dtype=dtype).resize_(3),
    ]
    assert all(bool(x.isnan().all()) for x in fresh)


def test_uninitialised_integers_are_far_outside_of_any_index() -> None:
    assert int(torch.empty(1, dtype=torch.long)) == torch.iinfo(torch.long).max


def test_a_read_past_what_was_written_shows_in_the_sum() -> None:
    buffer = torch.empty(4)
    buffer[:3] = 1.0
    assert float(buffer[:3].sum()) == 3.0
    assert bool(buffer.sum().isnan())


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("example.invalid", 80)])
def test_the_network_is_blocked(address: tuple[str, int]) -> None:
    with socket.socket() as s, pytest.raises(RuntimeError, match="no network"):
        s.connect(address)
    with pytest.raises(RuntimeError, match="no network"):
        socket.getaddrinfo(*address)


def test_this_machine_can_still_be_reached() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client.connect(server.getsockname())
        assert client.getpeername() == server.getsockname()


def test_the_cache_is_a_temporary_folder(cache_folder: object) -> None:
    assert os.environ["QKV_CACHE"] == str(cache_folder)


def test_a_warning_is_an_error() -> None:
    with pytest.raises(UserWarning, match="mind"):
        warnings.warn("mind", UserWarning, stacklevel=1)


def test_one_thread_so_that_sums_have_one_order() -> None:
    assert torch.get_num_threads() == 1
