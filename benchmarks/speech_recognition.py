"""Benchmark of transcription by CTC: spoken digits in a row, synthetic speech by unheard voices, and pretraining.

    python benchmarks/speech_recognition.py --digits fsdd/recordings.tar.gz --parts digits sentences --write

- digits: strings of three to six recordings of one speaker of the Free Spoken Digit Dataset, joined with short rests;
  training strings are made of its training takes (number 5 and above), test strings of its test takes (0 to 4)
- sentences: commands spoken by espeak-ng, which is found on the path; some voices are heard in the test part only
- pretraining: contrastive pretraining on the training takes without labels, then digits of a tenth of them, beside the
  same model without pretraining, over seeds

Each part trains by the default recipe of ``qkv train`` within ``--minutes``. The word error rate is over all words.
"""

from __future__ import annotations

import argparse
import csv
import io
import random
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.data.records.sounds.sound_files import Sound, read_sound, sound_bytes
from qkv.report.table import print_table
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.sound_tasks import TextSearch
from side_by_side import parser, say_where, with_rows_of, write_table

PARTS = ("digits", "sentences", "pretraining")
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VERBS = ("turn on", "turn off", "open", "close", "dim", "start", "stop", "check")
PLACES = ("kitchen", "garden", "bedroom", "hall", "garage", "office")
THINGS = ("light", "window", "heater", "door", "music", "fan", "alarm", "camera")
HEARD = (
    "en-us",
    "en-gb",
    "en-gb-scotland",
    "en-us+m1",
    "en-us+m3",
    "en-gb+m5",
    "en-us+f1",
    "en-gb+f3",
    "en-gb-x-rp+m4",
)
UNHEARD = ("en-us+m7", "en-gb+f2", "en-us+f4", "en-gb-x-gbclan+m2")
FILE = Path(__file__).parent / "results" / "speech_recognition.md"
PAGE = """# Recognition of speech

Transcription by CTC with the default recipe of `qkv train transcribe`; see `benchmarks/speech_recognition.py`. The word
error is over all words of the test rows; `substituted`, `inserted` and `left out` are its parts, in per cent of these
words. Of the rows with pretraining it is the share of digits that are not recognised.

<!-- table speech recognition: benchmarks/speech_recognition.py -->
<!-- end of table speech recognition -->
"""
TABLE = "speech recognition: benchmarks/speech_recognition.py"
COLUMNS = [
    "data",
    "model",
    "training rows",
    "test rows",
    "parameters",
    "word error %",
    "substituted",
    "inserted",
    "left out",
]
Clip = tuple[str, str, int, Sound]
"""Digit, speaker, take and sound of a recording."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--digits", type=Path, help="recordings.tar.gz of the Free Spoken Digit Dataset")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--rows", type=int, default=2000, help="training rows of a part")
    options.add_argument("--seeds", type=int, default=3, help="seeds of the comparison with pretraining, from 1")
    options.add_argument("--minutes", type=float, default=5.0, help="time budget of a run")
    options.add_argument("--out", type=Path, default=Path("speech"), help="folder of the sounds and runs")
    options.add_argument("--write", action="store_true", help=f"write the table into {FILE.name}")
    given = options.parse_args()
    if given.smoke:
        given.rows, given.seeds, given.digits = 24, 1, None
    return given


def recordings(archive: Path | None) -> list[Clip]:
    """The recordings of the archive; without one, tones in the place of digits."""
    if archive is None:
        return [clip for take in range(8) for clip in _tones(take)]
    clips = list[Clip]()
    with tarfile.open(archive) as file:
        for member in file.getmembers():
            handle = file.extractfile(member) if member.name.endswith(".wav") else None
            if handle is not None:
                digit, speaker, take = Path(member.name).stem.split("_")
                clips.append((NAMES[int(digit)], speaker, int(take), read_sound(handle.read())))
    return clips


def _tones(take: int) -> Iterator[Clip]:
    draw = np.random.default_rng(take)
    for digit, name in enumerate(NAMES):
        wave = 0.5 * np.sin(2 * np.pi * 150 * (digit + 2) * np.arange(1200) / 8000)
        yield name, "nobody", take, Sound((wave + 0.02 * draw.normal(size=1200)).astype(np.float32), 8000)


def strings(clips: Sequence[Clip], count: int, seed: int) -> Iterator[tuple[Sound, str, str]]:
    """Yield (sound, text, speaker) of ``count`` strings of three to six recordings of one speaker."""
    draw, speakers = random.Random(seed), sorted({clip[1] for clip in clips})
    own = {speaker: [clip for clip in clips if clip[1] == speaker] for speaker in speakers}
    for number in range(count):
        speaker = speakers[number % len(speakers)]
        some = draw.choices(own[speaker], k=draw.randint(3, 6))
        pieces = list[np.ndarray]()
        for _, _, _, sound in some:
            pieces += [sound.samples, np.zeros(round(draw.uniform(0.02, 0.2) * sound.rate), np.float32)]
        yield Sound(np.concatenate(pieces), some[0][3].rate), " ".join(clip[0] for clip in some), speaker


def spoken(count: int, voices: Sequence[str], seed: int) -> Iterator[tuple[Sound, str, str]]:
    """Yield (sound, text, voice) of ``count`` commands spoken by espeak-ng."""
    draw = random.Random(seed)
    for number in range(count):
        text = f"{draw.choice(VERBS)} the {draw.choice(PLACES)} {draw.choice(THINGS)}"
        if draw.random() < 0.4:
            text += f" at {draw.choice(NAMES)} {draw.choice(('thirty', 'fifteen', 'ten'))}"
        voice = voices[number % len(voices)]
        tone = ["-s", str(draw.randint(135, 190)), "-p", str(draw.randint(35, 65))]
        done = subprocess.run(["espeak-ng", "-v", voice, *tone, "--stdout", text], capture_output=True, check=True)
        yield read_sound(io.BytesIO(done.stdout).getvalue(), 16_000), text, voice


def written(folder: Path, rows: Iterator[tuple[Sound, str, str]], column: str = "transcript") -> Path:
    """Write sounds and a table of their files, texts and speakers; return the table."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "clips.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", column, "speaker"])
        for number, (sound, text, speaker) in enumerate(rows):
            (folder / f"{number}.wav").write_bytes(sound_bytes(sound))
            table.writerow([f"{number}.wav", text, speaker])
    return folder / "clips.csv"


