"""Benchmark of four ways to write captions of pictures, at equal parameters and equal time, over several seeds.

    python benchmarks/captions.py --data openmoji-captions --minutes 1 --write benchmarks/results/captions.md

    concatenated    patches and words in one row of one stack; words see all patches and earlier words
    cross-attended  an encoder, and a decoder whose blocks read it
    Flamingo        a language model of the captions, continued with gated blocks that read latents of the encoder
    adapted         the same language model, continued with blocks behind self-resurrecting gates (VisualGPT)

Pictures of OpenMoji and their names; a tenth is the test split, the same for all seeds. The ways have equally many
parameters, within 10 %. The language model has a third of the time. The group of a written caption is that of the
training caption with which it shares the largest part of its words.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import random
import statistics
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import qkv
from qkv.models.wide import num_parameters
from qkv.report.table import print_table
from qkv.runs.run import Run
from qkv.system.processor import processor_name
from side_by_side import parser, say_where, with_rows_of, write_table

WIDTH, PATCH, SIZE, LATENTS = 128, 8, 48, 16
COLUMNS = ("captions", "parameters", "CIDEr", "BLEU", "equal, %", "group, %", "seeds", "date")
TEXT_SHARE = 1 / 3
"""Share of the time in which the language model is trained, in the two ways that begin with one."""
Row = dict[str, str]
"""Row of a table: image, caption, group."""
TASK = {"kind": "captioning", "label_smoothing": 0.1}
MIX, READ, MLP = f"attention({WIDTH // 32})", f"cross_attention({WIDTH // 32})", f"feed_forward({2 * WIDTH})"


def openmoji(source: Path, folder: Path) -> dict[str, list[Row]]:
    """Unpack the pictures; return the rows of the splits, a tenth of the names for the test."""
    with tarfile.open(source / "images.tar.gz") as archive:
        archive.extractall(folder / "images", filter="data")
    splits: dict[str, list[Row]] = {"train": [], "test": []}
    with (source / "captions.tsv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            place = "test" if hashlib.sha256(row["caption"].encode()).digest()[0] < 26 else "train"
            picture = folder / "images" / row["file"]
            splits[place].append({"image": str(picture), "caption": row["caption"], "group": row["group"]})
    return splits


def squares(folder: Path) -> dict[str, list[Row]]:
    """Coloured squares in place of drawings, to check that the script runs."""
    from PIL import Image

    chance, splits = random.Random(0), {"train": list[Row](), "test": list[Row]()}
    for number in range(150):
        colour, path = chance.choice(["red", "green", "blue"]), folder / f"{number}.png"
        Image.new("RGB", (SIZE, SIZE), colour).save(path)
        row = {"image": str(path), "caption": f"a {colour} square", "group": colour}
        splits["test" if number % 5 == 0 else "train"].append(row)
    return splits


def written(folder: Path, splits: dict[str, list[Row]]) -> None:
    """Write a table for each split, and the captions of the training split as a text."""
    for name, rows in splits.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["image", "caption"])
            table.writerows((row["image"], row["caption"]) for row in rows)
    (folder / "captions.txt").write_text("\n".join(row["caption"] for row in splits["train"]) + "\n", encoding="utf-8")


def encoder(**more: Any) -> dict[str, Any]:
    """Return the stack that reads a picture."""
    blocks = [{"branches": [f"attention({WIDTH // 32}, mask=full)", MLP], "dropout": 0.1}]
    return {"width": WIDTH, "num_layers": 2, "frontend": f"patches(patch={PATCH})", "blocks": blocks, **more}


def recipe(folder: Path, model: dict[str, Any], given: argparse.Namespace, seed: int, **more: Any) -> qkv.Recipe:
    """Build the recipe of one way."""
    reader = f"images(height={SIZE}, width={SIZE})"
    inputs = {"inputs": {"image": reader}} if "frontend" in model else {"processor": reader}
    return qkv.Recipe.parse(
        {
            "data": {
                "source": str(folder / "train.csv"),
                "test": str(folder / "test.csv"),
                "columns": {"image": "image", "target": "caption"},
                **inputs,
                **({} if more else {"tokenizer": "wordpiece(1500)"}),
            },
            "task": TASK,
            "model": {"context_length": 24, **model},
            "sample": {"max_new_tokens": 20, "temperature": 0.0},
            "training": training(given, seed, 1 - TEXT_SHARE if more else 1.0),
            **more,
        }
    )


def training(given: argparse.Namespace, seed: int, share: float) -> dict[str, Any]:
    """Return the training settings for a share of the time."""
    length = {"steps": 4} if given.smoke else {"steps": 20_000, "minutes": share * given.minutes}
    optimizer = {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.05}
    return {
        "seed": seed,
        "batch_size": 32,
        "optimizer": optimizer,
        "schedule": "cosine(warmup=50)",
        **length,
        "validation": {"every": 4 if given.smoke else 60, "patience": 8},
    }


def language_model(folder: Path, given: argparse.Namespace, seed: int) -> Path:
    """Train the language model of the captions, or find it."""
    out = given.runs / f"language-{seed}"
    blocks = [{"branches": [MIX, MLP], "dropout": 0.1}]
    data = {"source": str(folder / "captions.txt"), "tokenizer": "wordpiece(1500)"}
    model = {"width": WIDTH, "num_layers": 2, "context_length": 24, "blocks": blocks}
    fields = {"data": data, "model": model, "training": training(given, seed, TEXT_SHARE)}
    qkv.train(qkv.Recipe.parse(fields), out)
    return out


def recipes(folder: Path, given: argparse.Namespace, seed: int) -> Iterator[tuple[str, qkv.Recipe]]:
    """Yield the ways and their recipes."""
    single = {"branches": [f"attention({WIDTH // 32}, mask=causal | prefix)", MLP], "dropout": 0.1}
    joined = {"kind": "joined", "inputs": {"image": f"patches(patch={PATCH})"}}
    length = 2 * (SIZE // PATCH) ** 2 + 24  # half of a row is for the picture
    model = {"width": WIDTH, "num_layers": 5, "frontend": joined, "blocks": [single], "context_length": length}
    yield "concatenated", recipe(folder, model, given, seed)
    blocks = [{"branches": [MIX, READ, MLP], "dropout": 0.1}]
    model = {"width": WIDTH, "num_layers": 2, "blocks": blocks, "encoder": encoder()}
    yield "cross-attended", recipe(folder, model, given, seed)
    start = {"kind": "decoder", "source": str(language_model(folder, given, seed))}
    latents = {"count": LATENTS, "num_layers": 1, "blocks": [{"branches": [READ]}]}
    reading = {"branches": [READ], "residual": "gated"}
    yield (
        "Flamingo",
        recipe(folder, {"encoder": encoder(latents=latents), "blocks": [reading]}, given, seed, start=start),
    )
    reading = {"branches": [READ], "residual": "resurrecting"}
    yield "adapted", recipe(folder, {"encoder": encoder(), "blocks": [reading]}, given, seed, start=start)


def group_of(caption: str, training_rows: Sequence[Row]) -> str:
    """Return the group of the training caption with the largest share of common words."""
    words = Counter(caption.lower().split())

    def common(row: Row) -> float:
        other = Counter(row["caption"].lower().split())
        return 2 * (words & other).total() / max(1, words.total() + other.total())

    return max(training_rows, key=common)["group"]


def figures(run: Run, splits: dict[str, list[Row]]) -> list[float]:
    """Return CIDEr, BLEU, and the shares of equal captions and of right groups of the test split."""
    reached = run.evaluation["splits"]["test"]["figures"]  # type: ignore[index]
    answers = qkv.predict(run, *({"image": row["image"]} for row in splits["test"]))
    groups = [
        group_of(answer["answer"], splits["train"]) == row["group"]
        for answer, row in zip(answers, splits["test"], strict=True)
    ]
    return [reached["cider"], reached["bleu"], reached["exact"], 100 * statistics.mean(groups)]


def cell(values: Sequence[float], digits: int) -> str:
    """Write the mean of values, and their standard deviation if there are several."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def baseline(run: Run, splits: dict[str, list[Row]], when: str) -> list[str]:
    """Return the row of the captions of the most similar training pictures."""
    reached = run.evaluation["splits"]["test"]["figures"]  # type: ignore[index]
    names = ("cider", "bleu", "exact")
    cells = [
        f"{reached[f'{name}_of_nearest_neighbour']:.{digits}f}" for name, digits in zip(names, (2, 1, 1), strict=True)
    ]
    return ["nearest training picture", "", *cells, "", "", when]


