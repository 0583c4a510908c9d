"""Benchmark of the default on tables that it was not made for: ``qkv train`` in one line against its strong baseline.

    QKV_DATA=folder python benchmarks/own_tables.py --seeds 3 --minutes 5 --jobs 2 --out results --write docs/tables.md

Eight tables are built from real data, each with a test file of its own. Every run is a process of its own on one core;
``--jobs`` run at once. A finished run is kept, so an interrupted benchmark goes on. Figures are those of the test part;
the winner was chosen on the validation part, which is a tenth of the training rows. The baseline, a linear model fitted
in seconds, does not depend on the seed but for the rows held out.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from qkv.report.evaluation import ERRORS, words
from qkv.report.table import print_table
from side_by_side import parser, say_where

_SMOKE = 100
_ATTENTION = re.compile("attention|encoder")
"""Names of candidates with attention."""
Rows = Sequence[Sequence[Any]]
Parts = dict[str, Rows]
"""Rows by the option that names their file: data, test, and validation if the table has such a part."""
_OFFICIAL = {"data": "train", "validation": "dev", "test": "test"}


class Table(NamedTuple):
    """One table: ``verb`` of ``qkv train``, deciding ``metric``, and a function that returns columns and rows."""

    verb: str
    metric: str
    about: str
    build: Callable[[Path], tuple[Sequence[str], Parts]]


def _lines(path: Path) -> list[str]:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines()


def _split(rows: Iterable[Sequence[Any]], most: int = 5100, share: float = 0.15, tests: int = 4000) -> Parts:
    """Training and test rows, distinct and in random order: ``most`` for training or what a test part of at least
    ``share`` leaves, and at most ``tests`` of the others for the test. Differences of a point need thousands of rows.
    """
    found = list(dict.fromkeys(tuple(row) for row in rows))
    random.Random(0).shuffle(found)
    cut = len(found) - min(most, len(found) - round(share * len(found)))
    return {"data": found[cut:], "test": found[: min(cut, tests)]}


def reviews(data: Path) -> tuple[Sequence[str], Parts]:
    """SST-2: film review sentences, positive or negative."""
    parts = {
        option: [line.split("\t") for line in _lines(data / f"sst2/{name}.tsv.gz")]
        for option, name in _OFFICIAL.items()
    }
    return parts["data"][0], {option: rows[1:] for option, rows in parts.items()}


def languages(data: Path) -> tuple[Sequence[str], Parts]:
    """Multi30k: English or German, different captions."""
    english, german = (_lines(data / f"multi30k-en-de/train.{side}.gz") for side in ("en", "de"))
    rows = [(line.strip(), "English") for line in english[:3000]]
    rows += [(line.strip(), "German") for line in german[3000:6000]]
    return ("text", "language"), _split(rows)


def proteins(data: Path) -> tuple[Sequence[str], Parts]:
    """DeepLoc-like: location of a protein in the cell, from its sequence of amino acids."""
    head, *rows = [line.split("\t") for line in _lines(data / "protein-localization/train.tsv.gz")]
    sequence, location = head.index("sequence"), head.index("location")
    return ("sequence", "location"), _split((row[sequence], row[location]) for row in rows)


def speakers(data: Path) -> tuple[Sequence[str], Parts]:
    """Shakespeare: speaker of a passage, of the eight who speak most often."""
    text = (data / "tinyshakespeare/input.txt").read_text(encoding="utf-8")
    passages = [part.split(":\n", 1) for part in text.split("\n\n") if ":\n" in part]
    usual = {name for name, _ in Counter(name for name, _ in passages).most_common(8)}
    rows = [(" ".join(said.split()), name) for name, said in passages if name in usual and len(said) > 40]
    return ("passage", "speaker"), _split(rows)


def answers(data: Path) -> tuple[Sequence[str], Parts]:
    """SQuAD: kind of the answer to a question: a number, a name or another phrase."""
    rows = []
    for name in ("dev-v1.1", "train-new_wiki"):
        for article in json.loads("\n".join(_lines(data / f"squad/{name}.json.gz")))["data"]:
            for question in (each for paragraph in article["paragraphs"] for each in paragraph["qas"]):
                found = question["answers"][0]["text"]
                kind = "number" if re.search(r"\d", found) else "name" if re.match(r"[A-Z]", found) else "phrase"
                rows.append((question["question"].strip(), kind))
    return ("question", "answer"), _split(rows)


def sections(data: Path) -> tuple[Sequence[str], Parts]:
    """WikiText-2: heading of the section that a paragraph is in, of the six most frequent headings."""
    rows, heading = [], ""
    path = next(path for path in (data / "wikitext-2").iterdir() if "train" in path.name)
    for line in map(str.strip, _lines(path)):
        if found := re.match(r"^= = ([^=]+) = =$", line):
            heading = found.group(1).strip()
        elif re.match(r"^= [^=]+ =$", line):
            heading = ""
        elif heading and len(line) > 100 and not line.startswith("="):
            rows.append((line, heading))
    usual = {name for name, _ in Counter(name for _, name in rows).most_common(6)}
    return ("paragraph", "section"), _split(row for row in rows if row[1] in usual)


def noise(data: Path) -> tuple[Sequence[str], Parts]:
    """Made: a sum of values of adjectives, whose sign "not" turns, plus noise of deviation 0.5, the least RMSE."""
    draw = random.Random(0)
    values = {"fast": 2, "slow": -2, "big": 1, "small": -1, "bright": 0.5, "dull": -0.5, "new": 0.3, "old": -0.3}

    def row() -> tuple[str, float]:
        said, total = [], 0.0
        for _ in range(draw.randint(4, 14)):
            word, turned = draw.choice(list(values)), draw.random() < 0.3
            said.append(f"{'not ' * turned}{word} {draw.choice(['car', 'house', 'film', 'day'])}")
            total += -values[word] if turned else values[word]
        return " , ".join(said), round(total + draw.gauss(0, 0.5), 3)

    return ("text", "value"), _split([row() for _ in range(3000)])


def names(data: Path) -> tuple[Sequence[str], Parts]:
    """WNUT-17: names in short messages; rows are (word, tag) lines, an empty one between sentences."""

    return (), {
        option: [line.split("\t") for line in _lines(data / f"wnut17/{name}.conll.gz")]
        for option, name in _OFFICIAL.items()
    }


TABLES = {
    "reviews": Table("classify", "accuracy", "SST-2, opinion of a sentence", reviews),
    "names": Table("tag", "f1", "WNUT-17, names in short messages", names),
    "proteins": Table("classify", "accuracy", "location of a protein", proteins),
    "languages": Table("classify", "accuracy", "Multi30k, English or German", languages),
    "sections": Table("classify", "accuracy", "WikiText-2, section of a paragraph", sections),
    "speakers": Table("classify", "accuracy", "Shakespeare, speaker of a passage", speakers),
    "answers": Table("classify", "accuracy", "SQuAD, kind of the answer to a question", answers),
    "noise": Table("regress", "rmse", "sum of values with negation and noise of 0.5", noise),
}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    options.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1")
    options.add_argument(
        "--minutes", type=float, default=5.0, help="time budget of a run, heats and evaluation included"
    )
    options.add_argument("--jobs", type=int, default=1, help="runs at once, each on one core")
    options.add_argument("--out", type=Path, default=Path("tables"), help="folder of tables and runs")
    options.add_argument("--write", type=Path, help="Markdown file for the results")
    given = options.parse_args()
    if given.smoke:
        given.tables, given.seeds, given.minutes = ["noise"], 1, 0.1
    return given


def write_table(name: str, folder: Path, most: int | None = None) -> dict[str, Path]:
    """Build a table, of at most ``most`` rows a part; return its files by option."""
    table = TABLES[name]
    columns, parts = table.build(Path(os.environ.get("QKV_DATA", ".")))
    folder.mkdir(parents=True, exist_ok=True)
    files = {option: folder / f"{name}-{option}.{'csv' if columns else 'conll'}" for option in parts}
    for option, rows in parts.items():
        with files[option].open("w", newline="", encoding="utf-8") as file:
            if columns:
                csv.writer(file).writerows([columns, *rows[:most]])
            else:
                file.writelines("\t".join(row) + "\n" for row in rows)
    return files


def train(name: str, seed: int, files: dict[str, Path], given: argparse.Namespace) -> dict[str, Any]:
    """Run ``qkv train`` on a table, if it was not done; return the result, with the seconds of the whole command."""
    folder = given.out / f"{name}-{seed}"
    result = folder / "benchmark.json"
    if not result.exists():
        command = [sys.executable, "-m", "qkv", "train", TABLES[name].verb]
        command += [text for option, path in files.items() for text in (f"--{option}", path)]
        command += ["--minutes", given.minutes, "--out", folder, f"training.seed={seed}"]
        command += ["training.steps=4", "candidates={}"] * given.smoke
        began = time.perf_counter()
        done = subprocess.run(
            list(map(str, command)), env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{name}, seed {seed}: {done.stderr[-2000:]}")
        evaluation = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["splits"]
        found = {"table": name, "seed": seed, "seconds": time.perf_counter() - began, "splits": evaluation}
        result.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(result.read_text(encoding="utf-8"))


def rows_of(found: dict[str, Any], kind: str) -> list[dict[str, str]]:
    """Rows of the table ``kind`` (heats or contestants) of a run's validation part, as column -> text."""
    for section in found["splits"]["validation"]["sections"]:
        if section["kind"] == kind:
            return [dict(zip(section["columns"], row, strict=True)) for row in section["rows"]]
    return []


