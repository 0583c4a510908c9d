"""Sources of text: a file, or a data set known by name."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from qkv.data.corpora.download import DownloadError, download
from qkv.data.corpora.named import KNOWN, NAMES, PYTHON_DOCS, PublishedFile
from qkv.data.corpora.text import TextSource
from qkv.spec import data as spec
from qkv.spec.files.given import kept_name
from qkv.system.cache import cache_folder
from qkv.system.errors import UserError, nearest

IN_MEMORY = "the text given"
"""Name in messages for a running text that was passed in memory."""


class Source(NamedTuple):
    """Training text, and the validation and test texts if there are any. ``digest``: hash of the content."""

    name: str
    train: TextSource
    validation: TextSource | None
    digest: str
    test: TextSource | None = None


def resolve(source: str) -> Source:
    """Find the data set named ``source``, else the file of that path; ``./name`` is a file named like a data set.

    The files of a data set are searched in the folder ``QKV_DATA``, then in the user's cache, and are otherwise
    downloaded to the cache. Raises ``UserError`` if there is no such file or data set, or if the data set is
    unavailable.
    """
    if source == PYTHON_DOCS:
        return _source(source, _python_docs())
    if source in KNOWN:
        train, validation = KNOWN[source]
        return _source(source, published(source, train), published(source, validation) if validation else None)
    path = Path(source).expanduser()
    if path.is_file():
        name = IN_MEMORY if kept_name(source) else source
        return _source(name, TextSource.of_file(path, name))
    if path.is_dir():
        raise UserError(f"data.source: {source!r} is a directory; name one text file")
    if path.exists():
        raise UserError(
            f"data.source: {source!r} is not a regular file, and a text is read more than once; name a text file"
        )
    raise UserError(
        f"data.source: there is no file {source!r} and no known data set of that name; {nearest(source, NAMES)}"
    )


def resolve_all(data: spec.Data) -> Source:
    """Find the texts of ``data``: its source as in ``resolve``, and the files of its other splits, if named."""
    source = resolve(data.source)
    if data.validation is None and data.test is None:
        return source
    validation = source.validation if data.validation is None else resolve(data.validation).train
    return _source(source.name, source.train, validation, None if data.test is None else resolve(data.test).train)


def _source(
    name: str, train: TextSource, validation: TextSource | None = None, test: TextSource | None = None
) -> Source:
    parts = [part.digest() for part in (train, validation, test) if part]
    return Source(name, train, validation, hashlib.sha256("".join(parts).encode()).hexdigest(), test)


def _python_docs() -> TextSource:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError(
            f"data.source: this Python was installed without pydoc_data, the text of {PYTHON_DOCS!r}; name a text file"
        ) from None
    return TextSource.of_string("\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n", PYTHON_DOCS)


def published(name: str, file: PublishedFile) -> TextSource:
    """Find the file of data set ``name`` in the folder ``QKV_DATA`` or the user's cache, or download it to the cache;
    its checksum must match.

    Raises ``UserError`` if it is nowhere and cannot be downloaded, or has other content.
    """
    data, cache = os.environ.get("QKV_DATA"), cache_folder() / "data"
    for folder in (Path(data), cache) if data else (cache,):
        for path in (folder / name / file.name, folder / name / f"{file.name}.gz"):
            if path.is_file():
                return _checked(name, file, path)
    target = cache / name / file.name
    looked = f"{file.name} of {name!r} is neither in QKV_DATA ({data or 'not set'}) nor in the cache ({cache})"
    if not file.url:
        raise UserError(f"data.source: {looked}, and it is not published in this form; put the file at {target}")
    _fetch(file, target, looked)
    return TextSource.of_file(target)


def _fetch(file: PublishedFile, target: Path, looked: str) -> None:
    try:
        download(file, target)
    except DownloadError as error:
        raise UserError(
            f"data.source: {looked}, and downloading {file.url} failed: {error}; "
            f"connect to the network, or put the file at {target}"
        ) from None
    except OSError as error:
        raise UserError(
            f"data.source: {looked}, and {target} cannot be written: {error.strerror}; set QKV_CACHE to another folder"
        ) from None


def _checked(name: str, file: PublishedFile, path: Path) -> TextSource:
    text = TextSource.of_file(path)
    if text.digest() != file.sha256:
        raise UserError(
            f"data.source: {path} is not the published {file.name} of {name!r}; "
            f"remove it, or use it as the file {str(path)!r}"
        )
    return text
