"""Pooling, prompts and limits of a sentence-transformers folder (Reimers & Gurevych 2019)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from qkv.interop.files.folder import read_json
from qkv.interop.files.places import CONFIG, MODULES, is_sentence_folder
from qkv.interop.mapping.config import Config
from qkv.interop.projections import KINDS, Projection, read_projections
from qkv.layers.pooling import SENTENCE_NAMES
from qkv.spec.heads import Pooled
from qkv.spec.parts import NoNorm, RMSNorm
from qkv.system.errors import UserError, nearest

SETTINGS = "config_sentence_transformers.json"
READERS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
"""Names of the file with the settings of the Transformer module; the second and third are from old releases."""
POOLINGS = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}
"""Suffix of a key "pooling_mode_…" -> name of the pooling, in the order in which several poolings are concatenated."""


@dataclass(frozen=True)
class EmbeddingSettings:
    """Settings of a sentence-transformers model: poolings, length, prompts.

    ``body``: folder of the Transformer. ``pools_prompt``: whether tokens of the prompt are pooled, too. ``prompts``:
    texts to prepend, by name; ``default_prompt``: name of one of them. ``projections``: modules between pooling and
    ``normalise``, such as Dense.
    """

    body: Path
    poolings: tuple[str, ...]
    normalise: bool
    max_length: int | None
    lower_case: bool
    pools_prompt: bool
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    projections: tuple[Projection, ...] = ()

    def prompt(self, name: str | None) -> str:
        """Return the text of the prompt ``name``; None: the default prompt's text, or "" without a default prompt.

        Raises ``UserError`` for an unknown name.
        """
        name = name if name is not None else self.default_prompt
        if name is None:
            return ""
        if name not in self.prompts:
            hint = nearest(name, self.prompts) if self.prompts else "it has none"
            raise UserError(f"the model has no prompt {name!r}; {hint}")
        return self.prompts[name]


def read_sentence(folder: Path) -> EmbeddingSettings:
    """Read the settings of the sentence-transformers model in ``folder``.

    Raises ``UserError`` for an unknown module or setting.
    """
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= set(KINDS):
        expected = f"Transformer, Pooling, and after them any of {', '.join(KINDS)}"
        raise UserError(f"{folder / MODULES} lists {', '.join(kinds) or 'nothing'}, but qkv supports only {expected}")
    body, pooling = (path for _, path in modules[:2])
    poolings, pools_prompt = _poolings(pooling)
    normalise = kinds[-1] == "Normalize"
    projections = _projections(modules[2 : len(modules) - normalise], pooling, len(poolings))
    max_length, lower_case = _reader(body)
    prompts, default = _prompts(folder)
    return EmbeddingSettings(
        body, poolings, normalise, max_length, lower_case, pools_prompt, prompts, default, projections
    )


def _projections(modules: Sequence[tuple[str, Path]], pooling: Path, poolings: int) -> tuple[Projection, ...]:
    """Read the modules after the module Pooling in the folder ``pooling``, which concatenates ``poolings`` vectors."""
    if not modules:
        return ()
    config = _config(pooling / "config.json")
    size = "embedding_dimension" if "embedding_dimension" in config.values else "word_embedding_dimension"
    return read_projections(modules, poolings * config.integer(size))


def pair_activation(folder: Path) -> Literal["sigmoid", "identity"]:
    """Return the activation of a cross-encoder's score: the one that ``config.json`` names, else the sigmoid.

    Without a ``config.json``, it is the identity. Raises ``UserError`` for another activation.
    """
    file = folder / CONFIG
    if not file.is_file():
        return "identity"
    config = read_json(file)
    settings = config.get("sentence_transformers")
    name = settings.get("activation_fn") if isinstance(settings, dict) else None
    name = name or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    match str(name).rpartition(".")[2]:
        case "Sigmoid":
            return "sigmoid"
        case "Identity":
            return "identity"
        case _:
            raise UserError(f"{file} names the activation {name!r} for scores of pairs; allowed: Sigmoid and Identity")


class SentencePooling(NamedTuple):
    """Pooling of a sentence-transformers folder.

    It consists of the folder of the Transformer, poolings, L2 normalisation, and the modules after these, such as
    Dense.
    """

    body: Path
    poolings: tuple[str, ...]
    normalise: bool
    unread: tuple[str, ...]

    def head(self, part: type[Pooled], dropout: float) -> Pooled:
        """Build a head of the kind ``part`` with the pooling of the folder.

        L2 normalisation becomes an RMS norm without weight, which gives the same vectors times √D.
        """
        names = tuple(SENTENCE_NAMES[name] for name in self.poolings)
        norm = RMSNorm(weight=False, eps=1e-12) if self.normalise else NoNorm()
        pooling = names[0] if len(names) == 1 else names
        return part.model_validate({"pooling": pooling, "norm": norm, "dropout": dropout})


def read_pooling(folder: Path) -> SentencePooling | None:
    """Read the pooling of the sentence-transformers model in ``folder``.

    Return None if it is not such a folder, or if it does not pool the output of a Transformer. Raises ``UserError`` for
    an unknown setting.
    """
    if not is_sentence_folder(folder):
        return None
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        return None
    normalise = kinds[2:3] == ["Normalize"]
    return SentencePooling(modules[0][1], _poolings(modules[1][1])[0], normalise, tuple(kinds[2 + normalise :]))


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Read (kind, folder) of each module of the sentence-transformers model in ``folder``.

    Raises ``UserError`` for a module outside of the folder.
    """
    try:
        listed = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder / MODULES} cannot be read: {error}") from None
    fits = isinstance(listed, list) and all(
        isinstance(module, dict) and isinstance(module.get("type"), str) and isinstance(module.get("path"), str)
        for module in listed
    )
    if not fits:
        raise UserError(f"{folder / MODULES} should contain a list of modules, each with a type and a path")
    outside = next((module["path"] for module in listed if _climbs(module["path"])), None)
    if outside is not None:
        raise UserError(
            f"{folder / MODULES} names the folder {outside!r}, which is outside it; nothing was read from there"
        )
    return [(module["type"].rpartition(".")[2], folder / module["path"]) for module in listed]


