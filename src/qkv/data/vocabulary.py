"""``Vocabulary``: encoders and decoders of a run's signals, stored in the run's folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from qkv.data.features.token_ngrams import TokenNgrams
from qkv.spec.errors import SpecError
from qkv.spec.processors import INPUT, Processor
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.tokenizers.absent import NO_TEXT
from qkv.tokenizers.tokenizer import FILE_NAME, Tokenizer

TARGET_FILE = "target_tokenizer.json"
LABELS_FILE = "labels.json"
PROCESSORS_FILE = "processors.json"
NGRAMS_FILE = "ngrams.json"
FILES = (FILE_NAME, TARGET_FILE, LABELS_FILE, PROCESSORS_FILE, NGRAMS_FILE)
"""File names of a vocabulary; a run has only the files that it needs."""
PRETRAINED = "pretrained"
"""Folder with copies of the trained runs that processors read, so that a run can be moved."""
SPEC_FILE, WEIGHTS_FILE = "spec.yaml", "model.safetensors"
_LARGEST = 256_000_000
"""Maximum size in bytes of weights that are copied."""


@dataclass(frozen=True)
class Vocabulary:
    """Encoders and decoders of a run's data: tokenizers for texts, names of classes, processors for other signals.

    tokenizer: for input text, ``NO_TEXT`` without any.   target: for output text, the same object if shared.
    labels: name of class i.   processors: encoders of other signals (image, audio, series), by name of the input.
    ngrams: language model of the target texts of the training split, for a search; None if the task counts none.
    """

    tokenizer: Tokenizer = NO_TEXT
    target: Tokenizer = NO_TEXT
    labels: tuple[str, ...] = ()
    processors: Mapping[str, Processor] = field(default_factory=dict)
    ngrams: TokenNgrams | None = None

    @property
    def has_text(self) -> bool:
        """True if the run reads or writes text and so has a tokenizer."""
        return not self.tokenizer.absent

    @property
    def processor(self) -> Processor | None:
        """Processor of a single input that is not text; None for a text and for several inputs."""
        return self.processors.get(INPUT)

    @cached_property
    def classes(self) -> dict[str, int]:
        """Index of each class by its label."""
        return {label: i for i, label in enumerate(self.labels)}

    @property
    def shared(self) -> bool:
        """True if input and output text share one tokenizer."""
        return self.target is self.tokenizer

    @property
    def same_ids(self) -> bool:
        """True if the tokens of input and output text have the same ids, though texts may be split in two ways."""
        return self.shared or self.tokenizer.core.get_vocab() == self.target.core.get_vocab()

    def digest(self) -> str:
        """Return the SHA-256 of tokenizers, labels and processors, in hexadecimal."""
        texts = (
            [self.tokenizer.core.to_str(), "" if self.shared else self.target.core.to_str()] if self.has_text else []
        )
        parts = [*texts, *self.labels, *([json.dumps(self._plain(), sort_keys=True)] if self.processors else [])]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write the vocabulary's files into ``folder``, each atomically."""
        if not self.shared:
            self.target.save(folder / TARGET_FILE)
        if self.labels:
            write_file(folder / LABELS_FILE, json.dumps(list(self.labels), ensure_ascii=False, indent=1).encode())
        if self.processors or not self.has_text:
            write_file(folder / PROCESSORS_FILE, json.dumps(self._plain(), ensure_ascii=False, indent=1).encode())
        if self.has_text:
            self.tokenizer.save(folder / FILE_NAME)
        if self.ngrams is not None:
            write_file(folder / NGRAMS_FILE, json.dumps(self.ngrams.to_plain(), sort_keys=True).encode())
        for name, processor in self.processors.items():
            if processor.pretrained:
                _copy(Path(getattr(processor, processor.pretrained)).expanduser(), folder / PRETRAINED / name)

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        """Load the vocabulary saved in ``folder``. Raises ``UserError`` for a missing or malformed file.

        If the folder holds copies of the trained runs that processors use, the processors read these copies.
        """
        processors = _processors(folder / PROCESSORS_FILE)
        labels = _labels(folder / LABELS_FILE)
        if processors is not None and not (folder / FILE_NAME).exists():
            return cls(labels=labels, processors=processors)
        tokenizer = Tokenizer.load(folder)
        target = Tokenizer.load(folder / TARGET_FILE) if (folder / TARGET_FILE).exists() else tokenizer
        return cls(tokenizer, target, labels, processors or {}, _ngrams(folder / NGRAMS_FILE))

    def _plain(self) -> dict[str, Any]:
        return {name: processor.to_dict() for name, processor in self.processors.items()}


def _read(path: Path, name: str) -> Any:
    """Parse a JSON file; return None if it is missing. ``name``: noun for the content in the error message."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"the {name} {path} cannot be read: {error}") from None


def _labels(path: Path) -> tuple[str, ...]:
    labels = _read(path, "labels")
    if labels is None:
        return ()
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UserError(f"{path} is not a list of labels")
    return tuple(labels)


def _ngrams(path: Path) -> TokenNgrams | None:
    content = _read(path, "n-grams")
    try:
        return None if content is None else TokenNgrams.of_plain(content)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{path} is not a table of n-grams") from None


def _processors(path: Path) -> dict[str, Processor] | None:
    content = _read(path, "processors")
    if content is None:
        return None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a table of processors")
    try:
        return {
            str(name): _moved(Processor.parse(value), path.parent / PRETRAINED / name)
            for name, value in content.items()
        }
    except SpecError as error:
        raise UserError(f"{path}: {error}") from None


def _copy(run: Path, folder: Path) -> None:
    """Copy the needed files of the trained run in ``run``, its weights last. Copy nothing if the weights are missing or
    large.
    """
    weights = run / WEIGHTS_FILE
    if not weights.is_file() or weights.stat().st_size > _LARGEST:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in (SPEC_FILE, *FILES, WEIGHTS_FILE):
        if (run / name).is_file():
            write_file(folder / name, (run / name).read_bytes())


def _moved(processor: Processor, copy: Path) -> Processor:
    """Return the processor with its trained run replaced by the copy in ``copy``, if that copy exists."""
    if not processor.pretrained or not (copy / WEIGHTS_FILE).is_file():
        return processor
    return processor.changed(**{processor.pretrained: str(copy)})
