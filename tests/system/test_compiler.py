"""Announcement of the first build: on terminals only, once per process, and only where something is compiled."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qkv.system import compiler

pytestmark = pytest.mark.skipif(compiler.compiler() is None, reason="there is no C++ compiler here")


class Terminal(io.StringIO):
    """Stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def first() -> Iterator[None]:
    """A process that has announced nothing, before the test and after it."""
    compiler._announce.cache_clear()
    yield
    compiler._announce.cache_clear()


def source(folder: Path, number: int) -> Path:
    path = folder / f"number{number}.cpp"
    path.write_text(f'extern "C" int answer() {{ return {number}; }}\n')
    return path


def test_the_first_build_is_announced_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = source(tmp_path, 1)
    monkeypatch.setattr(sys, "stderr", Terminal())
    compiler.build(built, [])
    compiler.build(source(tmp_path, 2), [])
    assert sys.stderr.getvalue() == "compiling native kernels for this processor, once (about 6 s)\n"  # type: ignore[attr-defined]
    compiler._announce.cache_clear()
    monkeypatch.setattr(sys, "stderr", Terminal())
    compiler.build(built, [])  # it is in the cache folder
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_nothing_is_announced_without_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Terminal()
    closed.close()
    for number, stream in enumerate((io.StringIO(), None, closed), start=3):
        compiler._announce.cache_clear()
        monkeypatch.setattr(sys, "stderr", stream)
        assert compiler.build(source(tmp_path, number), []).exists()
        if isinstance(stream, io.StringIO) and not stream.closed:
            assert stream.getvalue() == ""
