"""What is said of the processor follows from what the system says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qkv.system import processor


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of four cores, all of them allowed, and no variable set."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(processor, "usable_cores", lambda: 4)
    monkeypatch.setattr(processor, "usable_threads", lambda: 4)
    for name in processor._VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_cores_and_variables_that_limit_the_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processor.settings() == {}
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    monkeypatch.setattr(processor, "usable_cores", lambda: 1)
    assert processor.settings() == {"ATEN_CPU_CAPABILITY": "avx2", "cores": "1"}


def test_the_name_is_the_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Abacus 7\n\nmodel name\t: Abacus 8\n")
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    assert processor.processor_name() == "Abacus 7, 4 threads"
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "none")
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert processor.processor_name() == "arm64, 4 threads"
