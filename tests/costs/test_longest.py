"""The longest row that fits is the last one that fits."""

from __future__ import annotations

import pytest

from qkv.costs.longest import longest
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.model import Model


def model(mixer: str, positions: str = "none") -> Transformer:
    frontend = {"kind": "text", "vocab_size": 7, "positions": positions}
    return build(
        Model.parse({"width": 16, "context_length": 32, "frontend": frontend, "blocks": [{"branches": [mixer]}]}), 0
    )


def weights(built: Transformer) -> int:
    return 4 * sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize("room", [0, 127, 128, 1000, 123_456_789])
def test_keys_and_values_end_where_the_memory_does(room: int) -> None:
    built = model("attention(2)")
    assert longest(built, weights(built) + room) == room // (2 * 16 * 4)  # a key and a value of 16 numbers in 4 bytes


def test_a_state_that_does_not_grow_has_no_end() -> None:
    for mixer in ("linear_attention(2)", "gru", "attention(2, mask=causal & window(8))"):
        built = model(mixer)
        assert longest(built, weights(built) + built.state_bytes(1 << 30)) is None
        assert longest(built, weights(built) + built.state_bytes(1) - 1) == 0


def test_a_learned_table_ends_it_first() -> None:
    built = model("gru", "learned")
    assert longest(built, 1 << 30) == 32


def test_nothing_fits_beside_weights_that_do_not() -> None:
    built = model("attention(2)")
    assert longest(built, weights(built) - 1) == 0
