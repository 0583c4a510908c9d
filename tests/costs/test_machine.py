"""The figures of a machine are measured, kept whole, and not taken for those of another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qkv.costs.measuring.machine import Machine, machine_file, physical_memory, store_machine, stored_machine
from qkv.costs.measuring.probe import _rate, probe
from qkv.system.processor import processor_name

HERE = Machine(processor_name(), {"fp32": 1e11, "bf16": 2e11}, 1e10, 1e-6)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_stored_comes_back(cache: Path) -> None:
    assert stored_machine() is None
    assert store_machine(HERE) == machine_file() == cache / "machine.json"
    assert stored_machine() == HERE
    assert [path.name for path in cache.iterdir()] == ["machine.json"]


def test_figures_under_other_settings_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    store_machine(HERE)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert stored_machine() is None
    store_machine(HERE)
    assert stored_machine() == HERE


def test_another_processors_figures_are_not_taken() -> None:
    store_machine(replace(HERE, processor="abacus, 2 threads"))
    assert stored_machine() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"processor": 1}', "null", "\x00"])
def test_a_damaged_file_counts_as_none(cache: Path, text: str) -> None:
    cache.mkdir()
    machine_file().write_text(text)
    assert stored_machine() is None


def test_a_failed_write_leaves_the_old_figures(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_machine(HERE)

    def full(_: int) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        store_machine(replace(HERE, call=1.0))
    assert stored_machine() == HERE
    assert [path.name for path in cache.iterdir()] == ["machine.json"]


def test_a_missing_rate_is_that_of_fp32() -> None:
    assert (HERE.flops_at("bf16"), HERE.flops_at("fp8")) == (2e11, 1e11)


def test_training_takes_bf16_only_where_it_is_clearly_faster() -> None:
    rates = [
        {"fp32": 1e11, "bf16": 2e11},
        {"fp32": 1e11, "bf16": 1.2e11},
        {"fp32": 1.2e11, "bf16": 9e8},
        {"fp32": 1e11},
    ]
    assert [replace(HERE, flops=rate).precision for rate in rates] == ["bf16", "fp32", "fp32", "fp32"]


def test_bf16_that_is_allowed_runs_where_its_rate_is_higher() -> None:
    machines = [HERE, replace(HERE, flops={"fp32": 1e11, "bf16": 9e8}), replace(HERE, flops={"fp32": 1e11})]
    assert [(machine.runs_in("bf16"), machine.runs_in("fp32")) for machine in machines] == [
        ("bf16", "fp32"),
        ("fp32", "fp32"),
        ("fp32", "fp32"),
    ]


def test_a_rate_far_below_the_others_is_measured_on_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product in emulated bf16 of the full size would take seconds."""
    rows = []
    monkeypatch.setattr("qkv.costs.measuring.probe._linear", lambda rounded, count: rows.append(count))
    monkeypatch.setattr("qkv.costs.measuring.probe._best", lambda work, budget: 1.0)
    assert _rate(True, 0.1) == 6 * 16 * 384 * 1536
    assert rows == [16]


def test_a_probe_finds_plausible_rates() -> None:
    found = probe(budget=0.01)
    assert found.processor == processor_name()
    assert set(found.flops) == {"fp32", "bf16"}
    assert all(1e8 < rate < 1e16 for rate in found.flops.values())
    assert 1e8 < found.bandwidth < 1e14
    assert 1e-8 < found.call < 1e-2


def test_memory_is_at_least_that_of_this_process() -> None:
    most = physical_memory()
    assert most is None or most > 1 << 26
