"""Counts for attention by hashing equal torch's counter, and grow with the length and not with its square."""

from __future__ import annotations

import pytest

from qkv.costs.cost import Cost, cost
from qkv.costs.measuring.measure import count_flops
from qkv.spec.masks import Causal, Full
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Sinusoidal

PARTS = {
    "one round": LSHAttention(chunk_length=5, num_hashes=1, num_buckets=(4,)),
    "factors, rounds, both sides": LSHAttention(
        mask=Full(), chunk_length=4, num_hashes=3, num_buckets=(2, 6), chunks_after=1
    ),
    "not hashed": LSHAttention(chunk_length=24),
}


def counted(part: LSHAttention, length: int = 24) -> Cost:
    text = Text(vocab_size=50, positions=Sinusoidal())
    return cost(
        Model(width=32, context_length=24, frontend=text, blocks=(Block(branches=(part,)),), num_layers=2), 2, length
    )


@pytest.mark.parametrize("name", PARTS)
def test_flops_are_those_of_torchs_counter(name: str) -> None:
    found = counted(PARTS[name])
    assert (found.forward_flops, found.train_flops) == count_flops(found)  # the hash has no gradient


def test_cost_follows_the_length() -> None:
    part = LSHAttention(mask=Causal(), chunk_length=64, num_hashes=2)
    short, long = (counted(part, length) for length in (1024, 4096))
    assert long.forward_flops == 4 * short.forward_flops
    assert long.memory.activations < 4.01 * short.memory.activations
    assert long.step_flops() > 1.5 * short.step_flops(), "a step of decoding meets every key"
