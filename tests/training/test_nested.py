"""JSON nested deeper than Python reads in place of a run's file: a sentence, or the effect of a damaged file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from qkv.data.vocabulary import LABELS_FILE, Vocabulary
from qkv.ops.selection.choices import ChoiceTable
from qkv.report.metrics import read_metrics
from qkv.runs.storage.checkpoint import read_checkpoint
from qkv.runs.storage.evaluation_file import read_evaluation
from qkv.runs.storage.files import read_metadata
from qkv.spec.tokenizers import Bytes
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train
from qkv.training.environment import FILE, Environment, read_environment
from qkv.training.watch.sections import SECTIONS, read_sections

DEEP = "[" * 20_000 + "]" * 20_000

REFUSED: dict[str, Callable[[Path], Any]] = {
    "state.json": read_checkpoint,
    LABELS_FILE: Vocabulary.load,
    "tokenizer_config.json": Tokenizer.load,
}
NOTHING: dict[str, Callable[[Path], Any]] = {
    "evaluation.json": lambda folder: read_evaluation(folder, 1),
    SECTIONS: read_sections,
    "metrics.jsonl": lambda folder: read_metrics(folder / "metrics.jsonl"),
    FILE: read_environment,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_needed_is_refused(name: str, tmp_path: Path) -> None:
    train(Bytes(), ()).save(tmp_path)
    (tmp_path / name).write_text(DEEP)
    with pytest.raises(UserError, match=name):
        REFUSED[name](tmp_path)


@pytest.mark.parametrize("name", NOTHING)
def test_what_can_be_missing_counts_as_missing(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(DEEP)
    assert not NOTHING[name](tmp_path)


@pytest.mark.parametrize("content", [DEEP, None])
def test_paths_are_measured_anew(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text(content) if content else path.mkdir()
    assert "measured anew" in Environment(tmp_path, torch.device("cpu"), ChoiceTable()).adopt()


@pytest.mark.parametrize("content", [DEEP, "[]", "{"])
def test_metadata_of_weights(content: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1)}, path, {"qkv": content})
    with pytest.raises(UserError, match=r"model\.safetensors was changed after it was written"):
        read_metadata(path)


def test_a_file_of_another_encoding_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(b"\xff\xfe{}")
    train(Bytes(), ()).save(tmp_path)
    with pytest.raises(UserError) as caught:
        Tokenizer.load(tmp_path)
    assert str(caught.value).count("tokenizer_config.json") == 1
