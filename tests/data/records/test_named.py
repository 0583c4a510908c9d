"""Known tables: where they are looked for, what is said when they are not there, and their published sizes."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import io
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.data.records.cases import ANSWER, CLASSIFY, TAG, TRANSLATE, read, write

from qkv.data.corpora import download as downloading
from qkv.data.corpora import sources
from qkv.data.corpora.named import NAMES, PublishedFile
from qkv.data.records import named
from qkv.data.records.model import Records, Role
from qkv.data.records.named import TABLES, KnownTable
from qkv.system.errors import UserError

REAL = os.environ.get("QKV_DATA", "")
CONTENT = b"Ann\tP\n\nBo\tP\n\n" + b"\n" * 100


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Empty folders for QKV_DATA and QKV_CACHE."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("QKV_DATA", str(data))
    monkeypatch.setenv("QKV_CACHE", str(cache))
    return data, cache


def publish(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    file = PublishedFile("train.conll", url, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(TABLES, "names", KnownTable({"train": (file,), "test": (file,)}, named.conll))


def test_a_known_table_is_read_from_the_data_folder(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, "")
    (places[0] / "names").mkdir()
    write(places[0] / "names" / "train.conll", CONTENT, packed=True)
    records = read("names", TAG)
    assert {name: len(rows) for name, rows in records.splits.items()} == {"train": 1, "validation": 1, "test": 2}
    assert records.name == "names"


def test_own_validation_comes_before_that_of_a_known_table(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "")
    (places[0] / "names").mkdir()
    write(places[0] / "names" / "train.conll", CONTENT)
    records = read("names", TAG, validation=write(tmp_path / "own.conll", "Cy\tP\n"))
    assert records.splits["validation"] == [{"words": ["Cy"], "tags": ["P"]}]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_known_table_is_downloaded_and_unpacked(
    packed: bool, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "https://example.org/train.gz")
    answer = gzip.compress(CONTENT) if packed else CONTENT
    monkeypatch.setattr(downloading.urllib.request, "urlopen", lambda url, timeout: io.BytesIO(answer))
    assert len(read("names", TAG).splits["test"]) == 2
    assert (places[1] / "data" / "names" / "train.conll").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-9], lambda b: b[:12] + b"?" + b[13:], lambda b: b[:3]], ids=["cut", "changed", "begun"]
)
def test_a_damaged_packed_answer_is_refused(
    spoil: Any, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "https://example.org/train.gz")
    answer = spoil(gzip.compress(CONTENT * 3))
    monkeypatch.setattr(downloading.urllib.request, "urlopen", lambda url, timeout: io.BytesIO(answer))
    with pytest.raises(UserError, match="the downloaded file differs from the published one"):
        read("names", TAG)
    assert not places[1].exists()


def test_a_table_that_nobody_publishes_says_where_to_put_its_files(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "")
    data, cache = places
    with pytest.raises(UserError) as caught:
        read("names", TAG)
    assert str(caught.value) == (
        f"data.source: train.conll of 'names' is neither in QKV_DATA ({data}) nor in the cache ({cache / 'data'}), "
        f"and it is not published in this form; put the file at {cache / 'data' / 'names' / 'train.conll'}"
    )


def test_a_known_table_needs_no_format() -> None:
    with pytest.raises(
        UserError, match=r"data\.format: 'sst2' is a named data set of known format; leave the format out"
    ):
        read("sst2", CLASSIFY, format="tsv")


def test_names_are_of_texts_or_of_tables() -> None:
    assert not set(NAMES) & set(TABLES)
    for known in TABLES.values():
        for file in (file for files in known.splits.values() for file in files):
            assert file.url == "" or file.url.startswith("https://raw.githubusercontent.com/")
            assert len(bytes.fromhex(file.sha256)) == 32


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("sst", "data.source: there is no file 'sst' and no known table of that name; did you mean 'sst2'?"),
        (
            "revews.csv",
            "data.source: there is no file 'revews.csv' and no known table of that name; did you mean 'reviews.csv'?",
        ),
        (
            "zzzzzzz",
            "data.source: there is no file 'zzzzzzz' and no known table of that name; known: "
            "fashion-mnist, moving-garments, multi30k-en-de, fsdd, mutag, "
            "proteins, sst2, wnut17, squad, scitldr, etth1, ettm1",
        ),
        ("nowhere/a.csv", "data.source: there is no file 'nowhere/a.csv', and no folder 'nowhere'"),
        (
            "folder",
            "data.source: the folder 'folder' holds no image; name a file, or a folder with one subfolder of images "
            "for each class (extensions: .png, .jpg, .jpeg, .bmp, .gif, .webp, .tif, .tiff, .ppm, .pgm, .pbm, .ico)",
        ),
        ("pipe", "data.source: 'pipe' is not a regular file, and a table is read more than once; name a file"),
        ("reviews.csv | ", "data.source: 'reviews.csv | ' should name two parallel texts, such as 'a.txt | b.txt'"),
        ("a|b|c", "data.source: 'a|b|c' should name two parallel texts, such as 'a.txt | b.txt'"),
        ("reviews.csv | review.csv", "data.source: there is no file 'review.csv'; did you mean 'reviews.csv'?"),
    ],
)
def test_what_cannot_be_a_table_is_refused(
    source: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path / "reviews.csv", "text,label\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        read(source, CLASSIFY)
    assert str(caught.value) == sentence


def test_a_missing_validation_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.csv", "text,label\nx,a\ny,b\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        read("a.csv", CLASSIFY, validation="zzzzz")
    assert str(caught.value) == "data.validation: there is no file 'zzzzz'; no similar name in its folder"


def test_joined_texts_have_no_other_format(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"joins two texts, but the format is 'csv'; leave it out, or name one file"):
        read("a | b", TRANSLATE, format="csv")


SIZES: list[tuple[str, tuple[Role, ...], dict[str, int]]] = [
    ("multi30k-en-de", TRANSLATE, {"train": 29_000, "validation": 1_014, "test": 1_000}),
    ("sst2", CLASSIFY, {"train": 6_920, "validation": 872, "test": 1_821}),
    ("wnut17", TAG, {"train": 3_394, "validation": 1_009, "test": 1_287}),
    ("squad", ANSWER, {"train + validation": 7_938 + 9_885, "test": 10_570}),
    ("scitldr", TRANSLATE, {"train": 1_992, "validation": 619, "test": 618}),
]


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real data, and no network."""
    monkeypatch.setenv("QKV_DATA", REAL)
    monkeypatch.setattr(sources, "download", None)


