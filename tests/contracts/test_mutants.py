"""Every named fault is noticed by the battery. The list of faults and of what noticed them is printed at the end of the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.contracts.battery import CHECKS, NOT_OF_DECODING, failures
from tests.contracts.mutants import MUTANTS, Mutant
from tests.contracts.samples import FORMS, GROUPS, SAMPLES, STACKS, describe
from tests.contracts.subjects import OneBranch, Subject, whole_model


def subjects(kind: str) -> Iterator[tuple[str, Subject]]:
    """Built anew, as a fault may lie in how they are built."""
    whole = {"stack": STACKS, "form": FORMS, "prefix": {"prefix": FORMS["prefix"]}}
    if kind in whole:
        yield from ((name, whole_model(spec)) for name, spec in whole[kind].items())
    else:
        parts = GROUPS.get(kind) or SAMPLES[kind]
        yield from ((describe(part), OneBranch(part)) for part in parts)


def first_failure(kind: str) -> str:
    asked = NOT_OF_DECODING if kind == "bidirectional" else tuple(CHECKS)
    for name, subject in subjects(kind):
        for check, sentence in failures(subject, asked):
            return f"{name} fails {check!r}: {sentence}"
    return ""


@pytest.mark.parametrize("kind", ["stack", "prefix", "bidirectional", *SAMPLES])
def test_without_a_fault_nothing_fails(kind: str) -> None:
    """What follows would mean nothing if the battery failed anyway."""
    assert first_failure(kind) == ""


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