def baseline(figures: dict[str, float], metric: str) -> float:
    """The strongest baseline among the figures."""
    found = [value for name, value in figures.items() if name.startswith(f"{metric}_of_")]
    return min(found) if metric in ERRORS else max(found)


def attention_margin(found: dict[str, Any], metric: str) -> float | None:
    """Gain of the best contestant with attention over the n-grams alone on the validation part, in units of the metric,
    positive if better; None if attention did not win the heats, or there is no contest.
    """
    column = words(metric)
    contestants = {row["model"]: row for row in rows_of(found, "contestants")}
    with_attention = [float(row[column]) for name, row in contestants.items() if _ATTENTION.search(name)]
    if not with_attention:
        return None
    sign = -1 if metric in ERRORS else 1
    return max(sign * (value - float(contestants["n-grams"][column])) for value in with_attention)


def summary(name: str, results: list[dict[str, Any]]) -> list[Any]:
    """Row of the table of results."""
    metric = TABLES[name].metric
    own = [found["splits"]["test"]["figures"][metric] for found in results]
    base = [baseline(found["splits"]["test"]["figures"], metric) for found in results]
    gains = [(b - a if metric in ERRORS else a - b) for a, b in zip(own, base, strict=True)]
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    winners = Counter(winner(found) for found in results)
    margins = [margin for found in results if (margin := attention_margin(found, metric)) is not None]
    return [
        TABLES[name].about,
        metric,
        ", ".join(f"{who} ({count})" for who, count in winners.most_common()),
        f"{statistics.mean(own):.2f}",
        f"{statistics.mean(base):.2f}",
        f"{statistics.mean(gains):+.2f} ± {error:.2f}",
        f"{statistics.mean(margins):+.2f} ({len(margins)})" if margins else "–",
        f"{max(found['seconds'] for found in results) / 60:.1f}",
    ]


