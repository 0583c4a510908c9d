"""Process of one run: reads recipe and folder as one JSON line, prints progress and the outcome as JSON lines.

    python -m qkv.comparison.worker

When its standard input closes, for example because its parent process ended, it saves a checkpoint and stops, as after
a SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv.comparison.outcome import Report, carry_out
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.training.interrupt import Interrupted

_EVERY = 0.2
"""Minimum seconds between two lines of progress."""


def main() -> int:
    """Carry out the run described in the first line of standard input; return the exit code."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    last = 0.0

    def tell(report: Report) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY or report.step in (0, report.steps):
            last = time.monotonic()
            _say("report", list(report))

    try:
        recipe = Recipe.parse(request["recipe"], "the run's recipe")
        outcome = carry_out(recipe, Path(request["folder"]), tell)
    except UserError as error:
        _say("error", str(error))
        return 2
    except Interrupted as stopped:
        return 128 + stopped.number
    _say("outcome", asdict(outcome))
    return 0


def report_of(values: Any) -> Report:
    """Build a ``Report`` from the values that a worker printed in a line of progress."""
    return Report(*values)


def _say(name: str, value: Any) -> None:
    sys.stdout.write(json.dumps({name: value}) + "\n")
    sys.stdout.flush()


def _stop_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
