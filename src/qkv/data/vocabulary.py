"""What turns the answers of a run's model into words, and words into what it reads; kept in the run's folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from qkv.spec.errors import UserError
from qkv.tokenizers.files import write_whole
from qkv.tokenizers.tokenizer import FILE_NAME, Tokenizer

TARGET_FILE = "target_tokenizer.json"
LABELS_FILE = "labels.json"


@dataclass(frozen=True)
class Vocabulary:
    """``target``: of the text that is written, the same object as ``tokenizer`` where both are one. ``labels``: class i by its name."""

    tokenizer: Tokenizer
    target: Tokenizer
    labels: tuple[str, ...] = ()

    @cached_property
    def classes(self) -> dict[str, int]:
        """The class of each label."""
        return {label: i for i, label in enumerate(self.labels)}

    @property
    def shared(self) -> bool:
        """True if source and target have one tokenizer."""
        return self.target is self.tokenizer

    def digest(self) -> str:
        """SHA-256 of all of it."""
        parts = [self.tokenizer.core.to_str(), "" if self.shared else self.target.core.to_str(), *self.labels]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` and, where there are such, ``target_tokenizer.json`` and ``labels.json``; each whole or not at all."""
        if not self.shared:
            self.target.save(folder / TARGET_FILE)
        if self.labels:
            write_whole(folder / LABELS_FILE, json.dumps(list(self.labels), ensure_ascii=False, indent=1).encode())
        self.tokenizer.save(folder / FILE_NAME)

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        """What ``save`` wrote. Raises ``UserError`` for a file that is missing, or not what it should be."""
        tokenizer = Tokenizer.load(folder)
        target = Tokenizer.load(folder / TARGET_FILE) if (folder / TARGET_FILE).exists() else tokenizer
        return cls(tokenizer, target, _labels(folder / LABELS_FILE))


def _labels(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return ()
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"the labels {path} cannot be read: {error}") from None
    if not isinstance(found, list) or not all(isinstance(label, str) for label in found):
        raise UserError(f"{path} is not a list of labels")
    return tuple(found)
