"""Chat templates: messages to the text that a model continues, rendered as the transformers library does.

The template is that of the tokenizer (``Tokenizer.chat_template``), which comes from ``chat_template.jinja``, from
``tokenizer_config.json`` or from the metadata of a GGUF file, and goes along when the model is trained, quantised or
exported. It is rendered in the sandbox of Jinja. Special tokens that it writes are read as such; those that occur in a
message are read as plain text, so that a message cannot end itself. Without a template there is no chat: no form is
invented that the model was not trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qkv.spec.errors import UserError
from qkv.tokenizers.special import special_ids
from qkv.tokenizers.tokenizer import Tokenizer

_MARKED = re.compile("\ue000([0-9]+)\ue001")
"""Place of a special token's text within a message; these characters belong to no alphabet."""
_ANSWER = "\ue002"
"""Answer that no template contains."""
NO_TEMPLATE = "no chat template, so it is not known how a chat is written for it"


class ChatTemplate:
    """Compiled template of chats of one model.

    source: its text. reads_tools: it has a place for tools.
    """

    def __init__(self, text: str, tokenizer: Tokenizer):
        """Besides the messages, the template may name the special tokens, such as ``bos_token``. Raises ``UserError``
        for a template that cannot be read.
        """
        self.source, self._tokenizer = text, tokenizer
        named = {role: tokenizer.core.id_to_token(index) for role, index in tokenizer.specials.items()}
        self._variables = {f"{role}_token": content for role, content in named.items()}
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

    def answer(self, message: dict[str, Any], **variables: Any) -> str:
        """Text with which a model answers by ``message``, without what the template adds to each answer. Raises
        ``UserError``.
        """
        question = {"role": "user", "content": "?"}
        plain = {"role": "assistant", "content": _ANSWER}
        chat, usual = (
            self.text([question, each], **variables, add_generation_prompt=False) for each in (message, plain)
        )
        opening, _, closing = usual.rpartition(_ANSWER)
        return chat.removeprefix(opening).removesuffix(closing).strip()

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


def find_template(tokenizer: Tokenizer) -> ChatTemplate:
    """Chat template of a tokenizer. Raises ``UserError`` if it has none, or one that cannot be read."""
    if tokenizer.chat_template is None:
        raise UserError(f"the tokenizer has {NO_TEMPLATE}")
    return ChatTemplate(tokenizer.chat_template, tokenizer)


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
