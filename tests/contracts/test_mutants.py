"""Every named fault is noticed by the battery. Faults and what noticed them are printed at the end of the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.contracts.battery import CHECKS, NOT_OF_DECODING, failures
from tests.contracts.mutants import MUTANTS, Mutant
from tests.contracts.samples import BIDIRECTIONAL, FORMS, GROUPS, SAMPLES, SEGMENTED, STACKS, describe
from tests.contracts.subjects import OneBranch, Subject, whole_model

from qkv.spec.model import Model

pytestmark = pytest.mark.slow

ORDER = {"equation": 0, "cut anywhere": 2, "gradients": 3, "growth by doubling": 4, "long sequences": 5}
"""Which checks run before and after all others: the one that notices most faults first, the slow ones last."""


def segmented() -> dict[str, dict[str, Model]]:
    """Models of each kind of segmentation."""
    found: dict[str, dict[str, Model]] = {}
    for name, spec in SEGMENTED.items():
        assert spec.segmentation is not None
        found.setdefault(spec.segmentation.kind, {})[name] = spec
    return found


def subjects(kind: str) -> Iterator[tuple[str, Subject]]:
    """Built anew, as a fault may lie in how they are built."""
    alone = {name: {name: spec} for name, spec in {**STACKS, **FORMS}.items()}
    whole = {"stack": STACKS, "form": FORMS, **alone, **segmented()}
    if kind in whole:
        yield from ((name, whole_model(spec)) for name, spec in whole[kind].items())
    else:
        parts = GROUPS.get(kind) or SAMPLES[kind]
        yield from ((describe(part), OneBranch(part)) for part in parts)


def first_failure(kind: str) -> str:
    """The first check that a subject of ``kind`` fails, and its message; empty if all pass.

    Check by check over all subjects, not subject by subject: a fault that only the last subject shows is found without
    running the slow checks on those before it.
    """
    asked = NOT_OF_DECODING if kind in ("bidirectional", "whole rows") else tuple(CHECKS)
    built = list(subjects(kind))
    for check in sorted(asked, key=lambda name: ORDER.get(name, 1)):
        for name, subject in built:
            for _, sentence in failures(subject, [check]):
                return f"{name} fails {check!r}: {sentence}"
    return ""


def test_the_battery_runs_without_a_fault_elsewhere() -> None:
    """The contract tests run the battery on every subject used here: were it to fail, a kill would mean nothing."""
    whole = {"stack", "form", *STACKS, *FORMS, *segmented()}
    assert {**STACKS, **FORMS, **SEGMENTED}.keys() >= {name for kind in whole for name, _ in subjects(kind)}
    used = {
        part
        for mutant in MUTANTS
        for kind in mutant.subjects
        if kind not in whole
        for part in GROUPS.get(kind) or SAMPLES[kind]
    }
    assert used <= {*(part for parts in SAMPLES.values() for part in parts), *BIDIRECTIONAL}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_killed(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    killers = []
    with mutant.fault():
        for kind in mutant.subjects:
            killer = first_failure(kind)
            assert killer, f"the fault {mutant.name!r} in {kind} goes unnoticed"
            killers.append(killer)
    record_property("mutant", (mutant.name, killers[0]))


def test_names_are_told_apart() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
