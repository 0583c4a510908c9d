"""Chat templates: messages to the text that a model continues, rendered as the transformers library does.

The template is that of the checkpoint: ``chat_template.jinja``, or ``chat_template`` in ``tokenizer_config.json``. It
is rendered in the sandbox of Jinja. Special tokens that it writes are read as such; those that occur in a message are
read as plain text, so that a message cannot end itself. Without a template:

    User: the first message
    Assistant: the answer
    User: the second message
    Assistant:

A message of the system stands before it, followed by an empty line. The answer ends before "\\nUser:".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qkv.interop.folder import read_json
from qkv.interop.places import TOKENIZER_CONFIG
from qkv.spec.errors import UserError
from qkv.tokenizers.special import special_ids
from qkv.tokenizers.tokenizer import Tokenizer

TEMPLATE_FILE = "chat_template.jinja"
PLAIN = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content + '\\n\\n' }}"
    "{% else %}{{ message.role | capitalize + ': ' + message.content + '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
PLAIN_STOP = "\nUser:"
_MARKED = re.compile("\ue000([0-9]+)\ue001")
"""Place of a special token's text within a message; these characters belong to no alphabet."""
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """Compiled template of chats of one model.

    source: its text. stop: strings that end an answer. reads_tools: it has a place for tools.
    """

    def __init__(self, text: str, tokenizer: Tokenizer, variables: dict[str, Any], stop: tuple[str, ...] = ()):
        """``variables``: what the template may name besides the messages, such as ``bos_token``. Raises ``UserError``
        for a template that cannot be read.
        """
        self.source, self.stop, self._tokenizer, self._variables = text, stop, tokenizer, variables
        self._specials = sorted(special_ids(tokenizer.core), key=len, reverse=True)
        try:
            self._template = _environment().from_string(text)
            self.reads_tools = "tools" in meta.find_undeclared_variables(_environment().parse(text))
        except jinja2.TemplateError as error:
            raise UserError(f"the chat template cannot be read: {error}") from None

    def text(self, messages: Sequence[dict[str, Any]], **variables: Any) -> str:
        """Text that the model continues. Raises ``UserError`` for messages that the template refuses."""
        given = {"tools": None, "documents": None, "add_generation_prompt": True, **self._variables, **variables}
        try:
            return self._template.render(messages=list(messages), **given)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise UserError(f"messages: the chat template refuses them: {error}") from None

    def ids(self, messages: Sequence[dict[str, Any]], opening: str = "", **variables: Any) -> list[int]:
        """Ids of ``text`` and of ``opening``, with which the answer begins."""
        marked = {name: self._marked(value) for name, value in variables.items()}
        pieces = _MARKED.split(self.text([self._marked(message) for message in messages], **marked) + opening)
        reading, found = self._tokenizer.reading_special, list[int]()
        for place, piece in enumerate(pieces):
            if place % 2:
                found += self._tokenizer.encode(self._specials[int(piece)])
            elif piece:
                found += reading.encode(piece)
        return found

    def _marked(self, value: Any) -> Any:
        """Plain data with a mark in the place of each special token in its texts."""
        if isinstance(value, dict):
            return {self._marked(key): self._marked(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._marked(each) for each in value]
        if not isinstance(value, str):
            return value
        text = value.replace("\ue000", "\ufffd")
        for number, special in enumerate(self._specials):
            text = text.replace(special, f"\ue000{number}\ue001")
        return text


def find_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    """Template of the checkpoint in ``folder``, or the plain one. Raises ``UserError`` if it cannot be read."""
    path = folder / TOKENIZER_CONFIG
    settings = read_json(path) if path.is_file() else {}
    variables = {name: _content(settings[name]) for name in _TOKENS if settings.get(name)}
    try:
        text = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        text = _default(settings.get("chat_template"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{folder / TEMPLATE_FILE} cannot be read: {error}") from None
    if text is None:
        return ChatTemplate(PLAIN, tokenizer, variables, (PLAIN_STOP,))
    return ChatTemplate(text, tokenizer, variables)


def _default(given: Any) -> str | None:
    """The template of ``tokenizer_config.json``: a text, or a list of named ones, of which "default" is taken."""
    if isinstance(given, list):
        named = {each.get("name"): each.get("template") for each in given if isinstance(each, dict)}
        given = named.get("default")
    return given if isinstance(given, str) else None


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


class _Generation(Extension):
    """The block ``{% generation %}``, which marks answers for training; its content is written as it is."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    found = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    found.filters["tojson"] = _json
    found.globals["raise_exception"] = _raise
    found.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return found


def _json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # Jinja's own escapes characters of HTML


def _raise(sentence: str) -> NoReturn:
    raise jinja2.TemplateError(sentence)
