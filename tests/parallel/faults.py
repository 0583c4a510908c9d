"""A fault of one process of several, for ``qkv train … --import``: FAULT="KIND RANK STEP".

Kinds: "raise" an error, "kill" by SIGKILL, "hang" for ever, or "stop" by a SIGTERM of its own, before the update STEP.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from qkv.training.loop import Trainer

_descend = Trainer.descend


def descend(trainer: Trainer, step: int, *how: Any) -> Any:
    kind, rank, when = os.environ["FAULT"].split()
    if (os.environ["RANK"], str(step)) == (rank, when):
        if kind == "raise":
            raise KeyError("a fault of this process")
        if kind == "hang":
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGTERM)
    return _descend(trainer, step, *how)


if "FAULT" in os.environ and "RANK" in os.environ:
    Trainer.descend = descend  # type: ignore[method-assign]
