"""Tokens that end a text of a model."""

from __future__ import annotations

from typing import Any

from qkv.interop.folder import read_json
from qkv.interop.places import CONFIG, GENERATION
from qkv.runs.run import Run


def end_ids(run: Run) -> frozenset[int]:
    """Ids that end a text: those that a published folder names in ``generation_config.json`` or ``config.json``, and
    the end token of the tokenizer.
    """
    own = run.tokenizer.special("eos")
    named: Any = None
    for name in (GENERATION, CONFIG):
        if named is None and (run.folder / name).is_file():
            named = read_json(run.folder / name).get("eos_token_id")
    listed = named if isinstance(named, list) else [named]
    return frozenset(index for index in (own, *listed) if isinstance(index, int))
