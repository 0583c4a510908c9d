"""Chat template of a tokenizer: read its file or the settings in a folder of the transformers library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.system.errors import UserError

TEMPLATE_FILE = "chat_template.jinja"
"""File with the template, beside ``tokenizer.json``."""


FURTHER = "additional_chat_templates"
"""Folder with further templates, one a file."""
TOOL_USE = "tool_use"
"""Name of the template of chats with tools."""


def template_in(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template of a folder, or None if it has none.

    The template is the content of ``chat_template.jinja``, else the entry ``chat_template`` of
    ``tokenizer_config.json``, a string or a list of named templates, of which "default" is used. Chats with tools have
    the template "tool_use", if there is one: a file of ``additional_chat_templates``, else an entry of that list.
    ``settings``: contents of ``tokenizer_config.json``. Raises ``UserError`` if a file cannot be read.
    """
    entry = settings.get("chat_template")
    named = entry if isinstance(entry, list) else [{"name": "default", "template": entry}]
    templates = {each.get("name"): each.get("template") for each in named if isinstance(each, dict)}
    file, further = folder / TEMPLATE_FILE, folder / FURTHER / f"{TOOL_USE}.jinja"
    if file.is_file():
        templates = {"default": read_template(file)}
        templates |= {TOOL_USE: read_template(further)} if further.is_file() else {}
    return named_template(templates)


def named_template(templates: Mapping[Any, Any]) -> str | None:
    """Return one template for the named ones of a tokenizer; None without a text named "default"."""
    default, tools = templates.get("default"), templates.get(TOOL_USE)
    if not isinstance(default, str):
        return None
    return with_tools(default, tools) if isinstance(tools, str) else default


def with_tools(default: str, tools: str) -> str:
    """Return one template that renders chats with tools by the second of two, and others by the first."""
    # A line break at the end of a template is not rendered, and one after a block neither.
    texts = [f"{{{{ '' }}}}{text.removesuffix(chr(10))}{{{{ '' }}}}" for text in (tools, default)]
    return f"{{% if tools %}}{texts[0]}{{% else %}}{texts[1]}{{% endif %}}"


def read_template(file: Path) -> str:
    """Read the text of a chat template file. Raises ``UserError`` if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the chat template {file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"the chat template {file} cannot be read: it is not UTF-8 text") from None
