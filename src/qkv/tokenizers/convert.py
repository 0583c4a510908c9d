"""Convert tokenizers of other libraries to ``Tokenizer``."""

from __future__ import annotations

import os
from typing import Any

import tokenizers

from qkv.system.errors import UserError
from qkv.tokenizers.chat import named_template
from qkv.tokenizers.tokenizer import Tokenizer


def convert_tokenizer(source: Any) -> Tokenizer:
    """Return a ``Tokenizer`` for a tokenizer, for a file or folder that holds one, or for a run.

    Tokenizers of the libraries ``tokenizers`` and ``transformers`` are copied. Raises ``UserError`` for anything else.
    """
    if isinstance(source, Tokenizer):
        return source
    if isinstance(source, (str, os.PathLike)):
        return Tokenizer.load(source)
    core = getattr(source, "backend_tokenizer", source)
    if isinstance(core, tokenizers.Tokenizer):
        template = getattr(source, "chat_template", None)
        named = template if isinstance(template, dict) else {"default": template}
        return Tokenizer(tokenizers.Tokenizer.from_str(core.to_str()), chat_template=named_template(named))
    attribute = getattr(source, "tokenizer", None)
    if isinstance(attribute, Tokenizer):
        return attribute
    raise UserError(
        f"tokenizer: {type(source).__name__} given; allowed: a tokenizer, a run, or the path of a tokenizer.json "
        "or its "
        "folder"
    )
