"""Data sets known by name: files, URLs and checksums."""

from __future__ import annotations

from typing import NamedTuple


class PublishedFile(NamedTuple):
    """Data file of a named data set: its name, URL, and the size in bytes and SHA-256 of its unpacked content.

    The URL is "" if the file was changed after its publication, such as by a new header, and cannot be downloaded.
    """

    name: str
    url: str
    size: int
    sha256: str


class Known(NamedTuple):
    """Files of a named data set; ``validation``: None if the data set has no validation split."""

    train: PublishedFile
    validation: PublishedFile | None = None


PYTHON_DOCS = "python-docs"
"""Name of the language reference that CPython includes for ``help()``: a text that needs no file and no download."""

_WIKITEXT = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/"

KNOWN = {
    "tinyshakespeare": Known(
        PublishedFile(
            "input.txt",
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            1115394,
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        )
    ),
    "wikitext-2": Known(
        PublishedFile(
            "train.txt",
            _WIKITEXT + "train.txt",
            10797148,
            "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        ),
        PublishedFile(
            "valid.txt",
            _WIKITEXT + "valid.txt",
            1121681,
            "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        ),
    ),
}

NAMES = (*KNOWN, PYTHON_DOCS)
