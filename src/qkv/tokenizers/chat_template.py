"""Chat templates: rendering of messages to the prompt that a model continues, as in the transformers library.

The template belongs to the tokenizer (``Tokenizer.chat_template``). It comes from ``chat_template.jinja``, from
``tokenizer_config.json`` or from the metadata of a GGUF file, and is kept when the model is trained, quantised or
exported. It is rendered in Jinja's sandbox. Special tokens written by the template are tokenized as such. Special
tokens that occur in a message are tokenized as plain text, so that a message cannot end itself. Without a template
chats are refused: qkv does not invent a format that the model was not trained on.
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

from qkv.system.errors import UserError
from qkv.tokenizers.special import special_ids
from qkv.tokenizers.tokenizer import Tokenizer

_SPECIAL, _PLACE, _END = "\ue000", "\ue003", "\ue001"
"""Private-use Unicode characters around the number in a marker."""
_MARKED = re.compile(f"([{_SPECIAL}{_PLACE}])([0-9]+){_END}")
"""Marker in a message that replaces the text of a special token, or stands for a picture."""
_ANSWER = "\ue002"
"""Text used as a dummy answer; no template contains it."""
NO_TEMPLATE = "no chat template, so the format of its chats is unknown"


def place_mark(number: int) -> str:
    """Return the marker that stands for picture ``number`` in the text of a message."""
    return f"{_PLACE}{number}{_END}"


def unmarked(text: str) -> str:
    """Remove characters from a message's text that could form the marker of a picture."""
    return text.replace(_PLACE, "\ufffd")


class ChatTemplate:
    """Compiled chat template of one model.

    source: text of the template. reads_tools: True if it uses the variable ``tools``.
    """

    def __init__(self, text: str, tokenizer: Tokenizer):
        """Compile the template ``text``. It may use the texts of special tokens as variables, such as ``bos_token``.
        Raises ``UserError`` for a template that cannot be compiled.
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
        """Render the text that the model continues. Raises ``UserError`` for messages that the template refuses."""
        context = {"tools": None, "documents": None, "add_generation_prompt": True, **self._variables, **variables}
        try:
            return self._template.render(messages=list(messages), **context)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise UserError(f"messages: the chat template refuses them: {error}") from None

    def ids(
        self,
        messages: Sequence[dict[str, Any]],
        opening: str = "",
        spans: Sequence[Sequence[int]] = (),
        **variables: Any,
    ) -> list[int]:
        """Render and tokenize messages, followed by ``opening``, the start of the answer.

        spans: placeholder ids of each picture, which replace its marker (``place_mark``).
        """
        marked = {name: self._marked(value) for name, value in variables.items()}
        text = self.text([self._marked(message) for message in messages], **marked) + opening
        reading, ids, begin = self._tokenizer.reading_special, list[int](), 0
        for mark in _MARKED.finditer(text):
            ids += reading.encode(text[begin : mark.start()]) if mark.start() > begin else []
            ids += self._ids_of_mark(mark[1], int(mark[2]), spans)
            begin = mark.end()
        return ids + (reading.encode(text[begin:]) if text[begin:] else [])

    def _ids_of_mark(self, kind: str, number: int, spans: Sequence[Sequence[int]]) -> Sequence[int]:
        if kind == _SPECIAL:
            return self._tokenizer.encode(self._specials[number])
        return spans[number] if number < len(spans) else ()

    def answer(self, message: dict[str, Any], **variables: Any) -> str:
        """Render ``message`` as an answer of the model, without the text that the template puts around every answer.
        Raises ``UserError``.
        """
        question = {"role": "user", "content": "?"}
        plain = {"role": "assistant", "content": _ANSWER}
        chat, usual = (
            self.text([question, each], **variables, add_generation_prompt=False) for each in (message, plain)
        )
        opening, _, closing = usual.rpartition(_ANSWER)
        return chat.removeprefix(opening).removesuffix(closing).strip()

    def _marked(self, value: Any) -> Any:
        """Replace the text of each special token by a marker, in all strings of nested plain data."""
        if isinstance(value, dict):
            return {self._marked(key): self._marked(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._marked(each) for each in value]
        if not isinstance(value, str):
            return value
        text = value.replace(_SPECIAL, "\ufffd")
        for number, special in enumerate(self._specials):
            text = text.replace(special, f"{_SPECIAL}{number}{_END}")
        return text


def find_template(tokenizer: Tokenizer) -> ChatTemplate:
    """Compile the chat template of a tokenizer. Raises ``UserError`` if it has none, or if it cannot be compiled."""
    if tokenizer.chat_template is None:
        raise UserError(f"the tokenizer has {NO_TEMPLATE}")
    return ChatTemplate(tokenizer.chat_template, tokenizer)


class _Generation(Extension):
    """Jinja block ``{% generation %}``, which marks answers for training; its content is rendered unchanged."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # Jinja's own tojson escapes HTML characters


def _raise(sentence: str) -> NoReturn:
    raise jinja2.TemplateError(sentence)
