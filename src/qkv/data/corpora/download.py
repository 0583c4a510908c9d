"""Download of a published file, with checksum verification."""

from __future__ import annotations

import hashlib
import http.client
import urllib.request
import zlib
from pathlib import Path

from qkv.data.corpora.named import PublishedFile
from qkv.data.progress import progress
from qkv.system.files import write_file

TIMEOUT = 30
"""Seconds without response after which the network counts as unavailable."""


class DownloadError(Exception):
    """Failed download; its message is a reason that completes a sentence."""


def download(file: PublishedFile, target: Path) -> None:
    """Download ``file``, unpack it if gzipped, and write it to ``target`` if size and SHA-256 match.

    Raises ``DownloadError``, and ``OSError`` for disk errors.
    """
    content = _unpacked(_fetched(file), file.size)
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise DownloadError(
            f"the downloaded file differs from the published one: {len(content)} bytes with SHA-256 {digest[:12]}… "
            f"instead of {file.sha256[:12]}…"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, content)


def _fetched(file: PublishedFile) -> bytes:
    """Download the file's bytes, but at most one byte more than the published size, in case the response never ends."""
    content = bytearray()
    try:
        with (
            urllib.request.urlopen(file.url, timeout=TIMEOUT) as answer,
            progress(f"downloading {file.name}", file.size) as advance,
        ):
            while block := answer.read(min(1 << 16, file.size + 1 - len(content))):
                content += block
                advance(len(block))
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(str(getattr(error, "reason", "") or error or type(error).__name__)) from None
    return bytes(content)


def _unpacked(content: bytes, size: int) -> bytes:
    """Decompress gzip content to at most ``size`` + 1 bytes; other or damaged content is returned unchanged and fails
    the checksum.
    """
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return zlib.decompressobj(wbits=31).decompress(content, size + 1)
    except zlib.error:
        return content
