"""Folders of pictures as they are found: splits, classes, and what programs and archives leave beside them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.data.records.cases import LABEL

from qkv.data.records.folders.layout import is_litter, split_named
from qkv.data.records.images.clips import holds_clips
from qkv.data.records.model import Records
from qkv.data.records.open import open_records
from qkv.spec.data import Data
from qkv.spec.signals.images import Images
from qkv.system.errors import UserError

ROLES = (Images.role, LABEL)
CLASSES = ("round", "square", "with space")
NAMES = [
    {"train": "train", "validation": "valid", "test": "test"},
    {"train": "Train", "validation": "Val", "test": "Test"},
    {"train": "training", "validation": "validation", "test": "testing"},
    {"train": "TRAINING_SET", "validation": "DEV_SET", "test": "TEST_SET"},
    {"train": "seg_train", "validation": "seg_val", "test": "seg_test"},
    {"train": "trainset", "validation": "valset", "test": "testset"},
    {"train": "train-images", "validation": "dev-images", "test": "test images"},
]
LITTER = {
    "models/stage1.pth": b"weights",
    "__MACOSX/photos/._round0.png": b"x",
    "__MACOSX/photos/train/round/._round0.png": b"x",
    ".ipynb_checkpoints/round0-checkpoint.png": b"x",
    "train/.ipynb_checkpoints/x.png": b"x",
    "Thumbs.db": b"x",
    "@eaDir/round0.jpg/SYNOPHOTO_THUMB_M.jpg": b"x",
    ".DS_Store": b"x",
    "desktop.ini": b"[x]",
    "._cover.jpg": b"x",
    "labels/readme.txt": b"x",
    "empty/": b"",
    "annotations.csv": b"a,b\n",
}


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("picture") / "x.png"
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(path)
    return path


def fill(folder: Path, picture: Path, classes: tuple[str, ...] = CLASSES, each: int = 3, name: str = "{}{}") -> None:
    for kind in classes:
        (folder / kind).mkdir(parents=True)
        for i in range(each):
            shutil.copyfile(picture, folder / kind / f"{name.format(kind, i)}.png")


def litter(folder: Path, found: dict[str, bytes]) -> None:
    for name, content in found.items():
        place = folder / name
        (place if name.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if content:
            place.write_bytes(content)


def read(folder: Path) -> Records:
    assert not holds_clips(folder)
    return open_records(Data(source=str(folder)), ROLES)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_splits_and_classes_whatever_lies_beside_them(
    data: st.DataObject, picture: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("drawn") / "photos"
    names = data.draw(st.sampled_from(NAMES))
    splits = ("train", *data.draw(st.lists(st.sampled_from(["validation", "test"]), min_size=1, unique=True)))
    wrapper, doubled = data.draw(st.sampled_from(["", "photos", "archive (1)"])), data.draw(st.booleans())
    inside = folder / wrapper
    for split in splits:
        fill(inside / names[split] / (names[split] if doubled else ""), picture, each=random.randint(2, 4))
    if data.draw(st.booleans()):
        (inside / "seg_pred").mkdir()
        shutil.copyfile(picture, inside / "seg_pred" / "1.png")
    left = data.draw(st.lists(st.sampled_from(list(LITTER)), unique=True))
    litter(folder, {name: LITTER[name] for name in left if not name.startswith("train/")})
    litter(inside / names["train"], {name: LITTER[name] for name in left if name != "train/"})
    records = read(folder)
    assert records.splits.keys() == {"train", "validation", *splits}
    for split in splits:
        assert {row["label"] for row in records.splits[split]} == set(CLASSES)
    assert not records.bad
    notes = " ".join(records.notes)
    empty = any(name.startswith(("models/", "__MACOSX", "empty", "labels", "@")) for name in left)
    assert any("ignored" in note and "no image" in note for note in records.notes) == empty
    assert ("'seg_pred' of" in notes) == (inside / "seg_pred").exists()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_classes_whatever_lies_beside_them(
    data: st.DataObject, picture: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("drawn") / "photos"
    classes = tuple(data.draw(st.lists(st.sampled_from([*CLASSES, "train", "7", "Model"]), min_size=2, unique=True)))
    fill(folder / data.draw(st.sampled_from(["", "photos"])), picture, classes)
    left = data.draw(st.lists(st.sampled_from([name for name in LITTER if "train" not in name]), unique=True))
    litter(folder, {name: LITTER[name] for name in left})
    rows = [row for part in read(folder).splits.values() for row in part]
    assert {row["label"] for row in rows} == set(classes)
    assert len(rows) == 3 * len(classes)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", ("train", ())),
        ("Test Images", ("test", ())),
        ("cats_val", ("validation", ("cats",))),
        ("trainer", None),
        ("models", None),
        ("contest", None),
        ("train_test", None),
        ("development", ("validation", ())),
    ],
)
def test_names_of_splits(name: str, split: tuple[str, tuple[str, ...]] | None) -> None:
    assert split_named(name) == split


def test_names_of_litter() -> None:
    assert all(map(is_litter, (".DS_Store", "__MACOSX", "THUMBS.DB", "._x.jpg", "@eaDir")))
    assert not any(map(is_litter, ("models", "thumbs", "x.jpg", "_round")))


def test_two_folders_of_one_split_are_refused(tmp_path: Path, picture: Path) -> None:
    for split in ("train", "val", "valid"):
        fill(tmp_path / split, picture)
    with pytest.raises(UserError, match="has two folders for the validation split, val and valid; keep one of them"):
        read(tmp_path)


def test_a_split_without_labels_is_left_aside(tmp_path: Path, picture: Path) -> None:
    fill(tmp_path / "train", picture, each=8)
    fill(tmp_path, picture, ("test",))
    records = read(tmp_path)
    assert "test" not in records.splits
    assert f"the images of {tmp_path / 'test'} are in no subfolder of a class and are ignored" in records.notes


@pytest.mark.parametrize("classes", [("cat", "dog"), ("0", "1")])
@pytest.mark.parametrize("name", ["{}_{}", "img{1}"])
def test_numbered_pictures_are_no_films(classes: tuple[str, ...], name: str, tmp_path: Path, picture: Path) -> None:
    """Folders of kinds in folders of groups look like the clips of classes but for their names and pictures."""
    for group in ("a", "b"):
        fill(tmp_path / group, picture, classes, 4, name)
    for i, path in enumerate(sorted(tmp_path.rglob("*.png"))):  # no two neighbours are alike
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (4, 4), np.uint8)).save(path)
    records = read(tmp_path)
    assert {row["label"] for row in records.splits["train"]} == {"a", "b"}
    assert any("data.processor=video reads clips" in note for note in records.notes)


@pytest.mark.parametrize("shape", ["names", "pictures"])
def test_frames_are_films_where_names_or_pictures_say_so(shape: str, tmp_path: Path) -> None:
    for kind in ("left", "right"):
        for clip in range(2):
            folder = tmp_path / kind / (f"clip{clip}" if shape == "names" else "ab"[clip])
            folder.mkdir(parents=True)
            for i in range(4):
                drawn = np.full((8, 8), 90 * (2 * clip + (kind == "left")) % 256, np.uint8)
                drawn[i, i] = 255
                Image.fromarray(drawn).save(folder / f"{'frame' if shape == 'names' else kind}{i}.png")
    assert holds_clips(tmp_path)