def _climbs(path: str) -> bool:
    return path.startswith(("/", "~")) or "\\" in path or "\0" in path or ".." in Path(path).parts


def _poolings(folder: Path) -> tuple[tuple[str, ...], bool]:
    """Read (names of poolings, True if tokens of the prompt are pooled too) from the folder of the module Pooling."""
    config = _config(folder / "config.json")
    for size in ("word_embedding_dimension", "embedding_dimension"):
        config.has(size)
    if config.has("pooling_mode"):
        value: Any = config.values["pooling_mode"]
        names = tuple(value) if isinstance(value, list) else (value,)
        unknown = next((name for name in names if name not in POOLINGS.values()), None)
        if unknown is not None or not names:
            raise UserError(
                f"{config.source}: there is no pooling {unknown!r}; {nearest(str(unknown), POOLINGS.values())}"
            )
        names = tuple(name for name in POOLINGS.values() if name in names)
        for key in POOLINGS:
            config.has(f"pooling_mode_{key}")
    else:
        names = tuple(name for key, name in POOLINGS.items() if config.flag(f"pooling_mode_{key}", name == "mean"))
    pools_prompt = config.flag("include_prompt", True)
    config.finish(())
    if not names:
        raise UserError(f"{config.source} switches every pooling off")
    return names, pools_prompt


def _reader(folder: Path) -> tuple[int | None, bool]:
    """Read (maximum number of tokens or None, True if texts are lower-cased) from the Transformer's folder."""
    file = next((folder / name for name in READERS if (folder / name).is_file()), None)
    if file is None:
        return None, False
    config = _config(file)
    most, lower = (
        (config.integer("max_seq_length") if config.has("max_seq_length") else None),
        config.flag("do_lower_case", False),
    )
    config.fixed("transformer_task", "feature-extraction", "the task of the model")
    config.finish(
        ("model_args", "tokenizer_args", "config_args", "modality_config", "module_output_name", "processing_kwargs")
    )
    if most is not None and most < 1:
        raise UserError(f"{file}: max_seq_length is {most}, but it should be at least 1")
    return most, lower


def _prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    """Read (prompts by name, name of the default prompt)."""
    if not (folder / SETTINGS).is_file():
        return {}, None
    config = _config(folder / SETTINGS)
    prompts = config.table("prompts").values
    wrong = next((name for name, text in prompts.items() if not isinstance(text, str)), None)
    if wrong is not None:
        raise UserError(f"{config.source}: the prompt {wrong!r} is {prompts[wrong]!r}, but it should be a text")
    default: str | None = config.word("default_prompt_name") if config.has("default_prompt_name") else None
    config.fixed("truncate_dim", None, "the size of the vectors")
    config.finish(("__version__", "similarity_fn_name", "model_type"))
    return {str(name): text for name, text in prompts.items()}, default


def _config(file: Path) -> Config:
    return Config(read_json(file), str(file))
