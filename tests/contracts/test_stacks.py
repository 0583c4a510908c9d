"""The same battery on whole models: every mixer in one stack, in each order, with each norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from tests.contracts.battery import CHECKS, assert_kept
from tests.contracts.samples import EVERYTHING, FORMS, FURTHER, SAMPLES, SEGMENTED, STACKS
from tests.contracts.subjects import EncoderDecoder, PrefixDecoder, Stack, whole_model
from tests.inventory import assert_lists

from qkv.layers.signal import Signal
from qkv.spec.model import Model
from qkv.spec.models.segmentation import Segmentation
from qkv.spec.parts import Norm, Positions, Residual
from qkv.system.errors import UserError

WHOLE = {**STACKS, **FORMS, **SEGMENTED}


@lru_cache(maxsize=2)
def subject(name: str) -> Stack:
    """The same for all checks, as a model serves many callers."""
    return whole_model(WHOLE[name])


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", WHOLE)
def test_contract(name: str, check: str, record_property: Callable[[str, object], None]) -> None:
    assert_kept(check, subject(name))
    record_property("contract", ("stack", name, check))


def test_the_stacks_hold_every_mixer_order_norm_and_residual() -> None:
    blocks = [block for spec in STACKS.values() for block in spec.layers]
    table, mixers = "tests/contracts/samples.py", [kind for kind, parts in SAMPLES.items() if parts[0].mixes]
    drawn = [branch.kind for branch in (*EVERYTHING, *FURTHER) if branch.mixes]
    assert_lists(f"{table}, EVERYTHING or FURTHER", drawn, mixers)
    assert {block.order for block in blocks} == {"pre", "post", "sandwich", "res_post", "parallel"}
    norms, residuals = ({getattr(block, slot).kind for block in blocks} for slot in ("norm", "residual"))
    assert_lists(f"{table}, norms of STACKS", norms, Norm.kinds().keys() - {"grid_norm"})
    assert_lists(f"{table}, residuals of STACKS", residuals, Residual.kinds())
    in_sequence = {kind for kind, part in Positions.kinds().items() if part.axes == 1}
    positions = {spec.frontend.positions.kind for spec in STACKS.values()}  # type: ignore[attr-defined]
    assert_lists(f"{table}, positions of STACKS", positions, in_sequence)


def test_the_forms_are_encoder_decoders_and_a_prefix_decoder() -> None:
    assert [type(whole_model(spec)) for spec in FORMS.values()] == [EncoderDecoder] * 5 + [PrefixDecoder] * 3
    assert {type(whole_model(spec)) for spec in STACKS.values()} == {Stack}
    read = {
        branch.kind
        for spec in FORMS.values()
        for block in spec.layers
        for branch in block.branches
        if branch.reads_memory
    }
    assert read == {kind for kind, parts in SAMPLES.items() if parts[0].reads_memory}


def test_every_kind_of_segmentation_is_under_contract() -> None:
    kinds = [spec.segmentation.kind for spec in SEGMENTED.values() if spec.segmentation]
    assert_lists("tests/contracts/samples.py, SEGMENTED", kinds, Segmentation.kinds())
    assert len(kinds) == len(SEGMENTED)


def test_a_stack_repeats_its_pattern() -> None:
    spec: Model = STACKS["one kind a block, mixed orders"]
    assert len(spec.layers) == 5
    assert spec.layers[4] == spec.layers[0]


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_state_without_room_is_refused(capacity: int) -> None:
    with pytest.raises(UserError, match=f"capacity of {capacity} positions"):
        Stack(STACKS["plain"]).start(1, capacity)


@pytest.mark.parametrize("length", [-1, 4])
def test_a_state_goes_back_to_what_it_has_seen_and_nowhere_else(length: int) -> None:
    s = Stack(STACKS["plain"])
    _, state = s.call(s.inputs(1, 3), s.start(1))
    with pytest.raises(
        UserError, match=r"only be truncated to positions that it has read|hold -1; allowed: at least 0"
    ):
        s.rewind(state, torch.tensor([length]))


def test_packed_documents_and_a_state_exclude_each_other() -> None:
    m = Stack(STACKS["plain"]).module
    with pytest.raises(UserError, match="give each document a row of its own"):
        m(Signal(torch.zeros(1, 2, dtype=torch.long), segments=torch.zeros(1, 2, dtype=torch.long)), m.init_state(1))  # type: ignore[operator]
