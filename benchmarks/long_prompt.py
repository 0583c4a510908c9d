"""Benchmark of a prompt of 32,000 tokens beside a text that is being written: peak memory, first token, longest pause.

    python benchmarks/long_prompt.py
    python benchmarks/long_prompt.py --length 8192 --passes 256 512 1024

A model of 4 layers, 256 features and random weights, in a fresh process for each size of a pass (the last one reads the
prompt at once). The pause is the longest time between two tokens of the other text while the prompt is read; memory is
the peak above that before the prompt was submitted, the state of the prompt included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from qkv.report.table import print_table
from side_by_side import parser, say_where

MEASURE = """
import json, re, sys, time, warnings
from pathlib import Path
import torch
import qkv
from qkv.generation.queue import prefill
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.spec.generation import Generation

warnings.simplefilter("ignore")  # of positions beyond those of training
length, prefill.PASS["cpu"], width = (int(given) for given in sys.argv[1:])
kilobytes = lambda what: int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
branches = ["attention(4, relative=rope)", "gated_feed_forward"]
frontend = {"kind": "text", "vocab_size": 8000, "positions": "none"}
sizes = {"width": width, "num_layers": 4, "context_length": 1024, "frontend": frontend}
model = qkv.build(qkv.Model.parse({**sizes, "blocks": [{"branches": branches}]})).eval()
queue = RequestQueue(model, None)
numbers = torch.randint(8000, (length,), generator=torch.Generator().manual_seed(0)).tolist()
queue.submit(Request(numbers[:700], Generation(max_new_tokens=4, temperature=0.0)))
while not queue.idle:  # implementations are chosen by measurement in the first passes
    queue.step()
queue.submit(Request([1, 2, 3], Generation(max_new_tokens=100000, temperature=0.0)))
queue.step()
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
number, tokens, pause = queue.submit(Request(numbers, Generation(max_new_tokens=4, temperature=0.0))), [], 0.0
began = last = time.perf_counter()
first = None
while len(tokens) < 4:
    for piece in queue.step():
        if piece.number == number:
            first = first or time.perf_counter() - began
            tokens += piece.tokens
    now = time.perf_counter()
    pause, last = max(pause, now - last), now
peak = kilobytes("VmHWM") - before
print(json.dumps({"tokens": tokens, "first": first, "pause": pause, "peak": peak / 1024, \
"state": model.state_bytes(length) / 2**20}))
"""


def measured(length: int, size: int, width: int) -> dict[str, Any]:
    """Measurements of a fresh process that reads a prompt in passes of ``size`` positions."""
    command = [sys.executable, "-c", MEASURE, *map(str, (length, size, width))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--length", type=int, default=32000, help="tokens of the prompt")
    options.add_argument("--passes", type=int, nargs="*", default=[512], help="sizes of a pass, in positions")
    return options.parse_args()


def main() -> None:
    """Measure every size of a pass and print the table."""
    given = arguments()
    say_where()
    length, width = (96, 32) if given.smoke else (given.length, 256)
    sizes = [32] if given.smoke else given.passes
    found = {size: measured(length, size, width) for size in (*sizes, length)}
    columns = ["positions of a pass", "first token, s", "longest pause, s", "peak, MiB", "of these state, MiB"]
    table = [
        [
            f"{size:,}",
            *(round(each[what], 2) for what in ("first", "pause")),
            *(f"{each[what]:,.0f}" for what in ("peak", "state")),
        ]
        for size, each in found.items()
    ]
    print_table(f"a prompt of {length:,} tokens", columns, table)
    equal = sum(each["tokens"] == found[length]["tokens"] for each in found.values())
    print(f"{equal} of {len(found)} wrote the same tokens")


if __name__ == "__main__":
    main()
