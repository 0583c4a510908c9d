"""Seconds and peak memory of loading a random Llama of 1 GB from its folder, each load in a fresh process.

python benchmarks/load_checkpoint.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from qkv.interop.save import save_published
from qkv.models.build import build
from qkv.report.table import print_table
from qkv.spec.branches import Attention, GatedFeedForward
from qkv.spec.heads import LanguageModelHead
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, RMSNorm, Rope
from side_by_side import parser, say_where, version

LOADS = {
    "qkv": "from qkv.interop.load import load_published as load\nmodel = lambda folder: load(folder).model",
    "transformers": "from transformers import AutoModelForCausalLM, LlamaForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained",
}
MEASURE = """
import json, re, sys, time
from pathlib import Path
kilobytes = lambda what: int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
model(sys.argv[2])
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
start = time.perf_counter()
loaded = model(sys.argv[1])
total = sum(p.detach().sum().item() for p in loaded.parameters())
seconds = time.perf_counter() - start
weights = sum(p.numel() * p.element_size() for p in loaded.parameters())
print(json.dumps({"seconds": seconds, "share": (kilobytes("VmHWM") - before) * 1024 / weights, "weights": weights}))
"""


def llama(width: int, num_layers: int, vocab_size: int) -> Model:
    """Llama's blocks with a head of its own."""
    branches = (Attention(num_heads=width // 64, bias=False, relative=Rope()), GatedFeedForward(hidden=3 * width))
    text = Text(vocab_size=vocab_size, positions=NoPositions())
    blocks = (Block(branches=branches, norm=RMSNorm()),)
    head = LanguageModelHead(tied=False)
    return Model(width=width, num_layers=num_layers, frontend=text, blocks=blocks, norm=RMSNorm(), head=head)


def measured(code: str, large: Path, small: Path) -> dict[str, Any]:
    """What one fresh process says after it has loaded ``small`` to warm up and then ``large``, and has read every weight once."""
    command = [sys.executable, "-c", f"{code}\n{MEASURE}", str(large), str(small)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Each library in turn; the peak is counted from what the process held before, as a share of the weights."""
    asked = parser(__doc__ or "").parse_args()
    say_where("transformers")
    sides = {"qkv": LOADS["qkv"]} if asked.smoke or version("transformers") is None else LOADS
    with tempfile.TemporaryDirectory() as name:
        large, small = Path(name, "large"), Path(name, "small")
        save_published(build(llama(128, 1, 300) if asked.smoke else llama(1024, 14, 32000)), large)
        save_published(build(llama(64, 1, 300)), small)
        found = {side: [measured(code, large, small) for _ in range(1 if asked.smoke else asked.repeats)] for side, code in sides.items()}
    rows = []
    for side, several in found.items():
        best = min(each["seconds"] for each in several)
        rows.append((side, f"{several[0]['weights'] / 1e9:.2f}", round(best, 2), round(max(each["share"] for each in several), 2)))
    print_table("\nloading, and reading every weight once", ["library", "weights, GB", "seconds, best", "peak / weights"], rows)


if __name__ == "__main__":
    main()
