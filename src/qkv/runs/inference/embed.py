"""Embed texts with a run, a published checkpoint or a sentence-transformers folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.generation.embed import Embedding, embed_texts
from qkv.interop.files.folder import read_json
from qkv.interop.files.places import CONFIG, is_sentence_folder
from qkv.interop.sentence import EmbeddingSettings, read_sentence
from qkv.runs.run import Run
from qkv.runs.storage.load import load
from qkv.system.errors import UserError, nearest


def embed(
    source: Run | str | Path,
    texts: Sequence[str | Sequence[int]],
    prompt: str | None = None,
    prefix: str | None = None,
    batch_size: int = 32,
    copy: bool = False,
    **options: Any,
) -> np.ndarray:
    """Embed each text as a vector: (texts, D) float32; see ``qkv.embed`` for the parameters. Raises ``UserError``."""
    return embed_opened(*opened(source, copy), texts, prompt, prefix, batch_size, **options)


def embed_opened(
    run: Run,
    settings: EmbeddingSettings | None,
    texts: Sequence[str | Sequence[int]],
    prompt: str | None = None,
    prefix: str | None = None,
    batch_size: int = 32,
    **options: Any,
) -> np.ndarray:
    """Embed each text with the run and the embedding settings that ``opened`` returned; the other parameters are the
    same as for ``embed``.
    """
    if isinstance(texts, str):
        raise UserError("a single text is given, but a list of texts is required; put it in brackets")
    if prompt is not None and prefix is not None:
        raise UserError(
            "both a prompt and a prefix are given; give either prompt, the name of one of the model's prompts, "
            "or prefix, your own text"
        )
    how, text = _how(settings, options), prefix or ""
    if settings is not None and prefix is None:
        text = settings.prompt(prompt)
    elif prompt is not None:
        raise UserError(
            f"{run.folder} has no prompts, so there is none named {prompt!r}; give the text itself as prefix"
        )
    return embed_texts(run.model, run.vocabulary.tokenizer, texts, how, text, batch_size)


def matryoshka(run: Run, settings: EmbeddingSettings | None) -> tuple[int, ...] | None:
    """Return the sizes to which vectors may be truncated, from ``matryoshka_dimensions`` in ``config.json``. () means
    any size, if the file only sets ``is_matryoshka``; None if it sets neither.
    """
    path = (run.folder if settings is None else settings.body) / CONFIG
    config = read_json(path) if path.is_file() else {}
    sizes = config.get("matryoshka_dimensions")
    if isinstance(sizes, list) and sizes and all(type(size) is int for size in sizes):
        return tuple(sizes)
    return () if config.get("is_matryoshka") is True else None


def opened(
    source: Run | str | Path, copy: bool = False, keep_adapters: bool = False
) -> tuple[Run, EmbeddingSettings | None]:
    """Load a run, checkpoint or sentence-transformers folder; return (run, embedding settings), None for the settings
    of other folders than sentence-transformers.

    copy, keep_adapters: see ``load``. In old sentence-transformers folders the Transformer is in a subfolder.
    """
    if not isinstance(source, Run):
        folder = Path(source).expanduser()
        if is_sentence_folder(folder):
            settings = read_sentence(folder)
            return load(settings.body, copy=copy, keep_adapters=keep_adapters), settings
        source = load(source, copy=copy, keep_adapters=keep_adapters)
    return source, read_sentence(source.folder) if is_sentence_folder(source.folder) else None


def _how(settings: EmbeddingSettings | None, options: dict[str, Any]) -> Embedding:
    unknown = next((name for name in options if name not in Embedding.__dataclass_fields__), None)
    if unknown:
        raise UserError(f"embeddings have no option {unknown!r}; {nearest(unknown, Embedding.__dataclass_fields__)}")
    if settings is None:
        return Embedding(**options)
    defaults: dict[str, Any] = {
        "poolings": settings.poolings,
        "normalise": settings.normalise,
        "max_length": settings.max_length,
        "lower_case": settings.lower_case,
        "layers": tuple(projection.layer for projection in settings.projections),
    }
    return Embedding(**{**defaults, "pools_prompt": settings.pools_prompt, **options})
