"""The battery on every registered branch, by registration alone; what is not causal must fail it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import pytest
import torch
from tests.contracts.battery import CHECKS, NOT_OF_DECODING, assert_kept, failures
from tests.contracts.memory_references import MEMORY_REFERENCES
from tests.contracts.references import REFERENCES
from tests.contracts.samples import BIDIRECTIONAL, SAMPLES, WIDTH, describe
from tests.contracts.subjects import OneBranch

from qkv.mixers.registry import branches, build_branch
from qkv.spec.branches import Branch
from qkv.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PARTS = {describe(part): part for parts in SAMPLES.values() for part in parts}


@lru_cache(maxsize=2)
def subject(name: str) -> OneBranch:
    """The same for all checks, as a model serves many callers."""
    return OneBranch(PARTS[name])


@cache
def registered() -> dict[str, type[Branch]]:
    return {spec.kind: spec for spec in branches()}


@pytest.mark.parametrize("kind", Branch.kinds())
def test_every_kind_is_under_contract(kind: str) -> None:
    """A new part is tested by being registered: it needs a module, samples and its equation as loops."""
    assert kind in registered(), f"{kind!r} is a spec that no module implements"
    samples = [*SAMPLES.get(kind, ()), *(part for part in BIDIRECTIONAL if part.kind == kind)]
    assert samples, f"{kind!r} needs samples in tests/contracts/samples.py"
    assert {type(part) for part in samples} == {registered()[kind]}
    assert kind in {**REFERENCES, **MEMORY_REFERENCES}, f"{kind!r} needs its equation in tests/contracts/references.py"


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="there is no docs folder yet")
@pytest.mark.parametrize("kind", Branch.kinds())
def test_every_kind_is_in_the_docs(kind: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    assert any(kind in page for page in pages), f"docs/parts.md has no row of {kind!r}"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", PARTS)
def test_contract(name: str, check: str, record_property: Callable[[str, object], None]) -> None:
    assert_kept(check, subject(name))
    record_property("contract", (PARTS[name].kind, name, check))


@pytest.mark.parametrize("part", BIDIRECTIONAL, ids=describe)
def test_what_sees_later_positions_fails(part: Branch) -> None:
    of_decoding = {"cut anywhere", "causality", "fixed capacity"}
    failed = dict(failures(OneBranch(part), [*of_decoding, *NOT_OF_DECODING]))
    assert not part.causal
    assert of_decoding <= failed.keys()
    wrong = [f"{check}: {failed[check]}" for check in NOT_OF_DECODING if check in failed]
    assert not wrong, "it must fail for being bidirectional, not for being wrong"


def test_a_missing_kind_is_noticed() -> None:
    class Unknown(Branch):
        """Registered nowhere."""

    with pytest.raises(UserError, match="no module implements"):
        build_branch(Unknown(), WIDTH)


def test_the_samples_do_not_share_a_name() -> None:
    assert len(PARTS) == sum(map(len, SAMPLES.values()))
    assert torch.get_default_dtype() == torch.float32
