"""Read archives of sound files whose names say what they hold."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Container, Iterator
from pathlib import PurePosixPath

from qkv.data.corpora.text import TextSource
from qkv.data.records.table import Row, Table
from qkv.system.errors import UserError


def spoken_digits(archive: TextSource, takes: Container[int]) -> Table:
    """Build the table of the Free Spoken Digit Dataset (Jackson et al. 2018): sounds, their digits and speakers.

    ``archive``: tar file of sounds ``digit_speaker_take.wav``; ``takes``: numbers of the takes that become
    rows. Raises ``UserError`` for any other file.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(b"".join(archive.raw()))) as file:
            names = sorted(member.name for member in file if member.isfile() and member.name.endswith(".wav"))
            parts = [(name, PurePosixPath(name).stem.split("_")) for name in names]
            chosen = [(name, words) for name, words in parts if int(words[2]) in takes]
            sounds = [_content(file, name) for name, _ in chosen]
    except (tarfile.TarError, IndexError, ValueError) as error:
        raise UserError(f"{archive.name} is no archive of sounds named digit_speaker_take.wav: {error}") from None

    def parse() -> Iterator[Row]:
        for line, (sound, (_, words)) in enumerate(zip(sounds, chosen, strict=True), 1):
            yield Row(line, {"sound": sound, "label": words[0], "speaker": words[1]})

    digest = archive.digest()
    defaults = {"sound": ("sound",), "label": ("label",)}
    return Table(archive.name, ("sound", "label", "speaker"), parse, digest, defaults)


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()
