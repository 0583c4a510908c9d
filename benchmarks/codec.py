"""Benchmark of neural codecs and speech on spoken digits: bit rates by quantizer, and digits that the model says.

    python benchmarks/codec.py --data fsdd/recordings.tar.gz
    python benchmarks/codec.py --data fsdd/recordings.tar.gz --write benchmarks/results/codec.md --page digits.html

Two codecs of one network, with finite scalar and with residual vector quantisation, learn takes 5 to 29 of the Free
Spoken Digit Dataset (six speakers, 8 kHz) for equally many minutes, and code takes 0 to 4 with the first codebooks: at
three bit rates, SI-SDR, mel distance, and the use of the codes. Then a model learns to say the digits in six voices as
codes of the scalar codec, and a classifier that hears recordings only names the digits of recordings, of decoded
recordings and of speech. Runs are kept in ``--runs``, and resumed.
"""

from __future__ import annotations

import argparse
import csv
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.data.processors.codec import Codec
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import read_sound, sound_bytes
from qkv.report.page import Page
from qkv.report.sections import add_sections
from qkv.report.table import print_table
from qkv.runs.run import Run
from qkv.runs.sound.speech import Speaker
from qkv.system.processor import processor_name
from qkv.tasks.images.autoencoding import usage
from qkv.tasks.sound.coding import player
from qkv.tasks.sound.wave_distances import distortion_ratios, mel_distances
from side_by_side import parser, say_where, with_rows_of, write_table

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
QUANTIZERS: dict[str, dict[str, Any]] = {
    "scalar": {"kind": "scalar", "codebooks": 8},
    "residual": {"kind": "residual", "codebooks": 8, "codes": 1024},
}
CODEBOOKS = (2, 4, 8)
CODEC_COLUMNS = ("quantizer", "codebooks", "bit/s", "SI-SDR, dB", "mel distance", "codes used, %", "perplexity", "date")
DIGIT_COLUMNS = ("digits heard by the classifier", "clips", "named right, %", "date")


class Clips(NamedTuple):
    """Tables of the clips to train on and of those to test with: columns sound, text and voice."""

    train: Path
    test: Path

    def rows(self, table: Path) -> list[dict[str, str]]:
        """Rows of a table."""
        with table.open(newline="") as file:
            return list(csv.DictReader(file))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--data", type=Path, help="recordings.tar.gz of the Free Spoken Digit Dataset")
    options.add_argument("--minutes", type=float, default=3.0, help="minutes of training of each model")
    options.add_argument("--runs", type=Path, help="folder of the runs; default: a temporary one")
    options.add_argument("--only", nargs="+", choices=("codecs", "speech"), default=["codecs", "speech"])
    options.add_argument("--page", type=Path, help="page to listen to, which is written")
    options.add_argument("--write", type=Path, help="page whose tables the figures are written to")
    return options.parse_args()


def recordings(source: Path, folder: Path) -> Clips:
    """Unpack the recordings, named digit_speaker_take.wav; takes 0 to 4 are the test split, as published."""
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    parts: dict[str, list[list[str]]] = {"train": [], "test": []}
    for path in sorted(folder.rglob("*.wav")):
        digit, voice, take = path.stem.split("_")
        parts["test" if int(take) < 5 else "train"].append([str(path), DIGITS[int(digit)], voice])
    return tables(folder, parts)


def tones(folder: Path) -> Clips:
    """Tones in place of digits, to check that the script runs."""
    rng, parts = np.random.default_rng(0), {"train": list[list[str]](), "test": list[list[str]]()}
    for number in range(60):
        digit, path = number % 3, folder / f"{number}.wav"
        steps = np.arange(int(rng.integers(800, 1200))) / 4000
        samples = 0.4 * np.sin(2 * np.pi * (200 + 300 * digit) * steps)
        path.write_bytes(sound_bytes(Sound(samples.astype(np.float32), 4000)))
        parts["test" if number % 5 == 0 else "train"].append(
            [str(path), DIGITS[digit], ("ann", "bob")[number // 3 % 2]]
        )
    return tables(folder, parts)


def tables(folder: Path, parts: dict[str, list[list[str]]]) -> Clips:
    """Write the tables of the splits."""
    for name, rows in parts.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["sound", "text", "voice"], *rows])
    return Clips(folder / "train.csv", folder / "test.csv")


def trained(kind: str, clips: Clips, out: Path, changes: Sequence[str], asked: argparse.Namespace, **data: Any) -> Run:
    """Train the recipe that is chosen for a task, or resume its run."""
    budget = ["training.steps=4", "training.validation.every=2"] if asked.smoke else []
    minutes = "null" if asked.smoke else asked.minutes
    data = {"source": str(clips.train), "test": str(clips.test), **data}
    changes = [*changes, f"training.minutes={minutes}", *budget]
    recipe = automatic_task(kind, data, changes)
    return qkv.train(recipe.changed(candidates={}), out)


def codec_rows(name: str, run: Run, clips: Clips, when: str) -> Iterator[list[str]]:
    """Code the test clips at each bit rate; yield the rows of the table."""
    codec = Codec.read(str(run.folder))
    sounds = [codec.processor.encode(row["sound"]) for row in clips.rows(clips.test)]
    size = codec.head.part.quantizer.codes_each
    for books in CODEBOOKS:
        codes = codec.codes(sounds, books)
        ratios, distances = errors(codec, sounds, codec.decoded(codes))
        counts = [np.bincount(column, minlength=size) for column in np.concatenate(codes).T]
        used = [usage(each) for each in counts]
        means = [np.mean([each[key] for each in used]) for key in ("codes_used", "code_perplexity")]
        bits = books * codec.bits_per_second
        figures = (f"{np.nanmean(ratios):.2f}", f"{np.mean(distances):.3f}", f"{means[0]:.1f}", f"{means[1]:.0f}")
        yield [name, str(books), f"{bits:,.0f}", *figures, when]


