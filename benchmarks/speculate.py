"""Benchmark of speculative decoding: tokens per second against plain decoding, GPT-2 shape on bytes, batch 1, fp32.

    python benchmarks/speculate.py
    python benchmarks/speculate.py --new 96 --tokens 8

Random weights write nothing that can be looked up. The model, 12 layers of width 768 (GPT-2 124M without its table of
50,257 tokens: 85 M parameters), and a draft, 2 layers of width 128, are therefore trained here, once, for some minutes,
to continue a text that repeats itself: lines of a log with some fields that change. Measured are

- greedy decoding of that text, plain, by look-up and by the draft; the tokens must be the same;
- sampling of noise by a model with random weights, where nothing is accepted: proposals are measured and stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from hashlib import sha256 as digest

import torch
from safetensors.torch import load_model, save_model

import qkv
from qkv.generation.decode.sample import generate
from qkv.generation.decode.speculate import Speculator
from qkv.models.transformer import Transformer
from qkv.spec.generation import Speculation
from qkv.system.cache import cache_folder
from side_by_side import compare, in_turns, parser, say_where

CONTEXT, VOCAB = 1024, 256


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.set_defaults(repeats=7)
    options.add_argument("--new", type=int, default=128, help="number of tokens to generate")
    options.add_argument("--tokens", type=int, nargs="*", default=[4, 8, 16], help="numbers of tokens to look up")
    options.add_argument("--steps", type=int, default=400, help="training steps of the model")
    return options.parse_args()


def log(lines: int) -> bytes:
    """Lines of a log: four requests in turns, with a number that counts to ten."""
    paths = ("index.html", "style.css", "logo.png", "news/today.html")
    rows = (f"GET /{paths[i % 4]} 200 {i % 10}0 ms, example.org, from cache\n" for i in range(lines))
    return "".join(rows).encode()


def model(width: int, layers: int, heads: int, seed: int = 0) -> Transformer:
    """GPT of this size on bytes, with learned positions."""
    blocks = [{"branches": [f"attention({heads})", "feed_forward(activation=gelu_tanh)"]}]
    frontend = {"kind": "text", "vocab_size": VOCAB}
    sizes = {"width": width, "num_layers": layers, "context_length": CONTEXT}
    return qkv.build(qkv.Model.parse({**sizes, "frontend": frontend, "blocks": blocks}), seed=seed)


def trained(net: Transformer, text: bytes, steps: int, length: int, rate: float) -> Transformer:
    """``net`` after ``train``, whose weights are kept in the cache folder."""
    named = repr((net.spec.model_dump(), digest(text).hexdigest(), steps, length, rate))
    file = cache_folder() / "benchmarks" / f"{digest(named.encode()).hexdigest()[:16]}.safetensors"
    if file.is_file():
        load_model(net, file)
        return net.eval()
    file.parent.mkdir(parents=True, exist_ok=True)
    save_model(train(net, text, steps, length, rate), str(file))
    return net


def train(net: Transformer, text: bytes, steps: int, length: int, rate: float) -> Transformer:
    """Train on pieces of ``text`` that begin anywhere, at any position, with AdamW; prints the last loss."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=max(steps, 2))
    ids, drawn, loss = torch.tensor(list(text)), torch.Generator().manual_seed(0), torch.zeros(())
    for _ in range(steps):
        starts = torch.randint(0, len(ids) - length - 1, (2,), generator=drawn).tolist()
        piece = torch.stack([ids[start : start + length + 1] for start in starts])
        logits, _ = net(qkv.Signal(piece[:, :-1]))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"trained {steps} steps of 2 × {length} bytes: loss {loss.item():.3f}")
    return net.eval()


class Side:
    """One way to decode; keeps its tokens and figures for comparison."""

    def __init__(self, net: Transformer, prompt: list[int], generation: qkv.Generation, speculator: Speculator | None):
        self.run: Callable[[], list[list[int]]] = partial(
            generate, net, [prompt], generation, len(prompt) + generation.max_new_tokens, speculator
        )
        self.speculator, self.tokens = speculator, list[list[int]]()

    def __call__(self) -> None:
        """Generate once."""
        self.tokens = self.run()


def measure(title: str, sides: dict[str, Side], new: int, repeats: int) -> None:
    """Time the sides in turns; print their ratio to plain decoding, whether tokens are equal, and what was accepted."""
    times = in_turns(sides, repeats)
    compare(title, "tokens/s", new, times, tuple(name for name in sides if name != "plain"))
    for name, side in sides.items():
        if side.speculator is not None:
            same = "identical tokens" if side.tokens == sides["plain"].tokens else "OTHER TOKENS"
            ratio = times["plain"].best / times[name].best
            print(f"{name}: {ratio:.2f} times plain decoding, {same}; {side.speculator.summary()}")


def main() -> None:
    """Train, then measure both cases."""
    asked = arguments()
    say_where()
    smoke, new = asked.smoke, 32 if asked.smoke else asked.new
    sizes = (32, 1, 2) if smoke else (768, 12, 12)
    text, length = log(400), 64 if smoke else 256
    net = trained(model(*sizes), text, 2 if smoke else asked.steps, length, 6e-4)
    small = trained(model(32 if smoke else 128, 1 if smoke else 2, 2), text, 2 if smoke else 400, length, 3e-3)
    prompt = list(log(8)[: length // 2])  # and as much is written: the model knows no later position
    greedy = qkv.Generation(max_new_tokens=new, temperature=0.0)
    ways: dict[str, Speculator | None] = {"plain": None}
    ways |= {f"look-up {count}": Speculator(Speculation(num_tokens=count)) for count in asked.tokens}
    ways["draft 4"] = Speculator(Speculation(kind="draft", num_tokens=4), small)
    sides = {name: Side(net, prompt, greedy, way) for name, way in ways.items()}
    measure("a text that repeats itself, greedy, batch 1", sides, new, asked.repeats)
    noise = qkv.Generation(max_new_tokens=new, seed=0)
    other = model(*sizes).eval()
    sides = {name: Side(other, prompt, noise, ways[name]) for name in ("plain", f"look-up {asked.tokens[0]}")}
    measure("noise, drawn from random weights, batch 1", sides, new, asked.repeats)


if __name__ == "__main__":
    main()
