"""Benchmark of training, tokens per second: forward, backward, clipping, fused AdamW of the same GPT in each library.

    python benchmarks/train_step.py --nanogpt path/to/nanoGPT
    python benchmarks/train_step.py --size large --precision bf16 --compiled

In bf16 the model runs under autocast; for every side, logits are cast to fp32 and the loss is computed outside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from gpt_models import Forward, Size, nanogpt, qkv_gpt, torch_gpt, transformers_gpt, x_transformers_gpt
from side_by_side import available, compare, in_turns, parser, say_where, seconds_of

SIZES = {
    "small": Size("4 layers, width 128, 4 heads, context 64, batch 12", 4, 128, 4, 64, 12),
    "large": Size("6 layers, width 384, 6 heads, context 256, batch 16", 6, 384, 6, 256, 16),
}
SMOKE = Size("smoke", 1, 32, 2, 16, 2)
LEAST_SECONDS = 1.0
"""Minimum duration of one repeat in seconds, approximately."""

Build = Callable[[Size], tuple[nn.Module, Forward]]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--nanogpt", type=Path, help="folder of a nanoGPT checkout")
    options.add_argument("--size", choices=[*SIZES, "both"], default="both")
    options.add_argument("--precision", choices=["fp32", "bf16", "both"], default="both")
    options.add_argument("--compiled", action="store_true", help="also run each side with torch.compile")
    options.add_argument("--only", nargs="+", help="sides to run", metavar="SIDE")
    return options.parse_args()


def sides(asked: argparse.Namespace) -> dict[str, Build]:
    """Available libraries and their functions to build the model."""
    found: dict[str, Build] = {"qkv": qkv_gpt}
    if asked.nanogpt:
        found["nanoGPT"] = partial(nanogpt, asked.nanogpt)
    else:
        print("left out: nanoGPT; name a checkout with --nanogpt")
    if available("transformers", "transformers", not asked.smoke):
        found["transformers"] = transformers_gpt
    if available("x-transformers", "x_transformers", not asked.smoke):
        found["x-transformers"] = x_transformers_gpt
    if not asked.smoke:
        found["torch.nn"] = torch_gpt
    unknown = set(asked.only or ()) - set(found)
    if unknown:
        raise SystemExit(f"--only: no side {', '.join(sorted(unknown))}; available: {', '.join(found)}")
    return {name: build for name, build in found.items() if not asked.only or name in asked.only}


def step_of(build: Build, size: Size, bf16: bool, compiled: bool, device: str = "cpu") -> Callable[[], object]:
    """Function that runs one update on a fixed batch."""
    torch.manual_seed(0)
    model, forward = build(size)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    text = torch.randint(0, size.vocab, (size.batch, size.context + 1)).to(device)
    ids, targets = text[:, :-1].contiguous(), text[:, 1:].flatten()
    if compiled:
        # Measured choices are made in an eager pass first, since a measurement cannot be traced.
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            forward(ids)
        forward = torch.compile(forward)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            logits = forward(ids)
        F.cross_entropy(logits.float().flatten(0, 1), targets).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure(size: Size, bf16: bool, builds: dict[str, Build], asked: argparse.Namespace) -> None:
    """Time all sides in turns and print the table."""
    steps = {name: step_of(build, size, bf16, False) for name, build in builds.items()}
    if asked.compiled:
        steps |= {f"{name}, compiled": step_of(build, size, bf16, True) for name, build in builds.items()}
    for step in steps.values():
        step()
        step()
    slowest = max(seconds_of(step) for step in steps.values())
    many = 1 if asked.smoke else max(1, round(LEAST_SECONDS / slowest))
    runs = {name: partial(repeat, step, many) for name, step in steps.items()}
    title = f"training, {size.name}, {'bf16' if bf16 else 'fp32'}"
    compare(
        title, "tokens/s", many * size.tokens, in_turns(runs, asked.repeats, warm_up=0), ours=("qkv", "qkv, compiled")
    )


def repeat(run: Callable[[], object], many: int) -> None:
    """Call ``run`` ``many`` times."""
    for _ in range(many):
        run()


def main() -> None:
    """Run every selected size and precision."""
    asked = arguments()
    say_where("transformers", "x-transformers")
    builds = sides(asked)
    chosen = [SMOKE] if asked.smoke else [size for name, size in SIZES.items() if asked.size in (name, "both")]
    for size in chosen:
        for precision in ("fp32", "bf16"):
            if asked.precision in (precision, "both"):
                measure(size, precision == "bf16", builds, asked)


if __name__ == "__main__":
    main()
