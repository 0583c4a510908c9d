"""Chat template of a tokenizer: the file of it, and what folders of the transformers library say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.spec.errors import UserError

TEMPLATE_FILE = "chat_template.jinja"
"""File with the template, beside ``tokenizer.json``."""


def template_in(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Chat template of a folder: ``chat_template.jinja``, else that of ``tokenizer_config.json``, a text or a list of
    named ones of which "default" is taken; None without.

    ``settings``: contents of ``tokenizer_config.json``. Raises ``UserError`` if the file cannot be read.
    """
    file = folder / TEMPLATE_FILE
    if file.is_file():
        return read_template(file)
    given = settings.get("chat_template")
    if isinstance(given, list):
        named = {each.get("name"): each.get("template") for each in given if isinstance(each, dict)}
        given = named.get("default")
    return given if isinstance(given, str) else None


def read_template(file: Path) -> str:
    """Text of a template's file. Raises ``UserError`` if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the chat template {file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"the chat template {file} cannot be read: it is not UTF-8 text") from None
