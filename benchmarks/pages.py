"""Benchmark of keys and values in pages and in dense stores: decoding steps, rows that join and leave, bytes.

    python benchmarks/pages.py
    python benchmarks/pages.py --bits 8 --only steps

A GPT-2 of 12 layers and 768 features with random weights. ``steps``: milliseconds of a step of rows that hold equally
many positions, and of one long row among short ones. ``turnover``: of dropping a row and joining a new one, as
the queue does when a request ends and another begins. ``sharing``: bytes of requests that begin with the same 512
tokens, in the queue, and seconds until all have their first token.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

import qkv
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.mixers.attention.attention import Attention
from qkv.models.edit.quantize import quantize
from qkv.models.state import State
from qkv.models.transformer import Transformer
from qkv.report.table import print_table
from qkv.spec.generation import Generation
from qkv.spec.models.quantization import Quantization
from qkv.state.arrival import Arrival, Counts
from qkv.state.tree import join, nbytes, rows
from side_by_side import in_turns, parser, say_where

VOCAB = 8000
KINDS = {"dense": False, "pages": True}
STEPS = [[64], [512], [2000], [64] * 8, [512] * 8, [2000] * 8, [2000, *[64] * 7], [64] * 32, [512] * 32]
SMOKE = [[5], [40, 3]]


def build(given: argparse.Namespace) -> Transformer:
    """GPT-2 with random weights, or for a smoke test a tiny one."""
    width, layers, heads = (32, 2, 2) if given.smoke else (768, 12, 12)
    branches = [f"attention({heads})", "feed_forward(activation=gelu_tanh)"]
    sizes = {"width": width, "num_layers": layers, "context_length": 4096}
    frontend = {"kind": "text", "vocab_size": VOCAB}
    model = qkv.build(qkv.Model.parse({**sizes, "frontend": frontend, "blocks": [{"branches": branches}]})).eval()
    if given.bits < 32:
        quantize(model, Quantization.parse({"bits": given.bits}))
    return model


def filled(model: Transformer, lengths: Sequence[int], pages: bool) -> State:
    """State of rows that have read ``lengths`` positions: random keys and values, and no pages shared."""
    found, attention = list[State](), model.branches[0]
    assert isinstance(attention, Attention)
    for length in dict.fromkeys(lengths):
        count = lengths.count(length)
        state, past = model.init_state(count, pages=pages), Counts((0,) * count)
        for block in state.blocks:
            keys, values = torch.randn(2, count, attention.kv_heads, length, attention.head_dim)
            block[0].append(keys, values, Arrival(past, length))
        found.append(state._replace(positions=Counts((length,) * count)))
    return reduce(join, found)


def millis(run: Callable[[str], object], given: argparse.Namespace) -> dict[str, float]:
    """Best milliseconds of both kinds, in turns."""
    times = in_turns({name: (lambda name=name: run(name)) for name in KINDS}, given.repeats)
    return {name: 1000 * each.best for name, each in times.items()}


def described(lengths: Sequence[int]) -> str:
    kinds = [f"{lengths.count(length)} × {length}" for length in dict.fromkeys(lengths)]
    return " + ".join(kinds)


def steps(model: Transformer, given: argparse.Namespace) -> None:
    """Print milliseconds of a decoding step."""
    table = list[Sequence[Any]]()
    for lengths in SMOKE if given.smoke else STEPS:
        states = {name: filled(model, lengths, pages) for name, pages in KINDS.items()}
        ids = torch.randint(VOCAB, (len(lengths), 1))

        def step(name: str, states: dict[str, State] = states, ids: Tensor = ids) -> None:
            _, after = model.features(ids, states[name])
            assert after is not None
            states[name] = after

        found = millis(step, given)
        sizes = [f"{nbytes(states[name]) / 2**20:,.0f}" for name in KINDS]
        ratio = found["dense"] / found["pages"]
        table.append([described(lengths), *(f"{found[name]:.2f}" for name in KINDS), f"{ratio:.2f}", *sizes])
    columns = ["rows × positions", "dense, ms", "pages, ms", "dense / pages", "dense, MiB", "pages, MiB"]
    print_table("\na decoding step", columns, table)


def turnover(model: Transformer, given: argparse.Namespace) -> None:
    """Print milliseconds of a row that leaves and one that joins."""
    table = list[Sequence[Any]]()
    for lengths in [[40, 3]] if given.smoke else [[512] * 8, [512] * 32]:
        states = {name: filled(model, lengths, pages) for name, pages in KINDS.items()}
        new = {name: filled(model, [64], pages) for name, pages in KINDS.items()}

        def turn(name: str, states: dict[str, State] = states, new: dict[str, State] = new) -> None:
            rest = rows(states[name], list(range(1, len(states[name].positions))))
            join(rest, new[name])

        found = millis(turn, given)
        table.append([described(lengths), *(f"{found[name]:.2f}" for name in KINDS)])
    print_table("\na row leaves, another joins", ["rows × positions", "dense, ms", "pages, ms"], table)


def sharing(model: Transformer, given: argparse.Namespace) -> None:
    """Print bytes and time of requests with the same beginning."""
    shared, count, own = (40, 4, 8) if given.smoke else (512, 32, 16)
    generator = torch.Generator().manual_seed(0)
    beginning: list[int] = torch.randint(VOCAB, (shared,), generator=generator).tolist()
    table = list[Sequence[Any]]()
    for name, pages in KINDS.items():
        queue = RequestQueue(model, None, keep=1 << 40, pages=pages)
        settings = Generation(max_new_tokens=8, temperature=0.0)
        queue.submit(Request(beginning, settings))
        while not queue.idle:
            queue.step()
        for row in range(count):
            ends: list[int] = torch.randint(VOCAB, (own + row % 5,), generator=generator).tolist()
            queue.submit(Request([*beginning, *ends], settings))
        most, first, begun, began = 0, 0.0, set[int](), time.perf_counter()
        while not queue.idle:
            begun |= {delta.number for delta in queue.step() if delta.tokens}
            first = first or (time.perf_counter() - began if len(begun) == count else 0.0)
            most = max(most, queue.nbytes)
        table.append([name, f"{most / 2**20:,.0f}", f"{first:.2f}"])
    title = f"\n{count} requests that begin with the same {shared} tokens"
    print_table(title, ["store", "most MiB of state", "all first tokens, s"], table)


PARTS = {"steps": steps, "turnover": turnover, "sharing": sharing}


def main() -> None:
    """Print the tables."""
    options = parser(__doc__ or "")
    options.add_argument("--only", choices=PARTS)
    options.add_argument("--bits", type=int, default=32, choices=(32, 16, 8, 4), help="of weights")
    given = options.parse_args()
    say_where()
    torch.manual_seed(0)
    model = build(given)
    if not model.branches[0].reads_pages:
        print("left out: pages (no kernel reads them here)")
        return
    with torch.inference_mode():
        for name, part in PARTS.items():
            if given.only in (None, name):
                part(model, given)


if __name__ == "__main__":
    main()