def errors(
    codec: Codec, sounds: Sequence[np.ndarray], decoded: Sequence[np.ndarray]
) -> tuple[list[float], list[float]]:
    """SI-SDR and mel distance of each sound."""
    ratios, distances = list[float](), list[float]()
    for sound, wave in zip(sounds, decoded, strict=True):
        y, x = torch.from_numpy(wave[: len(sound)])[None], torch.from_numpy(sound)[None]
        ratios.append(distortion_ratios(y, x).item())
        distances.append(mel_distances(y, x, codec.rate).item())
    return ratios, distances


def spoken(run: Run, clips: Clips, seeds: int) -> list[tuple[str, str, Sound]]:
    """Every word in every voice, with several seeds: (word, voice, sound)."""
    speaker = Speaker(run)
    words = sorted({row["text"] for row in clips.rows(clips.test)}, key=DIGITS.index)
    return [
        (word, voice, speaker.say(word, voice, speaker.settings(seed=seed)))
        for seed in range(seeds)
        for voice in speaker.voices
        for word in words
    ]


def right(classifier: Run, sounds: Sequence[tuple[str, Sound]]) -> float:
    """Share of the sounds whose word the classifier names, in per cent."""
    answers = qkv.predict(classifier, [{"sound": (sound.samples, sound.rate)} for _, sound in sounds])
    hits = [answer["answer"] == word for (word, _), answer in zip(sounds, answers, strict=True)]
    return 100 * float(np.mean(hits))


def digit_rows(asked: argparse.Namespace, clips: Clips, runs: Path, when: str) -> list[list[str]]:
    """Train the speaker and the classifier; return the rows of the table, and write the page to listen to."""
    speech = trained("speech", clips, runs / "speech", [f"data.processor.run={runs / 'scalar'}"], asked)
    columns = {"sound": "sound", "label": "text"}
    classifier = trained("classification", clips, runs / "classifier", [], asked, columns=columns)
    codec = Codec.read(str(runs / "scalar"))
    rows = clips.rows(clips.test)
    recorded = [(row["text"], read_sound(row["sound"], codec.rate)) for row in rows]
    coded = {
        f"recordings, decoded from {books} codebooks": [
            (word, Sound(wave[: len(sound.samples)], codec.rate))
            for (word, sound), wave in zip(
                recorded, codec.decoded(codec.codes([sound.samples for _, sound in recorded], books)), strict=True
            )
        ]
        for books in CODEBOOKS
    }
    said = spoken(speech, clips, 1 if asked.smoke else 5)
    groups = {"recordings": recorded, **coded, "said by the model": [(word, sound) for word, _, sound in said]}
    if asked.page:
        listen(asked.page, said)
    return [[name, str(len(sounds)), f"{right(classifier, sounds):.1f}", when] for name, sounds in groups.items()]


def listen(file: Path, said: Sequence[tuple[str, str, Sound]]) -> None:
    """Write a page with the words of the first seed, one row a word, one column a voice."""
    voices = list(dict.fromkeys(voice for _, voice, _ in said))
    words = list(dict.fromkeys(word for word, _, _ in said))
    first = {(word, voice): sound for word, voice, sound in reversed(said)}
    sounds = [
        player(torch.from_numpy(first[word, voice].samples), first[word, voice].rate, f"{word}: {voice}")
        for word in words
        for voice in voices
    ]
    page = Page("Digits that the model says")
    add_sections(page, [{"kind": "sounds", "title": "One voice a column", "sounds": sounds, "columns": len(voices)}])
    file.write_text(page.html(), encoding="utf-8")


def main() -> None:
    """Train, measure, and write the tables."""
    asked = arguments()
    say_where("soundfile")
    if asked.data is None and not asked.smoke:
        raise SystemExit("give the recordings with --data, or --smoke")
    when = f"{datetime.now(UTC):%Y-%m-%d}, {processor_name()}"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        runs = asked.runs or folder / "runs"
        clips = tones(folder) if asked.data is None else recordings(asked.data, runs / "recordings")
        if "codecs" in asked.only:
            rows = []
            for name, part in QUANTIZERS.items():
                changes = [f"model.head.quantizer={part}"]
                rows += codec_rows(name, trained("autoencoding", clips, runs / name, changes, asked), clips, when)
            print_table("\ncodecs", CODEC_COLUMNS, rows)
            tell(asked, "codecs: benchmarks/codec.py", CODEC_COLUMNS, rows, 2)
        if "speech" in asked.only:
            rows = digit_rows(asked, clips, runs, when)
            print_table("\ndigits", DIGIT_COLUMNS, rows)
            tell(asked, "digits: benchmarks/codec.py", DIGIT_COLUMNS, rows, 1)


def tell(asked: argparse.Namespace, name: str, columns: Sequence[str], rows: list[list[str]], keys: int) -> None:
    """Write a table, if a page is named."""
    if asked.write:
        write_table(asked.write, name, columns, with_rows_of(asked.write, name, rows, keys))


if __name__ == "__main__":
    main()
