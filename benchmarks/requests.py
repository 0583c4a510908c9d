"""Benchmark of requests of mixed lengths that arrive over time: throughput and latency, GPT-2 124M shape.

    python benchmarks/requests.py
    python benchmarks/requests.py --requests 64 --rate 2 --budget-mb 512

Every side gets the same requests at the same times: prompts of 8 to 256 tokens, 16 to 128 new ones, drawn greedily by a
model with random weights. ``queue``: requests join and leave the running batch at each step. ``one by one``: each in
its turn. ``static batches``: the transformers library, what has arrived in batches of up to 8, each as long as its
longest request. Latency is counted from the arrival. The last line says how many texts of the queue equal those of one
by one: sums of other batch sizes round differently, so that a tie of two tokens may be decided otherwise.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from decode import VOCAB, build_qkv, transformers_model
from qkv.generation.requests import Request, RequestQueue
from qkv.generation.sample import generate
from qkv.models.transformer import Transformer
from qkv.report.table import print_table
from qkv.spec.generation import Generation
from side_by_side import available, parser, say_where


@dataclass(frozen=True)
class Arrival:
    """Request that arrives ``at`` seconds after the start."""

    at: float
    prompt: list[int]
    new: int


@dataclass
class Served:
    """Times of a side, in seconds from the start: first token and end of each request; texts where they are known."""

    first: dict[int, float] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)
    texts: dict[int, list[int]] = field(default_factory=dict)
    most_bytes: int = 0


Side = Callable[[Sequence[Arrival]], Served]


def arrivals(count: int, rate: float, vocab: int, longest: int, seed: int = 0) -> list[Arrival]:
    """Requests with exponential times between arrivals, ``rate`` per second."""
    rng, at, found = random.Random(seed), 0.0, list[Arrival]()
    for _ in range(count):
        prompt = [rng.randrange(vocab) for _ in range(rng.randint(8, longest))]
        found.append(Arrival(at, prompt, rng.randint(16, max(16, longest // 2))))
        at += rng.expovariate(rate)
    return found


def queued(model: Transformer, budget: int | None, batch: int) -> Side:
    """Requests in qkv's queue."""

    def run(asked: Sequence[Arrival]) -> Served:
        queue, served, waiting = RequestQueue(model, None, budget, batch), Served(), list(asked)
        began, tokens = time.perf_counter(), {i: list[int]() for i in range(len(asked))}
        while waiting or not queue.idle:
            while waiting and waiting[0].at <= time.perf_counter() - began:
                one = waiting.pop(0)
                queue.submit(Request(one.prompt, Generation(max_new_tokens=one.new, temperature=0.0)))
            if queue.idle:
                time.sleep(max(0.0, waiting[0].at - (time.perf_counter() - began)))
                continue
            for delta in queue.step():
                now = time.perf_counter() - began
                tokens[delta.number] += delta.tokens
                served.first.setdefault(delta.number, now)
                if delta.finished:
                    served.last[delta.number] = now
            served.most_bytes = max(served.most_bytes, queue.nbytes)
        served.texts = tokens
        return served

    return run


def batches(generate_all: Callable[[Sequence[Arrival]], list[list[int]] | None], most: int) -> Side:
    """Batches of up to ``most`` of the requests that have arrived, one after the other."""

    def run(asked: Sequence[Arrival]) -> Served:
        served, done, began = Served(), 0, time.perf_counter()
        while done < len(asked):
            now = time.perf_counter() - began
            some = [i for i in range(done, min(done + most, len(asked))) if asked[i].at <= now]
            if not some:
                time.sleep(max(0.0, asked[done].at - now))
                continue
            texts = generate_all([asked[i] for i in some])
            now = time.perf_counter() - began
            for place, i in enumerate(some):
                served.first[i] = served.last[i] = now
                if texts is not None:
                    served.texts[i] = texts[place]
            done += len(some)
        return served

    return run


def alone(model: Transformer) -> Callable[[Sequence[Arrival]], list[list[int]]]:
    """Requests by qkv, a batch of one."""
    return lambda some: [
        generate(model, [one.prompt], Generation(max_new_tokens=one.new, temperature=0.0))[0] for one in some
    ]


def padded() -> Callable[[Sequence[Arrival]], None]:
    """Requests by the transformers library, padded on the left to one batch."""
    model = transformers_model()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def run(some: Sequence[Arrival]) -> None:
        longest = max(len(one.prompt) for one in some)
        ids = torch.tensor([[0] * (longest - len(one.prompt)) + one.prompt for one in some])
        mask = torch.tensor([[0] * (longest - len(one.prompt)) + [1] * len(one.prompt) for one in some])
        model.generate(ids, attention_mask=mask, max_new_tokens=max(one.new for one in some), do_sample=False)

    return run


def row(name: str, served: Served, asked: Sequence[Arrival]) -> list[object]:
    """Row of the table: throughput, latency, bytes."""
    waits = sorted(served.last[i] - one.at for i, one in enumerate(asked))
    firsts = sorted(served.first[i] - one.at for i, one in enumerate(asked))
    total = sum(one.new for one in asked)
    return [
        name,
        round(total / max(served.last.values()), 1),
        *(f"{statistics.quantiles(each, n=20)[at]:.2f}" for each in (firsts, waits) for at in (9, 18)),
        f"{served.most_bytes / 2**20:,.0f}" if served.most_bytes else "",
    ]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--requests", type=int, default=64)
    options.add_argument("--rate", type=float, default=2.0, help="requests per second")
    options.add_argument("--batch", type=int, default=32, help="maximum number of running requests of the queue")
    options.add_argument("--budget-mb", type=float, help="MiB of decoding states of the queue; default: no bound")
    given = options.parse_args()
    if given.smoke:
        given.requests, given.rate = 6, 50.0
    return given


def main() -> None:
    """Serve the same arrivals by each side and print the table."""
    given = arguments()
    say_where("transformers")
    model = build_qkv(given.smoke)
    asked = arrivals(given.requests, given.rate, 128 if given.smoke else VOCAB, 32 if given.smoke else 256)
    budget = None if given.budget_mb is None else int(given.budget_mb * 2**20)
    sides: dict[str, Side] = {
        "qkv, queue": queued(model, budget, given.batch),
        "qkv, one by one": batches(alone(model), 1),
    }
    if available("transformers", "transformers", not given.smoke):
        sides["transformers, static batches"] = batches(padded(), 8)
    found = {}
    for name, side in sides.items():
        side(asked[:2])  # kernels are chosen by measurement in the first calls
        found[name] = side(asked)
    columns = ["side", "tokens/s", "first token, median s", "95 %", "whole text, median s", "95 %", "most MiB of state"]
    title = f"{len(asked)} requests, {given.rate:g} per second, {sum(one.new for one in asked):,} tokens"
    print_table(title, columns, [row(name, served, asked) for name, served in found.items()])
    own = found["qkv, queue"]
    for name, served in found.items():
        if name != "qkv, queue":
            ratio = max(served.last.values()) / max(own.last.values())
            print(f"ratio qkv, queue / {name}: {ratio:.2f} in tokens/s")
    equal = sum(own.texts[i] == found["qkv, one by one"].texts[i] for i in range(len(asked)))
    print(f"{equal} of {len(asked)} texts of the queue equal those of one by one")


if __name__ == "__main__":
    main()
