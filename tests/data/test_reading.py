"""Each file of data is read once while a command runs, and each photo decoded once, with a race of models and without.

The files are counted where they are opened, below everything of the package.
"""

from __future__ import annotations

import builtins
import io
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

import qkv
from qkv.cli.main import main
from qkv.costs.measuring.machine import Machine, store_machine
from qkv.data import reading
from qkv.data.corpora.corpus import open_corpus
from qkv.data.corpora.text import TextSource
from qkv.data.processors.images import ImageProcessor
from qkv.data.reading import cached, identity_of, latest, one_reading, read_once, release
from qkv.spec.data import Data
from qkv.spec.files.yaml_io import write_spec
from qkv.spec.recipe import Recipe
from qkv.spec.signals.images import Images
from qkv.system.errors import UserError
from qkv.system.processor import processor_name
from qkv.training.loop import train
from qkv.training.watch.events import Event

RACE = {"slow": {"training.optimizer.lr": 1e-6}, "quick": {"training.optimizer.lr": 0.01}}
SHORT = ("training.steps=1", "training.minutes=null", "training.validation.batches=1", "training.batch_size=4")
SHAPES = {
    "text": ["text(20)", "next_token", "attention(2)"],
    "table": ["word_list", "classification", "attention(2, mask=full)"],
}


@pytest.fixture(autouse=True, scope="module")
def _machine(cache_folder: Path) -> None:
    store_machine(Machine(processor_name(), {"fp32": 4e11}, bandwidth=4e10, call=1e-5))


class _Counted(io.FileIO):
    """File that counts the bytes that are read of it."""

    def __init__(self, path: str, counts: Counter[str]):
        super().__init__(path)
        self.path, self.counts = path, counts

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer) or 0
        self.counts[self.path] += size
        return size

    def readall(self) -> bytes:
        found = super().readall()
        self.counts[self.path] += len(found)
        return found