def winner(found: dict[str, Any]) -> str:
    """Name of the model that the run kept."""
    contestants, heats = rows_of(found, "contestants"), rows_of(found, "heats")
    return (contestants or heats or [{"model": "attention"}])[0]["model"]


COLUMNS = ["table", "metric", "kept (runs)", "qkv", "baseline", "gain", "attention's margin (runs)", "minutes, most"]


def written(rows: list[list[Any]], given: argparse.Namespace) -> str:
    """Markdown page of the results."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    return "\n".join(
        [
            "# Defaults on eight tables",
            "",
            "Written by `benchmarks/own_tables.py`. One line each, `qkv train VERB --data TABLE --test TEST`, with",
            f"{given.seeds} seeds, {given.minutes:g} minutes a run on one core, {given.jobs} runs at once.",
            "",
            "*Gain*: over the baseline on the test part, mean and standard error over the seeds, paired; for errors,",
            "the reduction. *Kept*: model that the run kept, the best one on the validation part. *Attention's",
            "margin*: gain of the best contestant with attention over the n-grams alone, on the validation part, in",
            "the runs in which attention won the heats, the short runs that choose between networks. The baseline",
            "is the best of those that the evaluation prints, such as a logistic regression over TF-IDF of n-grams.",
            "",
            *lines,
            "",
        ]
    )


def main() -> None:
    """Run the benchmark and print its table."""
    given = arguments()
    say_where()
    files = {name: write_table(name, given.out, _SMOKE if given.smoke else None) for name in given.tables}
    work = [(name, seed) for seed in range(1, given.seeds + 1) for name in given.tables]
    with ThreadPoolExecutor(given.jobs) as pool:
        results = list(pool.map(lambda each: train(each[0], each[1], files[each[0]], given), work))
    rows = [summary(name, [found for found in results if found["table"] == name]) for name in given.tables]
    print_table("defaults on tables", COLUMNS, rows)
    if given.write:
        given.write.write_text(written(rows, given), encoding="utf-8")


if __name__ == "__main__":
    main()
