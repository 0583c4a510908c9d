"""``python -m qkv``."""

from __future__ import annotations

import subprocess
import sys


def test_the_module_is_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "qkv", "train", "--nonsense"], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert "--nonsense" in run.stderr
