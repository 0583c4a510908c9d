"""Generation settings of a published checkpoint, from ``generation_config.json`` or, in older folders,
``config.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv.interop.folder import read_json
from qkv.interop.mapping.config import Config
from qkv.interop.places import GENERATION
from qkv.spec.generation import Generation
from qkv.tokenizers.tokenizer import Tokenizer


def going_on(folder: Path, tokenizer: Tokenizer | None) -> Generation:
    """Generation settings of a published decoder-only model: greedy unless ``do_sample`` is set. Generation stops at
    the end-of-text token.
    """
    said = Config(_said(folder), str(folder / GENERATION))
    draws = said.flag("do_sample", False)
    end = tokenizer.specials.get("eos") if tokenizer else None
    piece = tokenizer.core.id_to_token(end) if tokenizer and end is not None else None
    return Generation(
        temperature=said.number("temperature", 1.0) if draws else 0.0,
        top_k=(said.integer("top_k", 0) or None) if draws else None,
        top_p=said.number("top_p", 1.0) if draws and said.has("top_p") else None,
        repetition_penalty=said.number("repetition_penalty", 1.0),
        stop=(piece,) if piece else (),
    )


def answering(folder: Path, config: Config) -> Generation:
    """Generation settings of a published encoder–decoder: beam search with ``num_beams`` (default 1) up to the stated
    maximum length.

    Stated lengths include the tokens of ``beginning``: ``max_length`` all of them, ``max_new_tokens`` those after the
    first.
    """
    said = Config({**config.values, **_said(folder)}, str(folder / GENERATION))
    longest = said.integer("max_new_tokens") + 1 if said.has("max_new_tokens") else said.integer("max_length", 0)
    longest -= len(beginning(folder, config))
    found = Generation(
        temperature=0.0,
        num_beams=said.integer("num_beams", 1),
        length_penalty=said.number("length_penalty", 1.0),
        early_stopping=said.values.get("early_stopping") is True,
    )
    return found.changed(max_new_tokens=longest) if longest > 0 else found


def beginning(folder: Path, config: Config) -> tuple[int, ...]:
    """Ids that the decoder of a published encoder–decoder starts with: its start token and a forced first token, if
    any.
    """
    said = Config({**config.values, **_said(folder)}, str(folder / GENERATION))
    first = "decoder_start_token_id" if said.has("decoder_start_token_id") else "bos_token_id"
    old = said.flag("force_bos_token_to_be_generated", False) and not said.has("forced_bos_token_id")
    second = "bos_token_id" if old else "forced_bos_token_id"
    return tuple(said.integer(key) for key in (first, second) if said.has(key))


def _said(folder: Path) -> dict[str, Any]:
    if not (folder / GENERATION).is_file():
        return {}
    return {key: value for key, value in read_json(folder / GENERATION).items() if value is not None}
