"""Reading text: any cut of the blocks, gzip, what is not UTF-8 and where."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.corpora import text as module
from qkv.data.corpora.text import TextSource
from qkv.system.errors import UserError

SAMPLE = "Zwölf\r\nBoxkämpfer — 漢字 👍🏽\x00\n\n" * 5


@given(content=st.text(max_size=50), block=st.integers(1, 7), start=st.integers(0, 20), length=st.integers(0, 40))
def test_blocks_of_any_size_join_to_the_text(content: str, block: int, start: int, length: int) -> None:
    content = content.lstrip("\ufeff")
    text = TextSource.of_string(content, "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        assert "".join(text.blocks()) == content
        assert "".join(text.blocks(start, start + length)) == content[start : start + length]
        assert "".join(text.blocks(start)) == content[start:]
        assert all(text.blocks(start, start + length))
        assert text.characters() == len(content)
        assert text.digest() == hashlib.sha256(content.encode()).hexdigest()


def test_gzip_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.gz", tmp_path / "packed.txt"
    plain.write_bytes(SAMPLE.encode())
    packed.write_bytes(gzip.compress(SAMPLE.encode()))
    for path in (plain, packed):
        assert "".join(TextSource.of_file(path).blocks()) == SAMPLE
    assert TextSource.of_file(plain).digest() == TextSource.of_file(packed).digest()


def test_a_byte_order_mark_is_dropped_at_the_beginning_only() -> None:
    text = TextSource.of_string("\ufeffa\ufeffb", "x")
    assert "".join(text.blocks()) == "a\ufeffb"
    assert text.characters() == 3


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("block", [7, 1 << 18])
def test_other_encodings_of_spreadsheets_are_read(
    encoding: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    content = "name\tvalue\r\nGröße \U0001f600\t1\r\n"
    for name, data in (("plain", content.encode(encoding)), ("packed", gzip.compress(content.encode(encoding)))):
        (tmp_path / name).write_bytes(data)
        text = TextSource.of_file(tmp_path / name)
        assert "".join(text.blocks()) == content
        assert text.digest() == TextSource.of_file(tmp_path / name).digest()


def test_damaged_utf16_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes("ab".encode("utf-16") + b"\x00\xdc")
    with pytest.raises(UserError, match="x is not UTF-16 text: illegal encoding"):
        TextSource.of_file(tmp_path / "x").characters()


@pytest.mark.parametrize("block", [3, 1 << 18])
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"ab\ncd\xff", "byte 0xff at offset 5 (line 2): invalid start byte"),
        ("ö\n\n\n".encode() + b"\x80x", "byte 0x80 at offset 5 (line 4): invalid start byte"),
        (b"good \xe6\xbc", "byte 0xe6 at offset 5 (line 1): unexpected end of data"),
        (b"ok\n\xed\xa0\x80", "byte 0xed at offset 3 (line 2): invalid continuation byte"),
        (b"\xff\xfd", "byte 0xff at offset 0 (line 1): invalid start byte"),
    ],
)
def test_what_is_not_utf8_is_refused_with_its_place(
    content: bytes, sentence: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    for name, data in (("plain", content), ("packed", gzip.compress(content))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError) as caught:
            TextSource.of_file(tmp_path / name).characters()
        assert str(caught.value) == f"{tmp_path / name} is not UTF-8 text: {sentence}; convert the file to UTF-8"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:40] + b"\0\0\0" + data[43:], lambda data: data[:2]]
)
def test_a_damaged_gzip_file_is_refused(damage: object, tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(damage(gzip.compress(SAMPLE.encode() * 50)))  # type: ignore[operator]
    with pytest.raises(UserError, match=r"x\.gz is a damaged gzip file: "):
        TextSource.of_file(path).characters()


def test_a_file_that_went_away_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.txt cannot be read: No such file or directory"):
        TextSource.of_file(tmp_path / "gone.txt").characters()


def test_a_file_is_closed_when_reading_stops_early(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(SAMPLE.encode())
    opened = []

    def remembered() -> object:
        opened.append(path.open("rb"))
        return opened[-1]

    assert next(TextSource("x", remembered).blocks(0, 3)) == SAMPLE[:3]  # type: ignore[arg-type]
    assert [file.closed for file in opened] == [True]
