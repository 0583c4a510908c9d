"""Chat template of a tokenizer: read its file or the settings in a folder of the transformers library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.system.errors import UserError

TEMPLATE_FILE = "chat_template.jinja"
"""File with the template, beside ``tokenizer.json``."""


def template_in(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template of a folder, or None if it has none.

    The template is the content of ``chat_template.jinja``, else the entry ``chat_template`` of
    ``tokenizer_config.json``. That entry is a string, or a list of named templates, of which "default" is used.
    ``settings``: contents of ``tokenizer_config.json``. Raises ``UserError`` if the file cannot be read.
    """
    file = folder / TEMPLATE_FILE
    if file.is_file():
        return read_template(file)
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def read_template(file: Path) -> str:
    """Read the text of a chat template file. Raises ``UserError`` if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the chat template {file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"the chat template {file} cannot be read: it is not UTF-8 text") from None
