"""A short form of the script: random models keep the state contract, and a planted fault is found and made small."""

from __future__ import annotations

import pytest
from tests.contracts.faults import instead
from tests.fuzz.contract import VOCABULARY, Case, broken, case, smallest

from qkv.ops.attention.twins import top_k
from qkv.spec.branches import Attention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, NoPositions


@pytest.mark.parametrize("seed", range(20))
def test_a_random_model_keeps_the_contract(seed: int) -> None:
    assert broken(case(seed), ("ragged rows",)) is None


def test_a_fault_is_found_and_made_small() -> None:
    equal = Attention(num_heads=2, head_dim=1, qk_norm=LayerNorm(), top_k=2)
    blocks = (Block(branches=(equal, Attention(num_heads=2)), order="sandwich"),)
    found = Case(
        Model(
            width=4, context_length=160, frontend=Text(vocab_size=VOCABULARY, positions=NoPositions()), blocks=blocks
        ),
        2,
        True,
    )
    assert broken(found) is None
    with instead(top_k, "largest", lambda _: lambda scores, k, positions: scores.topk(k).indices)():
        failed = broken(found)
        assert failed is not None
        small = smallest(found, failed[0], tries=4)
        assert broken(small) is not None
    assert len(repr(small.spec.essential())) < len(repr(found.spec.essential()))
    assert (small.tokens, small.zero) == (VOCABULARY, False)
