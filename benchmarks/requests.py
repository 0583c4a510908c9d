"""Benchmark of requests of mixed lengths that arrive over time, with and without a shared beginning: throughput and
latency.

    python benchmarks/requests.py
    python benchmarks/requests.py --requests 64 --rate 8 --budget-mb 512
    python benchmarks/requests.py --model SmolLM2.gguf

Every side gets the same requests at the same times: prompts of 8 to 256 tokens, 16 to 128 new ones, drawn greedily by a
GPT-2 of 6 layers and 384 features with random weights, small enough for all sides to take less than five minutes. In
the second table, prompts of 8 to 64 tokens follow 256 that all share. ``queue``: requests join and leave the running
batch at each step; ``prefixes kept``: states of texts are kept for those that begin alike. ``one by one``: each in its
turn. ``static batches``: the transformers library, what has arrived in batches of up to 8, each as long as its longest
request. Latency is counted from the arrival. The third table has 16 requests at once, such as chats with one system
prompt; it is the only one for a model that is given. The last lines say how many texts of the queue equal those of one
by one: sums of other batch sizes round differently, so that a tie of two tokens may be decided otherwise.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import qkv
from qkv.generation.decode.sample import generate
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.models.transformer import Transformer
from qkv.report.table import print_table
from qkv.spec.generation import Generation
from side_by_side import available, parser, say_where

WIDTH, LAYERS, HEADS, VOCAB = 384, 6, 6, 8000


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


def arrivals(
    count: int, rate: float, lengths: tuple[int, int], shared: int, new: int, vocab: int = VOCAB
) -> list[Arrival]:
    """Requests with exponential times between arrivals, ``rate`` per second.

    lengths: of prompts, after ``shared`` tokens that all begin with. new: maximum number of new tokens.
    """
    rng, at, found = random.Random(shared), 0.0, list[Arrival]()
    beginning = [rng.randrange(vocab) for _ in range(shared)]
    for _ in range(count):
        prompt = beginning + [rng.randrange(vocab) for _ in range(rng.randint(*lengths))]
        found.append(Arrival(at, prompt, rng.randint(16, new)))
        at += rng.expovariate(rate)
    return found


def queued(model: Transformer, budget: int | None, batch: int, keep: int = 0) -> Side:
    """Requests in qkv's queue. ``keep``: bytes of kept states."""

    def run(asked: Sequence[Arrival]) -> Served:
        queue, served, waiting = RequestQueue(model, None, budget, batch, keep=keep), Served(), list(asked)
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


def build(smoke: bool) -> Transformer:
    """GPT-2 with random weights, or for a smoke test a tiny one."""
    width, layers = (32, 1) if smoke else (WIDTH, LAYERS)
    branches = [f"attention({HEADS})", "feed_forward(activation=gelu_tanh)"] if not smoke else ["attention(2)"]
    sizes = {"width": width, "num_layers": layers, "context_length": 1024}
    frontend = {"kind": "text", "vocab_size": VOCAB}
    return qkv.build(qkv.Model.parse({**sizes, "frontend": frontend, "blocks": [{"branches": branches}]})).eval()


def other(path: Path | None) -> Any:
    """The same model, or one of the same shape, in the transformers library."""
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if path is not None and path.is_file():
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    if path is not None:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCAB}
    return GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa", **sizes)).eval()


def padded(path: Path | None) -> Callable[[Sequence[Arrival]], None]:
    """Requests by the transformers library, padded on the left to one batch."""
    model = other(path)
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
    options.add_argument("--rate", type=float, default=8.0, help="requests per second")
    options.add_argument("--batch", type=int, default=32, help="maximum number of running requests of the queue")
    options.add_argument("--model", type=Path, help="a published folder or GGUF file; default: random GPT-2")
    options.add_argument("--budget-mb", type=float, help="MiB of decoding states of the queue; default: no bound")
    given = options.parse_args()
    if given.smoke:
        given.requests, given.rate = 6, 50.0
    return given


def compare(title: str, sides: Mapping[str, Side], asked: Sequence[Arrival], own: str) -> None:
    """Serve the same arrivals by each side and print the table and the ratios to the side ``own``."""
    for name in [name for name in sides if "queue" in name]:
        sides[name](asked)  # kernels are chosen by measurement at sizes that depend on when requests meet
    found = {name: side(asked) for name, side in sides.items()}
    columns = ["side", "tokens/s", "first token, median s", "95 %", "whole text, median s", "95 %", "most MiB of state"]
    print_table(title, columns, [row(name, served, asked) for name, served in found.items()])
    for name, served in found.items():
        if name != own:
            ratio = max(served.last.values()) / max(found[own].last.values())
            print(f"ratio {own} / {name}: {ratio:.2f} in tokens/s")
    alone = found["qkv, one by one"].texts
    equal = sum(found[own].texts[i] == alone[i] for i in range(len(asked)))
    print(f"{equal} of {len(asked)} texts of the queue equal those of one by one\n")


def main() -> None:
    """Print the tables of both kinds of prompts, and of requests at once."""
    given = arguments()
    say_where("transformers")
    model = build(given.smoke) if given.model is None else qkv.load(given.model).model
    budget = None if given.budget_mb is None else int(given.budget_mb * 2**20)
    sides: dict[str, Side] = {
        "qkv, queue, prefixes kept": queued(model, budget, given.batch, 2**28),
        "qkv, queue": queued(model, budget, given.batch),
        "qkv, one by one": batches(alone(model), 1),
    }
    if available("transformers", "transformers", not given.smoke):
        sides["transformers, static batches"] = batches(padded(given.model), 8)
    kinds = (("", 0, 256), (" with a shared beginning", 256, 64)) if given.model is None else ()
    for what, shared, longest in kinds:
        sizes = (32 if shared else 0, 24, 16) if given.smoke else (shared, longest, 128)
        asked = arrivals(given.requests, given.rate, (8, sizes[1]), sizes[0], sizes[2])
        title = f"{len(asked)} requests{what}, {given.rate:g} per second, {sum(one.new for one in asked):,} tokens"
        compare(title, sides, asked, "qkv, queue, prefixes kept")
    count, sizes = (4, (24, 8, 20)) if given.smoke else (16, (64, 64, 64))
    asked = arrivals(count, 1e9, (8, sizes[1]), sizes[0], sizes[2], model.spec.vocab_size or VOCAB)
    title = f"{count} requests at once with a shared beginning, {sum(one.new for one in asked):,} tokens"
    compare(title, sides, asked, "qkv, queue, prefixes kept")


if __name__ == "__main__":
    main()
