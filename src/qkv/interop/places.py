"""File names of the Hugging Face format, and the form of a published name. Needs no torch."""

from __future__ import annotations

import re
from pathlib import Path

from qkv.tokenizers.gguf_file import is_gguf

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
PREPROCESSOR = "preprocessor_config.json"
MODULES = "modules.json"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files of the PEFT library."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_published(folder: Path) -> bool:
    """True if ``folder`` has a config.json, as a checkpoint in Hugging Face format does, or holds a PEFT adapter, or is
    a GGUF file.
    """
    return is_gguf(folder) or (folder / CONFIG).is_file() or (folder / ADAPTER_CONFIG).is_file()


def is_sentence_folder(folder: Path) -> bool:
    """True if ``folder`` has a modules.json, as a sentence-transformers model does."""
    return (folder / MODULES).is_file()


def may_be_name(text: str) -> bool:
    """True if ``text`` has the form of a published name, "gpt2" or "owner/name", and is not a path into a local
    folder.
    """
    owner, slash, _ = text.partition("/")
    return bool(_NAME.fullmatch(text)) and not (slash and Path(owner).exists())
