"""Small folders of the Hugging Face form, to be damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.costs.counting.blank import Blank
from qkv.interop import checkpoint
from qkv.interop.files import folder
from qkv.interop.save import save_published
from qkv.models.build import build
from qkv.models.families.gpt import gpt
from qkv.models.transformer import Transformer
from qkv.spec.model import Model
from qkv.tokenizers.tokenizer import Tokenizer

TEXT = "the quick brown fox jumps over the lazy dog; "


def tiny_model(vocab_size: int = 40) -> Transformer:
    return build(gpt(width=12, num_layers=2, num_heads=2, context_length=32, vocab_size=vocab_size)).eval()


def tiny(folder: Path, tokenizer: Tokenizer | None = None) -> Path:
    """A GPT-2 of 12 features in two layers."""
    save_published(tiny_model(tokenizer.vocab_size if tokenizer else 40), folder, tokenizer)
    return folder


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite a JSON file."""
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Path], list[str]]:
    """(configs read, devices of the models built, "no values" for those whose cost is counted) from now on."""
    read, built = list[Path](), list[str]()
    json_of, begin = checkpoint.read_json, Transformer.__init__

    def reading(path: Path) -> dict[str, Any]:
        read.append(path)
        return json_of(path)

    def building(self: Transformer, spec: Model) -> None:
        begin(self, spec)
        built.append(
            "no values" if any(isinstance(weight, Blank) for weight in self.parameters()) else self.device.type
        )

    for module in (checkpoint, folder):
        monkeypatch.setattr(module, "read_json", reading)
    monkeypatch.setattr(Transformer, "__init__", building)
    return read, built
