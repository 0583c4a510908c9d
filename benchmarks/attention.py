"""Benchmark of all attention implementations over lengths: forward and with backward, causal and with a window of 512.

    python benchmarks/attention.py
    python benchmarks/attention.py --long --mask window

The peer is torch's ``scaled_dot_product_attention`` (``is_causal``, or a dense mask for the window); ``chosen`` is
qkv's automatic choice. Eight heads of 64, one row.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.attention import choose
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Causal, Mask, Sites, Window
from qkv.report.table import print_table
from side_by_side import Times, in_turns, parser, say_where

HEADS, DIM, WINDOW = 8, 64, 512
LENGTHS = (64, 256, 1024, 4096)
LONGEST = 16384
MOST_SCORES = 1 << 24
"""Maximum number of scores per head for sides that store all scores or a dense mask."""
PEER = "torch sdpa"
Run = Callable[[Tensor, Tensor, Tensor], Tensor]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.set_defaults(repeats=3)
    options.add_argument("--precision", choices=["fp32", "bf16", "both"], default="both")
    options.add_argument("--mask", choices=["causal", "window", "both"], default="both")
    options.add_argument("--direction", choices=["forward", "training", "both"], default="both")
    options.add_argument("--long", action="store_true", help=f"also {LONGEST:,} positions")
    return options.parse_args()


def masks(name: str) -> dict[str, Mask]:
    """Selected masks by name."""
    both: dict[str, Mask] = {"causal": Causal(), "window": Causal() & Window(WINDOW)}
    return {key: mask for key, mask in both.items() if name in (key, "both")}


def problem_of(mask: Mask, length: int, device: str = "cpu") -> AttentionProblem:
    """Self-attention problem of a mask and a length."""
    positions = torch.arange(length, device=device)[None]
    return AttentionProblem(mask, Sites(positions, positions, aligned=True), DIM**-0.5)


def torch_side(mask_name: str, length: int, device: str = "cpu") -> Run:
    """torch's kernel, with a precomputed dense mask for the window."""
    if mask_name == "causal":
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    rows = torch.arange(length, device=device)
    distance = rows[:, None] - rows
    visible = (distance >= 0) & (distance < WINDOW)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def sides(mask_name: str, mask: Mask, length: int, dtype: torch.dtype, device: str = "cpu") -> dict[str, Run]:
    """Implementations to compare: torch, every suitable twin, and the one qkv chooses."""
    problem = problem_of(mask, length, device)
    dense = length * length <= MOST_SCORES
    found: dict[str, Run] = {PEER: torch_side(mask_name, length, device)} if dense or mask_name == "causal" else {}
    for name, twin in choose.TWINS.items():
        if (name == "reference" and not dense) or (name == "sdpa" and mask_name == "window" and not dense):
            continue
        if name == "after a past" or (name == "native" and mask_name != "causal"):
            continue
        if name == "sdpa, oneDNN" and (device != "cpu" or dtype != torch.float32 or mask_name != "causal"):
            continue
        found[name] = partial(_problem_last, twin, problem)
    return {**found, "chosen": partial(_problem_last, choose.attention, problem)}


def _problem_last(twin: Callable[..., Tensor], problem: AttentionProblem, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return twin(q, k, v, problem)


def timed(run: Run, inputs: tuple[Tensor, Tensor, Tensor], training: bool) -> Callable[[], object]:
    """Function that runs one call, with gradients if ``training``."""

    def call() -> None:
        with torch.set_grad_enabled(training):
            out = run(*inputs)
            if training:
                torch.autograd.grad(out, inputs, out.detach())

    return call


def works(run: Callable[[], object]) -> bool:
    """False if a twin does not support this case."""
    try:
        run()
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def measure(mask_name: str, mask: Mask, length: int, precision: str, training: bool, repeats: int) -> dict[str, Times]:
    """Time all sides in turns."""
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(1, HEADS, length, DIM, generator=generator).to(dtype).requires_grad_(training) for _ in range(3)
    ]
    q, k, v = inputs
    runs = {name: timed(run, (q, k, v), training) for name, run in sides(mask_name, mask, length, dtype).items()}
    return in_turns({name: run for name, run in runs.items() if works(run)}, repeats)


def show(title: str, lengths: list[int], found: list[dict[str, Times]]) -> None:
    """Print a table of sides by lengths, then the ratio of the chosen implementation to torch's at each length."""
    names = dict.fromkeys(name for times in found for name in times)
    rows = [(name, *(round(times[name].best * 1e3, 3) if name in times else None for times in found)) for name in names]
    spread = max(t.spread for times in found for t in times.values())
    print_table(
        f"\n{title}, ms (best; largest spread {spread:.0%})", ["side", *(f"{length:,}" for length in lengths)], rows
    )
    pairs = zip(lengths, found, strict=True)
    ratios = [f"{length:,}: {t[PEER].best / t['chosen'].best:.2f}" for length, t in pairs if PEER in t]
    print(f"ratio chosen / {PEER}   " + ", ".join(ratios))


def main() -> None:
    """Run every selected mask, precision and direction."""
    asked = arguments()
    say_where()
    lengths = [64, 128] if asked.smoke else [*LENGTHS, *([LONGEST] if asked.long else [])]
    for precision in (p for p in ("fp32", "bf16") if asked.precision in (p, "both")):
        for name, mask in masks(asked.mask).items():
            for direction in (d for d in ("forward", "training") if asked.direction in (d, "both")):
                found = [
                    measure(name, mask, length, precision, direction == "training", asked.repeats) for length in lengths
                ]
                what = "forward and backward" if direction == "training" else "forward"
                show(f"{name} attention, {HEADS} heads × {DIM}, {precision}, {what}", lengths, found)


if __name__ == "__main__":
    main()