def main() -> None:
    """Train, measure, and write the table."""
    options = parser(__doc__ or "")
    options.add_argument("--data", type=Path, help="folder openmoji-captions")
    options.add_argument("--minutes", type=float, default=1.0, help="minutes of training of each way and seed")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--runs", type=Path, help="folder of the runs; default: a temporary one")
    options.add_argument("--write", type=Path, help="page whose table is written")
    given = options.parse_args()
    say_where()
    if given.data is None and not given.smoke:
        raise SystemExit("give the folder of the pictures with --data, or --smoke")
    when = f"{datetime.now(UTC):%Y-%m-%d}, {processor_name()}"
    seeds = range(1 if given.smoke else given.seeds)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        given.runs = given.runs or folder / "runs"
        splits = openmoji(given.data, folder) if given.data else squares(folder)
        written(folder, splits)
        reached, sizes, rows = dict[str, list[list[float]]](), dict[str, int](), list[list[str]]()
        for seed in seeds:
            for way, chosen in recipes(folder, given, seed):
                run = qkv.train(chosen, given.runs / f"{way}-{seed}")
                reached.setdefault(way, []).append(figures(run, splits))
                sizes[way] = num_parameters(run.model, None)
                rows = rows or [baseline(run, splits, when)]
    for way, several in reached.items():
        cells = [cell(values, digits) for values, digits in zip(zip(*several, strict=True), (2, 1, 1, 1), strict=True)]
        rows.append([way, f"{sizes[way]:,}", *cells, str(len(several)), when])
    print_table("\ncaptions of the test split", COLUMNS, rows)
    if given.write:
        name = "captions: benchmarks/captions.py"
        note = f"{given.minutes:g} minutes for each seed of each way."
        write_table(given.write, name, COLUMNS, with_rows_of(given.write, name, rows, 1), note)


if __name__ == "__main__":
    main()
