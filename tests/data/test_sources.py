"""What ``data.source`` may name, where it is looked for, and the sentence for everything else."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.data.corpora import inside

from qkv.data.corpora import download as downloading
from qkv.data.corpora import named, sources
from qkv.data.corpora.named import KNOWN, Known, PublishedFile
from qkv.data.corpora.sources import resolve
from qkv.system.errors import UserError

CONTENT = b"To be, or not to be.\n" * 20


class Shelf(BaseHTTPRequestHandler):
    """Serves ``files``; a path that ends in ``!`` breaks off in the middle."""

    files: dict[str, bytes] = {}
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        content = self.files.get(self.path.rstrip("!"))
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if content is not None:
            self.wfile.write(content[: len(content) // 2] if self.path.endswith("!") else content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server of this machine that serves /plays.txt."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Shelf, "files", {"/plays.txt": CONTENT})
    monkeypatch.setattr(Shelf, "asked", [])
    server = HTTPServer(("127.0.0.1", 0), Shelf)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Empty folders for QKV_DATA and QKV_CACHE."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("QKV_DATA", str(data))
    monkeypatch.setenv("QKV_CACHE", str(cache))
    return data, cache


def publish(monkeypatch: pytest.MonkeyPatch, url: str, content: bytes = CONTENT) -> None:
    file = PublishedFile("plays.txt", url, len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(KNOWN, "plays", Known(file))


def text_of(name: str) -> str:
    return "".join(resolve(name).train.blocks())


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_bytes(CONTENT)
    with inside(tmp_path):
        assert (text_of("my.txt").encode(), resolve("my.txt").name) == (CONTENT, "my.txt")
    assert resolve(str(tmp_path / "my.txt")).validation is None


def test_a_file_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.txt").write_bytes(CONTENT)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert text_of("~/my.txt").encode() == CONTENT


def test_the_digest_follows_the_content_and_not_the_packing(tmp_path: Path) -> None:
    for name, content in (("a", CONTENT), ("b", gzip.compress(CONTENT)), ("c", CONTENT + b" ")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (resolve(str(tmp_path / name)).digest for name in "abc")
    assert a == b != c


def test_the_language_reference_of_python_is_always_there(tmp_path: Path) -> None:
    text = text_of(named.PYTHON_DOCS)
    assert len(text) > 100_000
    assert text.startswith('The "assert" statement\n***')
    assert text_of(named.PYTHON_DOCS) == text


def test_a_python_without_its_reference_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match="this Python was installed without pydoc_data"):
        resolve(named.PYTHON_DOCS)


def test_a_file_beside_a_known_name_is_written_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / named.PYTHON_DOCS).write_bytes(CONTENT)
    with inside(tmp_path):
        assert text_of(f"./{named.PYTHON_DOCS}").encode() == CONTENT
        assert text_of(named.PYTHON_DOCS).encode() != CONTENT


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "tinyshakespear",
            "data.source: there is no file 'tinyshakespear' and no known data set of that name; "
            "did you mean 'tinyshakespeare'?",
        ),
        (
            "zzz.txt",
            "data.source: there is no file 'zzz.txt' and no known data set of that name; allowed: "
            "python-docs, tinyshakespeare, wikitext-2",
        ),
        ("folder", "data.source: 'folder' is a directory; name one text file"),
        ("pipe", "data.source: 'pipe' is not a regular file, and a text is read more than once; name a text file"),
    ],
)
def test_what_cannot_be_a_source_is_refused(source: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with inside(tmp_path), pytest.raises(UserError) as caught:
        resolve(source)
    assert str(caught.value) == sentence


def test_the_data_folder_comes_first_then_the_cache_then_the_network(
    shelf: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, cache = places
    publish(monkeypatch, f"{shelf}/plays.txt")
    assert text_of("plays").encode() == CONTENT
    assert Shelf.asked == ["/plays.txt"]
    assert (cache / "data" / "plays" / "plays.txt").read_bytes() == CONTENT
    assert text_of("plays").encode() == CONTENT
    (data / "plays").mkdir()
    (data / "plays" / "plays.txt.gz").write_bytes(gzip.compress(CONTENT))
    assert resolve("plays").train.name == str(data / "plays" / "plays.txt.gz")
    assert Shelf.asked == ["/plays.txt"], "what is here is not fetched again"


def test_without_a_data_folder_the_cache_is_used(shelf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_DATA")
    publish(monkeypatch, f"{shelf}/plays.txt")
    assert text_of("plays").encode() == CONTENT


@pytest.mark.parametrize(
    ("path", "expected", "reason"),
    [
        ("/missing.txt", CONTENT, "failed: Not Found"),
        (
            "/plays.txt",
            CONTENT[:-1] + b"?",
            "failed: the downloaded file differs from the published one: 420 bytes with SHA-256",
        ),
        ("/plays.txt", CONTENT[:50], "failed: the downloaded file differs from the published one: 51 bytes"),
        (
            "/plays.txt!",
            CONTENT,
            "failed: (IncompleteRead|the downloaded file differs from the published one: 210 bytes)",
        ),
    ],
)
def test_a_bad_answer_leaves_nothing_behind(
    path: str, expected: bytes, reason: str, shelf: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, shelf + path, expected)
    with pytest.raises(UserError, match=reason):
        resolve("plays")
    assert not [file for file in places[1].rglob("*") if file.is_file()]


def test_offline_says_which_name_where_it_was_looked_for_why_and_what_to_do(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "http://127.0.0.1:9/plays.txt")
    data, cache = places
    with pytest.raises(UserError) as caught:
        resolve("plays")
    assert str(caught.value) == (
        f"data.source: plays.txt of 'plays' is neither in QKV_DATA ({data}) nor in the cache ({cache / 'data'}), "
        f"and downloading http://127.0.0.1:9/plays.txt failed: [Errno {errno.ECONNREFUSED}] Connection refused; "
        f"connect to the network, or put the file at {cache / 'data' / 'plays' / 'plays.txt'}"
    )
    monkeypatch.delenv("QKV_DATA")
    with pytest.raises(UserError, match=r"neither in QKV_DATA \(not set\) nor"):
        resolve("plays")


def test_a_network_that_does_not_answer_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    publish(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}/plays.txt")
    monkeypatch.setattr(downloading, "TIMEOUT", 0.1)
    with pytest.raises(UserError, match="failed: timed out"):
        resolve("plays")
    silent.close()


def test_a_cache_that_cannot_be_written_is_named(shelf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "file"))
    publish(monkeypatch, f"{shelf}/plays.txt")
    with pytest.raises(UserError, match="cannot be written: Not a directory; set QKV_CACHE to another folder"):
        resolve("plays")


def test_another_text_under_a_known_name_is_refused(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, "http://127.0.0.1:9/plays.txt")
    (places[0] / "plays").mkdir()
    (places[0] / "plays" / "plays.txt").write_bytes(CONTENT + b"and more")
    with pytest.raises(
        UserError, match=r"is not the published plays\.txt of 'plays'; remove it, or use it as the file"
    ):
        resolve("plays")


def test_known_files_come_over_https_with_a_checksum() -> None:
    files = [file for known in KNOWN.values() for file in known if file]
    assert len(files) == 3
    for file in files:
        assert file.url.startswith("https://raw.githubusercontent.com/")
        assert len(bytes.fromhex(file.sha256)) == 32


@pytest.mark.data
@pytest.mark.parametrize(("name", "sizes"), [("tinyshakespeare", (1115394, 0)), ("wikitext-2", (10780437, 1120192))])
def test_the_real_data_is_what_was_published(
    name: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_DATA", REAL)
    monkeypatch.setattr(sources, "download", None)
    source = resolve(name)
    assert (source.train.characters(), source.validation.characters() if source.validation else 0) == sizes


REAL = os.environ.get("QKV_DATA", "")
