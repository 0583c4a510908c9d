"""Seconds that fresh processes take before anything useful happens: imports and the quick commands.

python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from qkv.report.table import print_table
from side_by_side import in_turns, parser, say_where, version

QKV = ("-c", "import sys; sys.argv[0] = 'qkv'; from qkv.cli.main import main; main()")
OURS = {
    "import qkv": ("-c", "import qkv"),
    "qkv --help": (*QKV, "--help"),
    "qkv schema": (*QKV, "schema"),
    "qkv cost gpt2": (*QKV, "cost", "gpt2"),
}
PEERS = {
    "python alone": ("-c", ""),
    "import torch": ("-c", "import torch"),
    "import transformers, one model class": ("-c", "from transformers import GPT2LMHeadModel"),
    "import x_transformers": ("-c", "import x_transformers"),
}
NEEDS = {"import transformers, one model class": "transformers", "import x_transformers": "x-transformers"}


def start(arguments: tuple[str, ...]) -> None:
    """One process from its start to its end. Exits with its words if it fails."""
    done = subprocess.run([sys.executable, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip() or done.returncode}")


def main() -> None:
    """Every process in turns."""
    asked = parser(__doc__ or "").parse_args()
    say_where("transformers", "x-transformers")
    sides = dict(list(OURS.items())[:2]) if asked.smoke else {**OURS, **PEERS}
    for name in [name for name, package in NEEDS.items() if name in sides and version(package) is None]:
        print(f"left out: {name} (not installed)")
        del sides[name]
    times = in_turns({name: partial(start, arguments) for name, arguments in sides.items()}, 1 if asked.smoke else asked.repeats)
    rows = [(name, round(t.best, 3), round(t.middle, 3), f"{t.spread:.0%}") for name, t in times.items()]
    print_table("\nfresh processes", ["process", "seconds, best", "median", "spread"], rows)
    if "import torch" in times:
        print(f"ratio import torch / import qkv: {times['import torch'].best / times['import qkv'].best:.1f}")


if __name__ == "__main__":
    main()
