"""SIGKILL, for real: the short form of ``python -m tests.training.kill_storm``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_a_run_that_is_killed_at_random_moments_ends_bit_for_bit_where_it_would_have() -> None:
    command = [sys.executable, "-m", "tests.training.kill_storm", "--kills", "4", "--steps", "60"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed ") == 4
    assert done.stdout.endswith("losses, weights and optimiser state are equal, bit for bit\n")
