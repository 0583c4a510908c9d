"""Answers of a long prediction in a file beside its output, so that a prediction that was stopped resumes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.runs.inference.search_index import model_digest
from qkv.runs.run import Run

ENDING = ".partial.jsonl"


class PartialAnswers:
    """File of answers, one JSON object per line after a line with a key.

    The key is a digest of the model, the table and the settings: answers under another key are discarded. A line that
    was cut by a crash is discarded, too.
    """

    def __init__(self, out: Path, run: Run, source: str, settings: Mapping[str, Any]):
        """``out``: output file of the prediction; ``source``: file with the table."""
        self.path = out.with_name(out.name + ENDING)
        with open(source, "rb") as table:
            content = hashlib.file_digest(table, "sha256").hexdigest()
        text = json.dumps([model_digest(run), content, settings], sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()
        self.answers: list[dict[str, Any]] = self._read()
        """Answers of the first rows, which an earlier process computed."""

    def _read(self) -> list[dict[str, Any]]:
        try:
            key, *lines = self.path.read_bytes().split(b"\n")[:-1]  # what follows the last line end was cut
            return [json.loads(line) for line in lines] if json.loads(key) == {"key": self._key} else []
        except (OSError, ValueError):
            return []

    def add(self, answers: Sequence[Mapping[str, Any]]) -> None:
        """Append ``answers`` and flush them to disk."""
        begins = not self.answers
        lines = [json.dumps(answer) for answer in ([{"key": self._key}] if begins else []) + list(answers)]
        if not begins:
            self._cut()
        with self.path.open("wb" if begins else "ab") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())
        self.answers += [dict(answer) for answer in answers]

    def _cut(self) -> None:
        """Remove what follows the last line end, which a crash left."""
        content = self.path.read_bytes()
        size = content.rfind(b"\n") + 1
        if size < len(content):
            os.truncate(self.path, size)

    def remove(self) -> None:
        """Delete the file, once the output is written."""
        self.path.unlink(missing_ok=True)