@pytest.fixture
def count_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Counter[str]]:
    """Function that starts counting how often all bytes of the files at and below a path are read."""

    def start(place: Path) -> Counter[str]:
        counts, opened = Counter[str](), io.open

        def counting(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            path = os.path.realpath(file) if isinstance(file, (str, Path)) else ""
            if "w" in mode or "x" in mode or "a" in mode or not path.startswith(str(place.resolve())):
                return opened(file, mode, *args, **kwargs)
            buffered = io.BufferedReader(_Counted(path, counts))
            return buffered if "b" in mode else io.TextIOWrapper(buffered, kwargs.get("encoding") or "utf-8")

        monkeypatch.setattr(io, "open", counting)
        monkeypatch.setattr(builtins, "open", counting)
        return counts

    return start


def reads(counts: Counter[str]) -> dict[str, float]:
    """How often each file was read in full, on average over its bytes."""
    return {Path(path).name: count / Path(path).stat().st_size for path, count in counts.items()}


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each image file that Pillow decodes."""
    found, load = list[None](), ImageFile.ImageFile.load

    def counted(image: Any) -> Any:
        if image.tile:
            found.append(None)
        return load(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", counted)
    return found


def text_file(folder: Path) -> Path:
    path = folder / "story.txt"
    path.write_text("".join(f"{number} men went to mow the meadow, and a dog.\n" for number in range(600)))
    return path


def table_file(folder: Path) -> Path:
    path = folder / "reviews.csv"
    rows = [f"{'good' if i % 2 else 'bad'} film number {i},{'up' if i % 2 else 'down'}\n" for i in range(400)]
    path.write_text("text,label\n" + "".join(rows))
    return path


def photos(folder: Path, each: int = 12) -> Path:
    draw = np.random.default_rng(0)
    for shade, name in enumerate(("dark", "light")):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(each):
            pixels = draw.integers(0, 100, (12, 12, 3)) + 120 * shade
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "photos" / name / f"{name}{number}.png")
    return folder / "photos"


def recipe_on(source: Path, kind: str, race: bool) -> Recipe:
    tokenizer, task, branch = SHAPES[kind]
    model = {"width": 8, "context_length": 12, "blocks": [{"branches": [branch]}]}
    fields: dict[str, Any] = {
        "data": {"source": str(source), "tokenizer": "characters" if kind == "text" else tokenizer},
        "model": {**model, "head": "classification"} if kind == "table" else model,
        "training": {"steps": 2, "batch_size": 4, "validation": {"every": 1, "batches": 1, "best": "loss"}},
        "candidates": RACE if race else {},
    }
    return Recipe.parse({**fields, "task": {"kind": task}} if kind == "table" else fields)


def ignore(event: Event) -> None:
    """Handler of events that does nothing."""


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize(("kind", "make"), [("text", text_file), ("table", table_file)])
def test_a_recipe_reads_its_file_once(
    kind: str, make: Callable[[Path], Path], race: bool, tmp_path: Path, count_reads: Callable[[Path], Counter[str]]
) -> None:
    source = make(tmp_path)
    recipe = recipe_on(source, kind, race)
    counts = count_reads(source)
    run = train(recipe, tmp_path / "run", on_event=ignore)
    assert (tmp_path / "run" / "heats").exists() == race
    assert run.evaluation is not None or kind == "text"
    assert reads(counts) == {source.name: 1}


@pytest.mark.parametrize("door", ["command", "python"])
@pytest.mark.parametrize(("kind", "make"), [("text", text_file), ("table", table_file)])
def test_each_door_reads_its_file_once(
    door: str,
    kind: str,
    make: Callable[[Path], Path],
    tmp_path: Path,
    count_reads: Callable[[Path], Counter[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = make(tmp_path)
    write_spec(tmp_path / "recipe.yaml", recipe_on(source, kind, True))
    counts = count_reads(source)
    if door == "command":
        assert main(["train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run")]) == 0
    else:
        qkv.train(tmp_path / "recipe.yaml", out=tmp_path / "run", on_event=ignore)
    assert reads(counts) == {source.name: 1}


def test_a_series_is_read_once(tmp_path: Path, count_reads: Callable[[Path], Counter[str]]) -> None:
    source = tmp_path / "sales.csv"
    hours = np.arange(400)
    values = np.sin(hours / 4) + hours / 100
    days = np.datetime64("2024-01-01") + hours
    source.write_text("day,sold\n" + "".join(f"{day},{value:.3f}\n" for day, value in zip(days, values, strict=True)))
    counts = count_reads(source)
    short = [*SHORT, "model.width=16"]
    qkv.train(str(source), task="forecast", overrides=short, out=tmp_path / "run", on_event=ignore, horizon=3)
    assert reads(counts) == {"sales.csv": 1}


def test_photos_of_a_race_are_read_and_decoded_once(
    tmp_path: Path, count_reads: Callable[[Path], Counter[str]], decodes: list[None], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = photos(tmp_path)
    counts = count_reads(folder)
    typed = ["train", "classify", "--data", str(folder), "--out", str(tmp_path / "run"), *SHORT]
    assert main(typed) == 0
    assert len(list((tmp_path / "run" / "heats").iterdir())) == 4  # three models and their results
    evaluation = qkv.load(tmp_path / "run").evaluation
    assert evaluation is not None
    sections = evaluation["splits"]["validation"]["sections"]
    shown = sum(len(section["pictures"]) for section in sections if section["kind"] == "pictures")
    assert 0 < shown <= 8
    assert len(decodes) == 24 + shown  # the report shows a few larger than the model reads them
    assert sorted(reads(counts).values())[: 24 - shown] == [1] * (24 - shown)
    assert sum(reads(counts).values()) == 24 + shown


def test_pixels_in_one_file_are_read_once(tmp_path: Path, count_reads: Callable[[Path], Counter[str]]) -> None:
    source, draw = tmp_path / "digits.npz", np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = (draw.integers(0, 100, (40, 8, 8, 1)) + 120 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(source, images=images, label=labels)
    counts = count_reads(source)
    qkv.train(str(source), task="classify", overrides=SHORT, out=tmp_path / "run", on_event=ignore)
    assert reads(counts) == {"digits.npz": 1}


def test_encoded_photos_of_other_settings_replace_those_before(tmp_path: Path, decodes: list[None]) -> None:
    file = str(next((photos(tmp_path) / "dark").iterdir()))
    spec = Images(height=4, width=4, channels=3, mean=(0.5,) * 3, deviation=(0.5,) * 3)
    with one_reading():
        small = ImageProcessor(spec).read(file)
        assert ImageProcessor(spec.changed(mean=(0.1,) * 3)).read(file) is small
        assert ImageProcessor(spec.changed(height=8)).read(file).shape == (3, 8, 4)
        assert len(decodes) == 2
        again = ImageProcessor(spec).read(file)
        assert again is not small  # the memory holds pixels of one size
        np.testing.assert_array_equal(again, small)
    ImageProcessor(spec).read(file)
    assert len(decodes) == 4


def test_a_photo_that_changes_is_decoded_again(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    read = ImageProcessor(Images(height=2, width=2, channels=1, mean=(0.5,), deviation=(0.5,))).read
    with one_reading():
        Image.new("L", (2, 2), 10).save(file)
        assert (read(str(file)) == 10).all()
        Image.new("L", (2, 3), 200).save(file)
        assert (read(str(file)) == 200).all()


def test_files_beyond_the_bound_are_read_again_and_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_reads: Callable[[Path], Counter[str]]
) -> None:
    source = text_file(tmp_path)
    monkeypatch.setattr(reading, "HELD", source.stat().st_size - 1)
    plain = open_corpus(Data(source=str(source)))
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    counts = count_reads(source)
    with one_reading():
        corpus = open_corpus(Data(source=str(source)))
        current = reading.current()
        assert current is not None
        assert not current.contents
    assert reads(counts) == {source.name: pytest.approx(3, abs=0.11)}  # content, tokenizer, ids
    for split in ("train", "validation"):
        np.testing.assert_array_equal(corpus.splits[split].ids, plain.splits[split].ids)


def test_contents_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "HELD", 1000)
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("x" * 300)
    with one_reading():
        found = reading.current()
        assert found is not None
        for number in (0, 1, 2, 3, 4, 0):
            assert TextSource.of_file(tmp_path / f"{number}.txt").characters() == 300
        assert sum(map(len, found.contents.values())) == 900
        release()
        assert not found.contents


def test_a_thread_of_another_library_reads_what_is_held(
    tmp_path: Path, count_reads: Callable[[Path], Counter[str]]
) -> None:
    source = text_file(tmp_path)
    counts, lengths = count_reads(source), list[int]()
    with one_reading():
        text = TextSource.of_file(source)
        digest = text.digest()
        thread = threading.Thread(target=lambda: lengths.append(sum(map(len, text.blocks()))))
        thread.start()
        thread.join()
        assert digest == text.digest()
    assert lengths == [source.stat().st_size]
    assert reads(counts) == {source.name: 1}


def test_the_number_of_characters_is_that_of_the_blocks(tmp_path: Path) -> None:
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "ä\n€\ufeff".encode())
    with one_reading():
        text = TextSource.of_file(path)
        assert text.characters() == len("".join(text.blocks())) == 4
        path.write_bytes(b"fine\nbroken \xff\n")
        with pytest.raises(UserError, match=r"byte 0xff at offset 12 \(line 2\)"):
            TextSource.of_file(path).characters()


def test_results_are_kept_only_inside_and_until_released() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    assert [cached("x", make), cached("x", make)] == [0, 1]
    with one_reading():
        assert cached("x", make) == 2
        with one_reading():
            assert cached("x", make) == 2
        assert cached("x", make) == 2
        release()
        assert cached("x", make) == 3
    assert cached("x", make) == 4


def test_the_latest_result_of_a_name_is_kept() -> None:
    found: list[str] = []

    @read_once(lambda name: name)
    def read(name: str) -> str:
        found.append(name)
        return name

    read("a")
    read("a")
    with one_reading():
        for name in ("a", "a", "b", "b", "a"):
            assert read(name) == name
        release()
        assert read("a") == "a"
        assert latest("another", "a", lambda: "own") == "own"
    assert found == ["a", "a", "a", "b", "a"]


def test_identities_change_with_the_content(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    pair = f"{tmp_path}/a | {tmp_path}/b"
    before = identity_of(tmp_path), identity_of(pair), identity_of(tmp_path / "a")
    assert before == (identity_of(tmp_path), identity_of(pair), identity_of(tmp_path / "a"))
    (tmp_path / "b").write_text("longer")
    after = identity_of(tmp_path), identity_of(pair), identity_of(tmp_path / "a")
    assert [one == two for one, two in zip(before, after, strict=True)] == [False, False, True]
    assert identity_of("fashion-mnist") == "fashion-mnist"
    assert identity_of("data:image/png;base64," + "A" * 5000)  # longer than a file name may be
