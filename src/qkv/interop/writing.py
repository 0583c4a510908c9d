"""Generation settings of a published checkpoint.

They are in ``generation_config.json`` or, in older folders, in ``config.json``; for a GGUF file, in its metadata. Each
setting is used, or affects no text, or causes a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from qkv.interop.files.folder import read_json
from qkv.interop.files.places import CONFIG, GENERATION
from qkv.interop.mapping.config import Config
from qkv.interop.registry import fixed_settings
from qkv.spec.generation import Generation
from qkv.system.errors import UserError
from qkv.tokenizers.gguf.file import is_gguf
from qkv.tokenizers.gguf.read import ends_of
from qkv.tokenizers.tokenizer import Tokenizer

USED = (
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "stop_strings"),
    *("num_beams", "length_penalty", "early_stopping", "eos_token_id", "no_repeat_ngram_size"),
    *("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "decoder_start_token_id", "forced_bos_token_id"),
    "min_new_tokens",
)
"""Settings that qkv supports."""
WITHOUT: Mapping[str, tuple[Any, ...]] = {
    "min_length": (0,),
    "encoder_repetition_penalty": (1, 1.0),
    "encoder_no_repeat_ngram_size": (0,),
    "exponential_decay_length_penalty": (),
    "sequence_bias": (),
    "guidance_scale": (1, 1.0),
    "watermarking_config": (),
    "penalty_alpha": (0, 0.0),
    "diversity_penalty": (0, 0.0),
    "num_beam_groups": (1,),
    "constraints": (),
    "force_words_ids": (),
    "dola_layers": (),
    "token_healing": (False,),
    "renormalize_logits": (False,),
}
"""Unsupported settings that change texts -> their neutral values."""
WITHOUT_IN_SAMPLING: Mapping[str, tuple[Any, ...]] = {
    "typical_p": (1, 1.0),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
    "top_h": (1, 1.0),
}
"""Unsupported settings that change texts only in sampling -> their neutral values."""
_TOP_K = 50
"""Default of ``top_k`` in the transformers library with ``do_sample``."""


class Said(NamedTuple):
    """Generation settings, without nulls, and the file that they were read from."""

    values: Mapping[str, Any]
    file: Path

    @property
    def config(self) -> Config:
        """Settings as a ``Config``, which checks the type of each value that it returns."""
        return Config(self.values, str(self.file))


def said_by(folder: Path, config: Config) -> Said:
    """Read the settings of ``generation_config.json``.

    Without that file, read the generation settings in ``config.json``, as in older folders. Settings that the published
    code of the family fixes come first.
    """
    file, fixed = folder / GENERATION, fixed_settings(config)
    if not is_gguf(folder) and file.is_file():
        return Said({**{key: value for key, value in read_json(file).items() if value is not None}, **fixed}, file)
    keys = {*USED, *WITHOUT, *WITHOUT_IN_SAMPLING, "max_length"}
    settings = {key: value for key, value in config.values.items() if key in keys}
    return Said({**settings, **fixed}, Path(config.source))


def going_on(folder: Path, tokenizer: Tokenizer | None, config: Config) -> Generation:
    """Read the generation settings of a published decoder-only model; decoding is greedy unless ``do_sample`` is set.

    Warns of unsupported settings.
    """
    source = said_by(folder, config)
    values = source.config
    draws, beams = values.flag("do_sample", False), values.integer("num_beams", 1)
    _warn(source, draws, beams)
    least = values.integer("min_new_tokens", 0)
    drawing = {
        "temperature": values.number("temperature", 1.0),
        "top_k": values.integer("top_k", _TOP_K) or None,
        "top_p": values.number("top_p", 1.0) if values.has("top_p") else None,
        "min_p": values.number("min_p", 0.0) if values.has("min_p") else None,
    }
    settings: dict[str, Any] = {**(drawing if draws else {"temperature": 0.0}), **_forbidden(values)}
    if beams > 1 and not draws:
        settings |= _beams(values)
    else:
        settings["repetition_penalty"] = values.number("repetition_penalty", 1.0)
    if values.has("max_new_tokens"):
        settings["max_new_tokens"] = max(least, values.integer("max_new_tokens"))
    settings["min_tokens"] = least
    ends = tuple(dict.fromkeys((*_ends(folder, values, config), *_own_end(tokenizer))))
    return Generation.parse({**settings, "stop": _strings(values), "stop_token_ids": ends}, str(source.file))


def settings_of_tasks(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the settings of each task, such as "summarization", from the ``config.json`` of a published model.

    They are generation settings, and ``prefix``, the text before every source.
    """
    file = folder / CONFIG
    named = read_json(file).get("task_specific_params") if file.is_file() else None
    entries = named.items() if isinstance(named, dict) else ()
    return {str(name): entry for name, entry in entries if isinstance(entry, dict)}


def answering(folder: Path, config: Config, task: Mapping[str, Any] = MappingProxyType({})) -> Generation:
    """Read the generation settings of a published encoder–decoder: beam search with ``num_beams`` (default 1).
    ``task``: settings that replace those of the files, an entry of ``settings_of_tasks``.

    The decoder starts with the ids of ``beginning``. The published ``max_length`` and ``min_length`` count all of these
    ids, ``max_new_tokens`` and ``min_new_tokens`` all but the first. The limits that are returned count only the tokens
    after ``beginning``. Warns of unsupported settings.
    """
    read = said_by(folder, config)
    source = Said({**read.values, **{key: value for key, value in task.items() if value is not None}}, read.file)
    values = source.config
    _warn(Said({key: value for key, value in source.values.items() if key != "min_length"}, source.file), False, 1)
    first = len(beginning(folder, config))
    longest = values.integer("max_new_tokens") + 1 if values.has("max_new_tokens") else values.integer("max_length", 0)
    shortest = values.integer("min_new_tokens") + 1 if values.has("min_new_tokens") else values.integer("min_length", 0)
    longest, shortest = longest - first, max(0, shortest - first)
    settings = {
        "temperature": 0.0,
        **_forbidden(values),
        **_beams(values),
        "stop_token_ids": _ends(folder, values, config),
        "min_tokens": shortest,
    }
    if longest > 0 or shortest:
        settings["max_new_tokens"] = max(longest, shortest)
    return Generation.parse(settings, str(source.file))