def transcribed(name: str, given: argparse.Namespace, train: Path, test: Path) -> list[list[str]]:
    """Rows of the table for the default recipe on a training and a test table: greedy, then with n-grams."""
    changes = [f"training.minutes={given.minutes}", "task.search.ngram=6", "task.search.beams=16"]
    if given.smoke:
        changes += ["training.minutes=null", "training.steps=4", "training.validation.every=2", "model.width=24"]
    run = qkv.train(
        str(train), given.out / name / "run", changes, task="transcribe", test=str(test), on_event=lambda event: None
    )
    sizes = [sum(1 for _ in path.open()) - 1 for path in (train, test)]
    rows = list[list[str]]()
    searches = {"greedy": TextSearch(), "16 beams, 6-grams of characters": run.recipe.task.search}
    for how, search in searches.items():
        recipe = run.recipe.changed(task=run.recipe.task.changed(search=search))
        figures = evaluated(run, recipe, test)
        parts = (f"{figures[key]:.2f}" for key in ("wer", "substitutions", "insertions", "deletions"))
        rows.append([name, how, *(f"{size:,}" for size in sizes), f"{parameters(run):,}", *parts])
    return rows


def evaluated(run: Any, recipe: Recipe, test: Path) -> dict[str, float]:
    """Error rates of a run with the settings of a recipe on a table."""
    from qkv.tasks.metrics.speech_metrics import error_rates
    from qkv.tasks.registry import build_task

    with test.open() as file:
        rows = list(csv.DictReader(file))
    task: Any = build_task(recipe.task, recipe.data)
    inputs = [{"sound": str(test.parent / row["file"])} for row in rows]
    answers = task.predict(run.model, run.vocabulary, recipe, inputs)
    return error_rates([row["transcript"] for row in rows], [answer["answer"] for answer in answers])


def parameters(run: Any) -> int:
    """Number of parameters of a run's model."""
    return sum(weight.numel() for weight in run.model.parameters())


