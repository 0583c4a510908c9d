"""Benchmark of a fresh process to its first token: imports, loading of a published GPT-2 124M, a prompt of 32 tokens.

    python benchmarks/first_token.py

Seconds from the start of the process to the line with the token. The checkpoint has random weights; kernels have been
chosen and built, and its file is in the system's cache, by a first run of each side.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from load_checkpoint import gpt2
from peer_process import Died, living
from qkv.interop.save import save_published
from qkv.models.build import build
from qkv.report.table import print_table
from side_by_side import in_turns, parser, say_ratio, say_where, version

PROMPT = list(range(1, 33))
SIDES = {
    "qkv": """
import sys
from qkv.generation.decode.sample import generate
from qkv.interop.load import load_published
from qkv.spec.generation import Generation
model = load_published(sys.argv[1]).model.eval()
print(generate(model, [PROMPT], Generation(max_new_tokens=1, temperature=0.0)), flush=True)
""",
    "transformers": """
import sys
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging
logging.disable_progress_bar()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
ids = torch.tensor([PROMPT])
print(model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False), flush=True)
""",
}


def first_token(side: str, code: str, folder: Path) -> None:
    """Start a process and wait until it prints a line, then end it. Raises ``Died`` if it ends before."""
    command = [sys.executable, "-c", f"PROMPT = {PROMPT}\n{code}", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if not process.stdout.readline():
            print(process.stderr.read().strip(), file=sys.stderr)
            raise Died(side, process.wait())
        process.kill()


def main() -> None:
    """Run the sides in turns."""
    asked = parser(__doc__ or "").parse_args()
    say_where("transformers")
    sides = dict(SIDES)
    if asked.smoke or version("transformers") is None:
        del sides["transformers"]
    with tempfile.TemporaryDirectory() as name:
        save_published(build(gpt2(128, 1, 300) if asked.smoke else gpt2(768, 12, 50257)), Path(name))
        runs = {side: partial(first_token, side, code, Path(name)) for side, code in sides.items()}
        times = living(lambda live: in_turns(live, asked.repeats), runs, died := dict[str, str]())
    rows = [(side, round(t.best, 2), round(t.middle, 2), f"{t.spread:.0%}") for side, t in times.items()]
    rows += [(side, how, "", "") for side, how in died.items()]
    print_table("\nfresh process to its first token", ["side", "seconds, best", "median", "spread"], rows)
    say_ratio({side: t.best for side, t in times.items()})


if __name__ == "__main__":
    main()
