"""The cache: written whole, found again, made anew when damaged, and left for a temporary folder when it refuses."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from qkv.data import cache
from qkv.data.cache import stored
from qkv.system.cache import cache_folder
from qkv.system.errors import UserError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def load(folder: Path) -> str | None:
    file = folder / "value"
    return file.read_text() if file.is_file() and file.read_text() != "damaged" else None


class Build:
    """Writes a value and counts how often."""

    def __init__(self, value: str = "good") -> None:
        self.value, self.calls = value, 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "value").write_text(self.value)


def test_it_is_made_once(own_cache: Path) -> None:
    build = Build()
    assert [stored("ids", "key", load, build) for _ in range(3)] == ["good"] * 3
    assert build.calls == 1
    assert [path.name for path in (own_cache / "ids").iterdir()] == ["key"]


def test_what_is_damaged_is_made_anew(own_cache: Path) -> None:
    stored("ids", "key", load, Build())
    (own_cache / "ids" / "key" / "value").write_text("damaged")
    assert stored("ids", "key", load, Build("new")) == "new"
    assert stored("ids", "key", load, Build("never")) == "new"


def test_another_process_may_be_faster(own_cache: Path) -> None:
    def overtaken(folder: Path) -> None:
        (folder / "value").write_text("ours")
        (own_cache / "ids" / "key").mkdir()
        (own_cache / "ids" / "key" / "value").write_text("theirs")

    assert stored("ids", "key", load, overtaken) == "theirs"
    assert [path.name for path in (own_cache / "ids").iterdir()] == ["key"]


def test_nothing_stays_of_a_failure(own_cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "value").write_text("half")
        raise UserError("the text is bad")

    with pytest.raises(UserError, match="the text is bad"):
        stored("ids", "key", load, fail)
    assert list((own_cache / "ids").iterdir()) == []


def test_what_a_killed_process_left_is_removed_after_a_day(own_cache: Path) -> None:
    old, new = own_cache / "ids" / ".partial-old", own_cache / "ids" / ".partial-new"
    old.mkdir(parents=True)
    new.mkdir()
    before = time.time() - 2 * cache.ABANDONED
    os.utime(old, (before, before))
    stored("ids", "key", load, Build())
    assert (old.exists(), new.exists()) == (False, True)


def test_a_cache_that_cannot_be_written_is_replaced_for_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert stored("ids", "key", load, Build()) == "good"
    assert "cannot be written" in " ".join(logged)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_full_disk_is_said_in_one_sentence(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserError) as caught:
        stored("ids", "key", load, full)
    assert str(caught.value) == (
        f"the ids of the data can be written neither to the cache {own_cache / 'ids'} (No space left on device) "
        f"nor to {tmp_path} (No space left on device); free disk space, or set QKV_CACHE to another folder"
    )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_reads_back_damaged_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserError, match="the files just written are damaged"):
        stored("ids", "key", load, Build("damaged"))


def test_the_users_own_folder_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QKV_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    assert cache_folder() == tmp_path / "qkv"
    monkeypatch.setenv("QKV_CACHE", "~/elsewhere")
    assert cache_folder() == Path.home() / "elsewhere"
