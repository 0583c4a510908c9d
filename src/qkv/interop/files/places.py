"""File names of the Hugging Face format, and the form of a published name. Needs no torch."""

from __future__ import annotations

import re
from pathlib import Path

from qkv.tokenizers.gguf.file import SUFFIX, is_gguf

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
MODULES = "modules.json"
OPEN_CLIP = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors")
OPEN_CLIP_PICKLE = "open_clip_pytorch_model.bin"
"""Names of the files of OpenCLIP."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Names of the files of a PEFT adapter."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_published(folder: Path) -> bool:
    """Return True if ``folder`` has a config.json, as a checkpoint in Hugging Face format does, or contains a PEFT
    adapter, or a model of OpenCLIP.

    Also True for a GGUF file, or a folder of such files.
    """
    named = any((folder / name).is_file() for name in (CONFIG, ADAPTER_CONFIG, OPEN_CLIP))
    return is_gguf(folder) or named or bool(gguf_files(folder))


def gguf_files(folder: Path) -> list[Path]:
    """List the GGUF files of language models in ``folder``; empty if it has other weights, an adapter or a spec.

    Files of image encoders (mmproj) are omitted.
    """
    weight_files = (WEIGHTS, INDEX, PICKLE, PICKLE_INDEX, ADAPTER_CONFIG, "spec.yaml")
    if not folder.is_dir() or any((folder / name).is_file() for name in weight_files):
        return []
    return [file for file in sorted(folder.glob(f"*{SUFFIX}")) if is_gguf(file) and "mmproj" not in file.name]


def is_sentence_folder(folder: Path) -> bool:
    """True if ``folder`` has a modules.json, as a sentence-transformers model does."""
    return (folder / MODULES).is_file()


def may_be_name(text: str) -> bool:
    """Return True if ``text`` has the form of a published name, "gpt2" or "owner/name".

    False for a path into a local folder.
    """
    owner, slash, _ = text.partition("/")
    return bool(_NAME.fullmatch(text)) and not (slash and Path(owner).exists())
