"""Benchmark of rows that ranks share: memory and time of a training pass on 1, 2 and 4 processes of this machine.

    python benchmarks/context_parallel.py --write benchmarks/results/context_parallel.md

A causal model of one block (width 64) computes loss and gradients of one row. Sides: attention to keys that travel
(``ring``), attention by heads that are exchanged for positions (``heads``), and linear attention whose state goes from
rank to rank (``state``); with one process, each is the model alone. Each process uses one thread, so that the time of 4
processes on 2 cores is no speed-up; memory is the peak of the largest process above what it holds before the pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from qkv.data.batching.batch import Batch
from qkv.models.build import build
from qkv.models.heads.language_loss import language_loss
from qkv.models.transformer import Transformer
from qkv.parallel.context.ranks import Ranks
from qkv.report.table import print_table
from qkv.spec.model import Model
from qkv.training.shared_rows import SharedRows
from side_by_side import parser, say_where, write_table

MIXERS = {"ring": "attention(4, relative=rope)", "heads": "attention(4, relative=rope)", "state": "linear_attention(4)"}
SIZES = (1, 2, 4)
VOCABULARY = 256


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--length", type=int, default=16_384, help="number of positions of the row")
    options.add_argument("--write", type=Path, help="page whose table the figures are written to")
    options.add_argument("--worker", nargs=4, metavar=("SIDE", "RANK", "SIZE", "FOLDER"), help=argparse.SUPPRESS)
    return options.parse_args()


def model(side: str) -> Transformer:
    """Model of a side, with the same weights in every process."""
    torch.manual_seed(0)
    blocks = [{"branches": [MIXERS[side], "gated_feed_forward"]}]
    frontend = {"kind": "text", "vocab_size": VOCABULARY, "positions": "none"}
    return build(Model.parse({"width": 64, "context_length": 256, "frontend": frontend, "blocks": blocks}))


def kilobytes(name: str) -> int:
    """Value of a line of this process's status, such as its present (VmRSS) or largest (VmHWM) memory."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def step(computes: Transformer, shared: SharedRows, length: int) -> torch.Tensor:
    """Compute the gradient of this process's part of a row; return the summed loss of the part."""
    ids = torch.randint(VOCABULARY, (1, length + 1), generator=torch.Generator().manual_seed(1))
    batch = shared.part(Batch.of(ids[:, :-1], ids[:, 1:]))
    with shared.sharing(computes) if shared.ranks.size > 1 else nullcontext():
        loss = language_loss(computes, batch.input, batch.targets)
        loss.backward()
    shared.add_up(computes)
    return loss.detach().clone()


def work(side: str, rank: int, size: int, folder: Path, length: int) -> None:
    """Make one pass as process ``rank`` of ``size``, and write its figures to the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    computes, shared = model(side), SharedRows(Ranks(), by="heads" if side == "heads" else "ring")
    step(computes, shared, 64)  # connections and lazy imports
    computes.zero_grad()
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before, began = kilobytes("VmRSS"), time.perf_counter()
    total = step(computes, shared, length)
    seconds, peak = time.perf_counter() - began, kilobytes("VmHWM") - before
    shared.ranks.add_up([total])
    norm = torch.stack([p.grad.norm() for p in computes.parameters() if p.grad is not None]).norm()
    figures = {"seconds": seconds, "megabytes": peak / 1000, "loss": float(total) / length, "norm": float(norm)}
    (folder / f"{rank}.json").write_text(json.dumps(figures), encoding="utf-8")
    dist.destroy_process_group()


def measured(side: str, size: int, length: int) -> dict[str, float]:
    """Figures of a pass on ``size`` processes: the largest of each."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, __file__, "--length", str(length), "--worker", side]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        processes = [subprocess.Popen([*command, str(rank), str(size), place], env=environment) for rank in range(size)]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{side} on {size} processes ended with {codes}")
        found = [json.loads((Path(place) / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]
    return {name: max(each[name] for each in found) for name in found[0]}


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    given = arguments()
    if given.worker:
        side, rank, size, folder = given.worker
        work(side, int(rank), int(size), Path(folder), given.length)
    else:
        measure(given)


def measure(given: argparse.Namespace) -> None:
    """Measure every side on every number of processes, and print the table."""
    say_where()
    length, sizes = (64, (1, 2)) if given.smoke else (given.length, SIZES)
    rows = list[list[str]]()
    for side in MIXERS:
        alone: dict[str, float] | None = None
        for size in sizes:
            figures = measured(side, size, length)
            alone = figures if alone is None else alone
            error = max(abs(figures[name] / alone[name] - 1) for name in ("loss", "norm"))
            rows.append(_row(side, size, length, figures, alone, error))
            print(*rows[-1], flush=True)
    columns = ["side", "processes", "positions of each", "peak MB of a process", "of one", "seconds", "loss, gradient"]
    title = f"a training pass on a row of {length:,} positions"
    print_table(f"\n{title}", columns, rows)
    if given.write:
        note = f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, one thread for each process."
        write_table(given.write, "context_parallel: benchmarks/context_parallel.py", columns, rows, note)


def _row(side: str, size: int, length: int, figures: Any, alone: Any, error: float) -> list[str]:
    share = f"{figures['megabytes'] / alone['megabytes']:.2f}" if alone["megabytes"] else "–"  # a smoke test needs none
    off = "" if size == 1 else f"off by {error:.0e}"
    peak, seconds = f"{figures['megabytes']:.0f}", f"{figures['seconds']:.1f}"
    return [side, str(size), f"{length // size:,}", peak, share, seconds, off]


if __name__ == "__main__":
    main()
