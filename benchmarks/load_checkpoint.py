"""Benchmark of loading a checkpoint: time and peak memory of loading and of the first forward pass, in fresh processes.

A random Llama of 1 GB (q, k and v are concatenated) and a random GPT-2 of 0.5 GB (matrices are stored transposed).
Libraries alternate.

python benchmarks/load_checkpoint.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from qkv.interop.save import save_published
from qkv.models.build import build
from qkv.report.table import print_table
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import LanguageModelHead
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, RMSNorm, Rope
from side_by_side import parser, say_where, version

LOADS = {
    "qkv": "from qkv.interop.load import load_published as load\nmodel = lambda folder: load(folder).model",
    "transformers": (
        "from transformers import AutoModelForCausalLM, LlamaForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained"
    ),
}
MEASURE = """
import json, re, sys, time
from pathlib import Path
import torch
kilobytes = lambda what: int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
model(sys.argv[2])
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
ids = torch.arange(8)[None]
start = time.perf_counter()
loaded = model(sys.argv[1])
seconds = time.perf_counter() - start
with torch.no_grad():
    loaded(ids)
forward = time.perf_counter() - start
peak = kilobytes("VmHWM") - before
start = time.perf_counter()
with torch.no_grad():
    loaded(ids)
again = time.perf_counter() - start
weights = sum(p.numel() * p.element_size() for p in loaded.parameters())
print(json.dumps({"seconds": seconds, "forward": forward, "again": again, \
"share": peak * 1024 / weights, "weights": weights}))
"""


def llama(width: int, num_layers: int, vocab_size: int) -> Model:
    """Llama with an untied head."""
    branches = (Attention(num_heads=width // 64, bias=False, relative=Rope()), GatedFeedForward(hidden=3 * width))
    text = Text(vocab_size=vocab_size, positions=NoPositions())
    blocks = (Block(branches=branches, norm=RMSNorm()),)
    head = LanguageModelHead(tied=False)
    return Model(width=width, num_layers=num_layers, frontend=text, blocks=blocks, norm=RMSNorm(), head=head)


def gpt2(width: int, num_layers: int, vocab_size: int) -> Model:
    """GPT-2 with a tied head."""
    branches = (Attention(num_heads=width // 64), FeedForward(activation="gelu_tanh"))
    return Model(
        width=width,
        num_layers=num_layers,
        context_length=1024,
        frontend=Text(vocab_size=vocab_size),
        blocks=(Block(branches=branches),),
    )


def measured(code: str, large: Path, small: Path) -> dict[str, Any]:
    """Measurements of a fresh process that loads ``small`` as warm-up, then ``large``, and runs a forward pass."""
    command = [sys.executable, "-c", f"{code}\n{MEASURE}", str(large), str(small)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run the libraries in turns. Peak memory: above that before loading, as a fraction of the weights."""
    asked = parser(__doc__ or "").parse_args()
    say_where("transformers")
    sides = {"qkv": LOADS["qkv"]} if asked.smoke or version("transformers") is None else LOADS
    models = {"Llama": (llama(128, 1, 300), llama(1024, 14, 32000)), "GPT-2": (gpt2(128, 1, 300), gpt2(768, 12, 50257))}
    for family, (tiny, whole) in models.items():
        with tempfile.TemporaryDirectory() as name:
            large, small = Path(name, "large"), Path(name, "small")
            save_published(build(tiny if asked.smoke else whole), large)
            save_published(build(tiny), small)
            found = [
                {side: measured(code, large, small) for side, code in sides.items()}
                for _ in range(1 if asked.smoke else asked.repeats)
            ]
        print_table(f"\n{family}, seconds", COLUMNS, [_row(side, [each[side] for each in found]) for side in sides])


COLUMNS = [
    "library",
    "weights, GB",
    "loaded",
    "seconds per GB",
    "loaded and first forward",
    "forward again",
    "peak / weights",
]


def _row(side: str, found: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Medians of one library's repeats, and the highest peak."""
    weights = found[0]["weights"] / 1e9
    load, forward, again = (median(each[what] for each in found) for what in ("seconds", "forward", "again"))
    share = max(each["share"] for each in found)
    return (
        side,
        f"{weights:.2f}",
        round(load, 3),
        round(load / weights, 2),
        round(forward, 3),
        round(again, 3),
        round(share, 2),
    )


if __name__ == "__main__":
    main()
