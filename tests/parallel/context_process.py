"""One of four processes that share rows: checks of context parallelism, on all four and on pairs of them.

    python -m tests.parallel.context_process RANK FOLDER

What each check measured is in ``FOLDER/RANK.json``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.parallel.context_attention import attention_checks, steps_taken
from tests.parallel.context_mixers import mixer_checks
from tests.parallel.context_models import model_checks

from qkv.parallel.context import places
from qkv.parallel.context.ranks import Ranks

SIZE = 4


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    places.BLOCK = 5  # several blocks in short rows
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=SIZE)
    pairs: list[Any] = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    everyone, pair, which = Ranks(), Ranks(pairs[rank // 2]), rank // 2
    checks: dict[str, Callable[[], Any]] = {
        "attention of 4": lambda: attention_checks(everyone, 0),
        "attention of 2": lambda: attention_checks(pair, 1 + which),
        "mixers of 2": lambda: mixer_checks(pair, slice(which, None, 2)),
        "models of 2": lambda: model_checks(pair, slice(which, None, 2)),
        "model of 4": lambda: model_checks(everyone, slice(0, None, 7)),
        "steps": lambda: steps_taken(everyone),
    }
    found: dict[str, Any] = {}
    for name, check in checks.items():
        began = time.perf_counter()
        found[name] = check()
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