@cache
def read_real(name: str, roles: tuple[Role, ...]) -> Records:
    """Real data, which the tests below do not change."""
    return read(name, roles)


@pytest.mark.data
@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(("name", "roles", "sizes"), SIZES, ids=[name for name, _, _ in SIZES])
def test_a_known_table_has_its_published_size(name: str, roles: tuple[Role, ...], sizes: dict[str, int]) -> None:
    records = read_real(name, roles)
    found = {split: len(rows) for split, rows in records.splits.items()}
    assert {split: sum(found[part] for part in split.split(" + ")) for split in sizes} == sizes
    assert records.bad == ()
    assert set(records.splits["test"][0]) >= {role.name for role in roles}


@pytest.mark.data
@pytest.mark.usefixtures("real")
def test_multi30k_is_read_in_both_directions() -> None:
    there, back = (
        read("multi30k-en-de", TRANSLATE, columns=columns) for columns in ({}, {"source": "de", "target": "en"})
    )
    assert (
        there.splits["test"][0]["source"]
        == back.splits["test"][0]["target"]
        == "A man in an orange hat starring at something."
    )
    assert there.splits["test"][0]["target"] == back.splits["test"][0]["source"]
    assert there.digest != back.digest


@pytest.mark.data
@pytest.mark.usefixtures("real")
def test_squad_holds_out_whole_articles() -> None:
    records = read_real("squad", ANSWER)
    train, held = ({row["context"] for row in records.splits[split]} for split in ("train", "validation"))
    assert not train & held
    assert 0.09 < len(records.splits["validation"]) / (7_938 + 9_885) < 0.11
    row = records.splits["test"][0]
    assert row["id"] == "5725b33f6a3fe71400b8952d"
    assert all(row["context"].startswith(answer["text"], answer["start"]) for answer in row["answers"])


@pytest.mark.data
@pytest.mark.usefixtures("real")
def test_scitldr_keeps_all_summaries_beside_the_first() -> None:
    records = read_real("scitldr", TRANSLATE)
    assert [sum(len(row["targets"]) for row in records.splits[split]) for split in ("train", "validation", "test")] == [
        1_992,
        1_453,
        1_967,
    ]
    assert all(row["target"] == row["targets"][0] for row in records.splits["test"])


@pytest.mark.parametrize("name", TABLES)
def test_a_known_table_is_read_from_its_files_alone(name: str) -> None:
    known = TABLES[name]
    for split, files in known.splits.items():
        read = known.read if callable(known.read) else known.read[split]
        assert inspect.signature(read).bind(*files).args == files
