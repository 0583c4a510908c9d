"""Benchmark of looking inside: a forward pass and a decoded token of GPT-2 124M, plain and with values captured.

    python benchmarks/capture.py --write docs/inside.md

Rows are a forward pass over 256 tokens, with the outputs of a layer's heads read, its attention weights read, a head
taken out, and the weights of all layers read; then a token after 256 others: plain, plain after a block that captured,
and with outputs of heads read. The model has random weights. ``--write`` replaces the table of a page.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from load_checkpoint import gpt2
from qkv.layers.tap import Recorder
from qkv.lens.capture.edits import ablate
from qkv.lens.capture.regions import Region
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.report.table import print_table
from side_by_side import Times, in_turns, parser, say_where, write_table

HEAD, WEIGHTS = "blocks.0.branches.0.head_outputs", "blocks.0.branches.0.weights"
TOKENS = 16
"""Number of tokens that a measurement of decoding decodes."""
Inside = Callable[[], AbstractContextManager[Any]]
"""Function that returns the block in which the model is called."""


@torch.no_grad()
def forward(model: Transformer, ids: torch.Tensor, inside: Inside) -> None:
    """Read the rows ``ids`` once."""
    with inside():
        model(ids)


@torch.no_grad()
def decode(model: Transformer, length: int, inside: Inside) -> Callable[[], None]:
    """Return a function that decodes ``TOKENS`` tokens after ``length`` others."""
    state = model.init_state(1, length + 4096)
    state = model.decode([list(range(1, length + 1))], state).state

    def run() -> None:
        nonlocal state
        with torch.no_grad(), inside():
            for _ in range(TOKENS):
                state = model.decode([[1]], state).state
        state = model.rewind(state, torch.tensor([length]))

    return run


def main() -> None:
    """Time forward passes, then decoding, in turns."""
    options = parser(__doc__ or "")
    options.add_argument("--write", type=Path, help="Markdown file whose table is replaced")
    asked = options.parse_args()
    say_where()
    model = build(gpt2(128, 2, 300) if asked.smoke else gpt2(768, 12, 50257)).eval()
    length = 32 if asked.smoke else 256
    ids = torch.randint(300, (1, length))
    ways: dict[str, Inside] = {
        "plain": nullcontext,
        "outputs of a head read": lambda: model.tapped(Recorder(HEAD)),
        "weights of a layer read": lambda: model.tapped(Recorder(WEIGHTS)),
        "a head taken out": lambda: model.tapped(ablate(Region(HEAD, heads=[1]))),
        "weights of all layers read": lambda: model.tapped(Recorder("weights")),
    }
    passes = in_turns({name: partial(forward, model, ids, way) for name, way in ways.items()}, asked.repeats)
    rows = show(f"forward pass over {length} tokens, ms", passes, 1)
    with model.tapped(Recorder(HEAD)):
        forward(model, ids, nullcontext)
    steps = {"plain": decode(model, length, nullcontext), "plain, after a capture": decode(model, length, nullcontext)}
    steps["outputs of a head read"] = decode(model, length, ways["outputs of a head read"])
    rows += show(f"token after {length} others, ms", in_turns(steps, asked.repeats), TOKENS)
    if asked.write:
        columns = ["GPT-2 124M, fp32", "way", "best", "spread", "ratio to plain"]
        write_table(asked.write, "capture: benchmarks/capture.py", columns, rows)


def show(title: str, times: dict[str, Times], tokens: int) -> list[list[str]]:
    """Print the times of all ways and their ratios to the first, the plain one; return the rows of a page."""
    plain = next(iter(times.values())).best
    rows = [
        [name, f"{1000 * t.best / tokens:.2f}", f"{t.spread:.0%}", f"{t.best / plain:.2f}"] for name, t in times.items()
    ]
    print_table(f"\n{title}", ["way", "best", "spread", "ratio to plain"], rows)
    return [[title, *row] for row in rows]


if __name__ == "__main__":
    main()
