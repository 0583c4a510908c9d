"""Golden losses: a short run of every form of recipe, its figures written with every digit, or compared with earlier.

    python -m tests.golden.losses --write before.json      in the tree before a change
    python -m tests.golden.losses --compare before.json    in the tree after it: a table of differences; exits 1 if any

Cases: each shipped recipe, the demo, ``qkv train`` of a text and of each verb, and finetuning of a run. All
data is made by this file, so that no download and no ``QKV_DATA`` is needed. Recipes keep their parts and sizes, and
are overridden in data, steps, batch, length of samples and precision (``overridden``). Nothing depends on timing: one
thread, fp32, an empty cache, and a clock on which every candidate takes as long as the others, so that each choice by
measurement falls on the plain path. Figures of two processors differ in the last digits.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.cli.tables import write_tables
from tests.tasks.clips import clips
from tests.tasks.nodes import write
from tests.tasks.pictures import pictures
from tests.tasks.sound.tones import write_tones

ROOT = Path(__file__).resolve().parents[2]
TEXT, PAIRS, START, SERIES = "text.txt", "a.txt | b.txt", "wikitext2_mlm", "series.csv"
CODES = "fashion_mnist_vq"
SOURCES: dict[str, tuple[str, dict[str, str]]] = {
    "tinyshakespeare": (TEXT, {}),
    "wikitext-2": (TEXT, {}),
    "multi30k-en-de": (PAIRS, {}),
    "scitldr": ("news.jsonl", {"source": "article", "target": "summary"}),
    "squad": ("squad.json", {}),
    "sst2": ("reviews.csv", {"text": "review", "label": "stars"}),
    "wnut17": ("names.conll", {}),
    "etth1": (SERIES, {"time": "date"}),
    "ettm1": (SERIES, {"time": "date"}),
    "cora": ("rings.npz", {}),
    "fashion-mnist": ("pictures", {}),
    "moving-garments": ("clips", {}),
    "fsdd": ("tones", {}),
}
"""File that takes the place of a data set, and its columns."""
VERBS: dict[str, tuple[str, ...]] = {
    "classify": ("--data", "reviews.csv"),
    "regress": ("--data", "prices.csv"),
    "tag": ("--data", "names.conll"),
    "answer": ("--data", "squad.json"),
    "translate": ("--source", "a.txt", "--target", "b.txt"),
    "summarize": ("--data", "news.jsonl", "--text", "article", "--summary", "summary"),
}
SHORT = (
    "training.steps=6",
    "training.precision=fp32",
    "training.minutes=null",
    "training.validation.every=3",
    "sample.max_new_tokens=6",
)
STEADY = {"seconds", "tokens_per_second", "time"}
"""Names of figures that are times, and are left out."""


class Case(NamedTuple):
    """A name, and what is typed after ``qkv`` besides ``--out``."""

    name: str
    typed: tuple[str, ...]


def cases() -> list[Case]:
    """Every form. ``sst2_pretrained`` and finetunings start from the run of ``wikitext2_mlm``, and the codes of images
    are those of the run of ``fashion_mnist_vq``, so these come first.
    """
    from qkv.spec.files.shipped import shipped

    recipes = sorted(shipped().values(), key=lambda path: (path.stem not in (START, CODES), path.stem))
    tables = [Case(f"train {verb}", ("train", verb, *options, *SHORT)) for verb, options in VERBS.items()]
    begun = ("train", "finetune", "--from", f"runs/{START}", "--data", "reviews.csv")
    finetuned = [Case(f"finetune {how}", (*begun, "--adapt", how, *SHORT)) for how in ("whole", "lora(4)")]
    return [
        *(Case(path.stem, ("train", str(path), *overridden(path))) for path in recipes),
        Case("demo", ("demo", *SHORT)),
        Case("train text", ("train", TEXT, *SHORT)),
        *tables,
        *finetuned,
    ]


def overridden(path: Path) -> list[str]:
    """Overrides that make a run of the recipe short."""
    import qkv

    recipe = qkv.read_recipe(path)
    changes = [*SHORT, "training.batch_size=2", "training.schedule.warmup=1"]
    if recipe.data.source != "nothing":  # the data set of a task that makes its own examples
        if recipe.data.source not in SOURCES:
            raise SystemExit(f"tests/golden/losses.py, SOURCES: no file in the place of {recipe.data.source!r}")
        source, columns = SOURCES[recipe.data.source]
        changes += [f"data.source={source}", f"data.columns={json.dumps(columns)}"]
    if recipe.task.kind == "forecasting":
        changes += ["task.context=64", "task.horizon=24", "task.parts=[0.7, 0.1, 0.2]"]
    if "token_buckets" in str(recipe.data.batching):
        changes.append("data.batching=token_buckets(256)")
    return [*changes, f"start=runs/{START}"] if recipe.start.checkpoint is not None else changes


def write_data(folder: Path) -> dict[str, str]:
    """Make every file of data in ``folder``; the digest of each."""
    draw = random.Random(0)
    letters = "etaoinshrdluéßж"
    words = ["".join(draw.choices(letters, k=draw.randint(1, 9))) for _ in range(3000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    lines = [draw.choices(words, weights, k=draw.randint(3, 20)) for _ in range(1800)]
    (folder / TEXT).write_text(
        "".join(" ".join(line).capitalize() + draw.choice(".?!") + "\n" for line in lines), encoding="utf-8"
    )
    write_tables(folder)
    write(folder)
    pictures(folder / "pictures", 40)
    write_tones(folder / "tones")
    if not (folder / "clips").exists():
        clips(folder / "clips")
    hours = (datetime(2024, 1, 1) + timedelta(hours=i) for i in range(1500))
    rows = [f"{hour.isoformat(' ')},{hour.hour + draw.random():.6f},{hour.weekday()}" for hour in hours]
    (folder / SERIES).write_text("\n".join(["date,first,second", *rows]), encoding="utf-8")
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir()) if path.is_file()
    }


@contextlib.contextmanager
def even_clock() -> Iterator[None]:
    """A clock that goes on by a millisecond each time that it is read, so that whatever is timed takes equally long."""
    reads = count()

    def read() -> float:
        return next(reads) * 1e-3

    with mock.patch.object(time, "perf_counter", read):
        yield


def figures(case: Case, out: Path) -> dict[str, Any]:
    """Train ``case`` into ``out``: losses of steps, validations, samples, the evaluation, counts of ``qkv cost``."""
    import qkv

    with even_clock():
        _typed(*case.typed, "--out", str(out))
        run = qkv.load(out)
        exam = run.evaluation or {"figures": qkv.evaluate(run, batches=4)}  # a task without further metrics
        counted = json.loads(_typed("cost", str(out), "--json"))
    return _steady(
        {
            "rows": {f"step {row['step']} {index}": row for index, row in enumerate(run.metrics)},
            "best step": run.step,
            "exam": exam,
            "cost": {key: counted[key] for key in ("parameters", "flops")},
        }
    )


def _typed(*command: str) -> str:
    from qkv.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(command)
    if code:
        raise RuntimeError(f"qkv {' '.join(command)}: code {code}: {err.getvalue().strip()[-500:]}")
    return out.getvalue()


def _steady(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _steady(value) for key, value in found.items() if key not in STEADY}
    return [_steady(value) for value in found] if isinstance(found, (list, tuple)) else found


def measure(folder: Path, chosen: Sequence[Case]) -> dict[str, Any]:
    """The figures of each case, or the error it ended with, from runs below ``folder``."""
    import torch

    about = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
    }
    found: dict[str, Any] = {"about": about, "data": write_data(folder), "cases": {}}
    for case in chosen:
        began = time.perf_counter()
        try:
            found["cases"][case.name] = figures(case, Path("runs") / case.name.replace(" ", "-"))
        except Exception as error:
            found["cases"][case.name] = {"error": f"{type(error).__name__}: {error}"}
            sys.stderr.write(f"{found['cases'][case.name]['error']}\n")
        sys.stderr.write(f"{case.name}: {time.perf_counter() - began:.1f} s\n")
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """The first figure that differs in each part of each case, by step: (case, figure, before, after)."""
    rows = []
    for name in ("about", "data"):
        rows += [(name, *rest) for rest in _first(before[name], after[name])]
    for name in dict.fromkeys([*before["cases"], *after["cases"]]):
        was, now = before["cases"].get(name, {}), after["cases"].get(name, {})
        for part in dict.fromkeys([*was, *now]):
            rows += [(name, *rest) for rest in _first({part: was.get(part)}, {part: now.get(part)})]
    return rows


def _first(before: Any, after: Any) -> list[tuple[str, str, str]]:
    was, now = dict(_leaves(before)), dict(_leaves(after))
    differ = [key for key in dict.fromkeys([*was, *now]) if was.get(key, "missing") != now.get(key, "missing")]
    more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
    return [(key + more, was.get(key, "missing"), now.get(key, "missing")) for key in differ[:1]]


def _leaves(found: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(found, (dict, list)) and found:
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from _leaves(value, f"{path} / {key}" if path else str(key))
    else:
        yield path, repr(found)


def show(rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Print a table."""
    print("\t".join(("case", "first figure that differs", "before", "after")))
    for row in rows:
        print("\t".join(cell[:80] for cell in row))


def arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description="Figures of a short run of every form of recipe, with every digit.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE", help="write the figures")
    what.add_argument(
        "--compare", type=Path, metavar="FILE", help="compare with the figures in FILE; exit code 1 if any differs"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="cases whose name contains one of these words"
    )
    return parser.parse_args()


def main() -> int:
    """Write or compare."""
    asked = arguments()
    target = (asked.write or asked.compare).resolve()
    chosen = [
        case
        for case in cases()
        if not asked.only or case.name == START or any(word in case.name for word in asked.only)
    ]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["QKV_CACHE"] = str(Path(folder) / "cache")
        found = measure(Path(folder), chosen)
    if asked.write:
        target.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 1 if any("error" in case for case in found["cases"].values()) else 0
    before = json.loads(target.read_text(encoding="utf-8"))
    if asked.only:
        before["cases"] = {name: case for name, case in before["cases"].items() if name in found["cases"]}
    rows = differences(before, json.loads(json.dumps(found)))
    if rows:
        show(rows)
    print(f"{len(found['cases'])} cases, {len({row[0] for row in rows})} differ")
    return 1 if rows else 0


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    sys.exit(main())
