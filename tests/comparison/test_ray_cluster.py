"""Runs on a local Ray cluster, in a process of its own, as Ray starts servers and threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.comparison.compare import executor_of
from qkv.comparison.ray_cluster import RayCluster
from qkv.system.errors import UserError

pytestmark = pytest.mark.slow

RECIPE = """\
name: small
task: sorting(length=4, high=8, longer=[])
model:
  width: 16
  context_length: 16
  head: tokens
  blocks: [{branches: ["attention(2, mask=full)", "feed_forward(24)"]}]
training: {steps: 4, batch_size: 4, validation: {every: 2, batches: 1}}
"""
ENTRIES = {"attention": [], "wild": ["training.optimizer.lr=1e30"]}
PROGRAM = """\
import json, sys, qkv
entries, place, ray = json.loads(sys.argv[1])
qkv.compare("small.yaml", entries, place, seeds=[1, 2], rates=[1.0], ray=ray)
"""


def compared(folder: Path, place: str, ray: str | None) -> dict[str, tuple[object, ...]]:
    """Values and failure of each entry, of a comparison in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    given = json.dumps([ENTRIES, place, ray])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, given], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads((folder / place / "results.json").read_text())["entries"]
    return {row["name"]: (row["values"], row["failed"], row["p"]) for row in rows}


def test_results_are_those_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    found = compared(tmp_path, "cluster", "local")
    assert found == compared(tmp_path, "here", None)
    assert len(found["attention"][0]) == 2  # type: ignore[arg-type]
    assert "diverged" in str(found["wild"][1])
    run = Path("attention", "rate-1", "seed-2", "model.safetensors")
    assert (tmp_path / "cluster" / run).read_bytes() == (tmp_path / "here" / run).read_bytes()


@pytest.mark.parametrize(("threads", "jobs", "sentence"), [(0, None, "threads: 0 given"), (1, 2, "jobs and ray")])
def test_impossible_settings_are_refused(threads: int, jobs: int | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        executor_of(jobs, "local", threads)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'qkv\[ray\]'"):
        RayCluster("local").outcomes([], [0], None)  # type: ignore[arg-type]
