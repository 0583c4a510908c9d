"""Tests of the atomic replacement of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qkv.system.files import new_file, write_file


def test_a_file_is_written_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "größer")
    assert path.read_bytes() == "größer".encode()
    write_file(path, b"\x00")
    assert path.read_bytes() == b"\x00"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with new_file(path) as partial:
            partial.write_text("half of the ne")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_permissions_are_those_of_the_old_file_or_of_a_new_one(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "a.txt"
    plain.touch()
    with new_file(path) as partial:
        partial.chmod(0o600)  # as some libraries do
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    write_file(path, "new")
    assert path.stat().st_mode & 0o777 == 0o640