def beginning(folder: Path, config: Config) -> tuple[int, ...]:
    """Return the ids that the decoder of a published encoder–decoder starts with.

    These are its start token and a forced first token, if any.
    """
    values = Config({**config.values, **said_by(folder, config).values}, str(folder / GENERATION))
    first = "decoder_start_token_id" if values.has("decoder_start_token_id") else "bos_token_id"
    old = values.flag("force_bos_token_to_be_generated", False) and not values.has("forced_bos_token_id")
    second = "bos_token_id" if old else "forced_bos_token_id"
    return tuple(values.integer(key) for key in (first, second) if values.has(key))


def transcript_beginning(folder: Path, config: Config) -> tuple[int, ...]:
    """Return the ids that a transcript without timestamps begins with.

    These are ``beginning``, the ids of language and task, and the id for "no timestamps". Language and task are those
    of ``forced_decoder_ids``; else, in a model of several languages (Whisper), those of ``language``, ``lang_to_id``
    and ``task_to_id``; the default is English.
    """
    values = Config({**config.values, **said_by(folder, config).values}, str(folder / GENERATION))
    forced = sorted(pair for pair in values.items("forced_decoder_ids") if None not in pair)
    ids = [index for _, index in forced]
    languages, task = values.table("lang_to_id").values, values.table("task_to_id").values.get("transcribe")
    if not ids and languages and values.flag("is_multilingual", True):
        named = f"<|{values.word('language', 'en').strip('<|>')}|>"
        ids = [languages.get(named, next(iter(languages.values()))), *([] if task is None else [task])]
    silent = values.integer("no_timestamps_token_id") if values.has("no_timestamps_token_id") else None
    return (*beginning(folder, config), *ids, *([silent] if silent is not None and silent not in ids else []))


def named_ends(folder: Path, config: Config) -> tuple[int, ...]:
    """Read the ids of the end tokens from the files of a published checkpoint. Raises ``UserError``."""
    return _ends(folder, said_by(folder, config).config, config)


def unused_settings(folder: Path, config: Config) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) of each setting in ``generation_config.json`` that is not used."""
    source = said_by(folder, config)
    if source.file.name != GENERATION:
        return
    draws = source.values.get("do_sample") is True
    used = {*USED, "min_length"} if config.values.get("is_encoder_decoder") else {*USED}
    for key in sorted(source.values.keys() - used):
        if key in WITHOUT or key in WITHOUT_IN_SAMPLING:
            yield key, "not supported by qkv" if _changes(source, key, draws) else "it changes nothing here"
        elif key == "max_length":
            yield key, "limits prompt and text together; qkv limits new tokens: max_new_tokens"
        else:
            yield key, "it changes no text"


def _changes(source: Said, key: str, draws: bool) -> bool:
    """Return True if an unsupported setting changes texts."""
    neutral = WITHOUT[key] if key in WITHOUT else WITHOUT_IN_SAMPLING[key]
    return (key in WITHOUT or draws) and source.values[key] not in neutral and source.values[key] not in ([], {})


def _warn(source: Said, draws: bool, beams: int) -> None:
    """Warn of the unsupported settings that change texts."""
    named = [key for key in (*WITHOUT, *WITHOUT_IN_SAMPLING) if key in source.values and _changes(source, key, draws)]
    if draws and beams > 1:
        named.append("num_beams with do_sample")
    if source.values.get("early_stopping") == "never":
        named.append('early_stopping "never"')
    for name in named:
        warnings.warn(f"{source.file}: qkv does not support {name}, so texts are generated without it", stacklevel=2)


def _beams(config: Config) -> dict[str, Any]:
    """Read the settings of beam search."""
    return {
        "num_beams": config.integer("num_beams", 1),
        "length_penalty": config.number("length_penalty", 1.0),
        "early_stopping": config.values.get("early_stopping") is True,
    }


def _forbidden(config: Config) -> dict[str, Any]:
    """Read the settings that forbid tokens."""
    lists = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")
    return {
        **{name: tuple(config.items(name)) for name in lists},
        "no_repeat_ngram_size": config.integer("no_repeat_ngram_size", 0),
    }


def _strings(config: Config) -> tuple[str, ...]:
    value = config.values.get("stop_strings", ())
    return (value,) if isinstance(value, str) else tuple(value)


def _ends(folder: Path, settings: Config, config: Config) -> tuple[int, ...]:
    """Read the ids of the end tokens from ``eos_token_id`` or a GGUF file. Raises ``UserError``."""
    if is_gguf(folder):
        return ends_of(folder)
    named = settings.values.get("eos_token_id", config.values.get("eos_token_id"))
    listed = named if isinstance(named, list) else [] if named is None else [named]
    wrong = next((index for index in listed if type(index) is not int), None)
    if wrong is not None:
        raise UserError(f"{settings.source}: eos_token_id holds {wrong!r}; allowed: an id, or a list of ids")
    return tuple(index for index in listed if index >= 0)


def _own_end(tokenizer: Tokenizer | None) -> tuple[int, ...]:
    end = tokenizer.specials.get("eos") if tokenizer else None
    return () if end is None else (end,)