def pretrained(given: argparse.Namespace, clips: Sequence[Clip]) -> list[list[str]]:
    """Rows of the table: digits learned from a tenth of the training takes, with and without pretraining."""
    folder, some = (
        given.out / "pretraining",
        [(sound, digit, speaker) for digit, speaker, take, sound in clips if take >= 5],
    )
    rows = {
        "all": some,
        "test": [(sound, digit, speaker) for digit, speaker, take, sound in clips if take < 5],
        "tenth": random.Random(0).sample(some, max(20, len(some) // 10)),
    }
    tables = {name: written(folder / name, iter(each), "label") for name, each in rows.items()}
    quiet: dict[str, Any] = {"on_event": lambda event: None}
    start = qkv.train(pretraining_recipe(tables["all"], given), folder / "start", **quiet)
    result = list[list[str]]()
    for how, begun in (("without pretraining", None), ("after contrastive pretraining", str(folder / "start"))):
        errors = list[float]()
        for seed in range(1, given.seeds + 1):
            recipe = classifier_recipe(tables, given, start.recipe.model.frontend, seed, begun)
            out = folder / f"{'start' if begun else 'none'}-{seed}"
            qkv.train(recipe, out, **quiet)
            figures = qkv.evaluate(out, data=str(tables["test"]))
            errors.append(100 - figures["accuracy"])
        spread = f" ± {np.std(errors, ddof=1):.1f}" if len(errors) > 1 else ""
        sizes = f"{len(rows['tenth']):,}", f"{len(rows['test']):,}"
        result.append(
            ["digits, a tenth", how, *sizes, f"{parameters(start):,}", f"{np.mean(errors):.1f}{spread}", "", "", ""]
        )
    return result


def _body(given: argparse.Namespace) -> dict[str, Any]:
    frontend = {
        "kind": "wave_convolutions",
        "channels": [64] * 6,
        "kernels": [10, 3, 3, 3, 3, 2],
        "strides": [5, 2, 2, 2, 2, 1],
        "near": 16,
        "groups": 8,
        "mask_vector": True,
        "norm": "layer_norm",
    }
    branches = ["attention(4, mask=full)", "feed_forward(256)"]
    width = 16 if given.smoke else 128
    return {"width": width, "frontend": frontend, "num_layers": 2, "blocks": [{"branches": branches, "dropout": 0.1}]}


def pretraining_recipe(table: Path, given: argparse.Namespace) -> Recipe:
    """Recipe of contrastive pretraining on the sounds of a table."""
    head = {"kind": "contrastive", "codes": 64, "code_width": 64, "features": 64, "decay": 0.999}
    steps = 4 if given.smoke else 20_000
    return Recipe.parse(
        {
            "data": {"source": str(table), "processor": "waveform", "batching": "length_buckets"},
            "model": {**_body(given), "head": head},
            "task": {"kind": "contrastive_pretraining", "span": 5, "negatives": 20},
            "training": _training(steps, given, "loss"),
        }
    )


def classifier_recipe(
    tables: dict[str, Path], given: argparse.Namespace, frontend: Any, seed: int, start: str | None
) -> Recipe:
    """Recipe of a classifier of digits on a tenth of the takes, from random weights or from a pretrained run."""
    body = {**_body(given), "frontend": frontend, "head": "classification(pooling=mean)"}
    changes = {} if start is None else {"start": {"kind": "checkpoint", "source": start}}
    return Recipe.parse(
        {
            "data": {"source": str(tables["tenth"]), "processor": "waveform", "batching": "length_buckets"},
            "model": body,
            "task": "classification",
            "training": {**_training(4 if given.smoke else 1200, given, "accuracy"), "seed": seed},
            **changes,
        }
    )


def _training(steps: int, given: argparse.Namespace, best: str) -> dict[str, Any]:
    return {
        "steps": steps,
        "minutes": None if given.smoke else given.minutes / (2 if best == "loss" else 8),
        "batch_size": 32,
        "optimizer": "adamw(lr=1e-3, weight_decay=0.02)",
        "schedule": {"kind": "cosine", "warmup": min(100, steps // 2), "final": 0.01},
        "validation": {"every": max(2, steps // 20), "best": best},
    }


def main() -> None:
    """Run the benchmark and print its table."""
    given = arguments()
    say_where("jiwer")
    rows, clips = list[list[str]](), recordings(given.digits)
    if "digits" in given.parts:
        parts = [[clip for clip in clips if (clip[2] >= 5) == training] for training in (True, False)]
        folder = given.out / "digits"
        train = written(folder / "train", strings(parts[0], given.rows, 0))
        test = written(folder / "test", strings(parts[1], max(8, given.rows // 6), 1))
        rows += transcribed("digits", given, train, test)
    if "sentences" in given.parts and shutil.which("espeak-ng") is None:
        print("left out: sentences (espeak-ng is not installed)")
    elif "sentences" in given.parts:
        folder = given.out / "sentences"
        train = written(folder / "train", spoken(given.rows, HEARD, 0))
        test = written(folder / "test", spoken(max(8, given.rows // 8), UNHEARD, 1))
        rows += transcribed("sentences", given, train, test)
    if "pretraining" in given.parts:
        rows += pretrained(given, clips)
    print_table("recognition of speech", COLUMNS, rows)
    if given.write:
        if not FILE.exists():
            FILE.write_text(PAGE, encoding="utf-8")
        write_table(FILE, TABLE, COLUMNS, with_rows_of(FILE, TABLE, rows, 2))


if __name__ == "__main__":
    main()
