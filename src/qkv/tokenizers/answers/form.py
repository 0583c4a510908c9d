"""Form of a model's answers: how it writes reasoning and tool calls, and what its chat template reads of them.

The form is found by rendering: of the registered forms of calls, the model's is the one that reads a call from the
template's rendering of it, and the tags of the reasoning are those that the template writes around it. Where a template
renders no reasoning, because it drops that of earlier turns or asks for it in words, the form is the registered one
whose end the template names, or whose tags are tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from qkv.system.errors import UserError
from qkv.tokenizers.answers.calls import CALLS, CallForm, schemas_of
from qkv.tokenizers.answers.reader import AnswerReader, ChannelReader, TaggedReader
from qkv.tokenizers.answers.thoughts import THOUGHTS, ThinkingForm
from qkv.tokenizers.chat_template import ChatTemplate

_QUESTION = {"role": "user", "content": "?"}
_NAME, _ARGUMENTS = "probe", {"key": "value"}
_TOOL = {"type": "function", "function": {"name": _NAME, "description": "", "parameters": {"type": "object"}}}
_THOUGHT, _CONTENT = "\ue010", "\ue011"
"""Texts that no template contains, in place of reasoning and content."""
_KEYS = ("reasoning_content", "reasoning", "thinking", "parts")
"""Keys of a message in which templates read reasoning; ``parts``: as a part of the content."""
_TAG = re.compile(r"[<\[◁][^\s<>\[\]◁▷]+[>\]▷]\s*\Z")
"""Tag at the end of a text."""
_SHORT = re.compile(r"[A-Za-z0-9]{9}\Z")


@dataclass(frozen=True)
class History:
    """Keys and types that a chat template reads in an earlier message of the assistant.

    reasoning: key of its reasoning; "content": in its text, between tags; "": not at all. arguments_as_text: the
    arguments of a call as JSON text, not as an object. empty: content of a message that only calls.
    """

    reasoning: str = ""
    arguments_as_text: bool = False
    empty: str | None = ""


@dataclass(frozen=True)
class AnswerForm:
    """Form of a model's answers. thinking, calls: forms of reasoning and of tool calls, None if there is none."""

    thinking: ThinkingForm | None = None
    calls: CallForm | None = None
    history: History = History()

    def reader(
        self, prompt: str = "", tools: Sequence[Mapping[str, Any]] = (), most: int | None = None
    ) -> AnswerReader:
        """Return a reader of one answer.

        prompt: text before the answer, of which the end suffices. tools: tools that may be called, in OpenAI's form;
        without, no calls are read. most: maximum number of calls.
        """
        calls, schemas = (self.calls, schemas_of(tools)) if tools else (None, None)
        channels = self.thinking is not None and self.thinking.channels
        reader = ChannelReader(calls, schemas, most) if channels else TaggedReader(self.thinking, calls, schemas, most)
        if self.thinking is not None and (opening := self.thinking.opening(prompt)):
            reader.begin(opening)
        return reader

    def to_template(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages in the form that the template reads; reasoning is given as ``reasoning_content``."""
        return [self._message(dict(message)) for message in messages]

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("role") == "tool" and self.calls and self.calls.short_ids and message.get("tool_call_id"):
            return {**message, "tool_call_id": _short(message["tool_call_id"])}
        thought = message.pop("reasoning_content", None)
        if thought:
            message = self._with_reasoning(message, thought)
        if message.get("tool_calls"):
            message["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
            message["content"] = message.get("content") or self.history.empty
        return message

    def _with_reasoning(self, message: dict[str, Any], thought: str) -> dict[str, Any]:
        key, content = self.history.reasoning, message.get("content") or ""
        if key == "content" and self.thinking is not None:
            if not content and message.get("tool_calls"):  # such templates write calls or content
                return message
            return {**message, "content": f"{self.thinking.begin}\n{thought}\n{self.thinking.end}\n\n{content}"}
        if key == "parts":
            text = [{"type": "text", "text": content}] if content else []
            return {**message, "content": [{"type": "thinking", "thinking": thought}, *text]}
        return {**message, key: thought} if key else message

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function, changed = dict(call["function"]), dict(call)
        if self.history.arguments_as_text and not isinstance(function.get("arguments"), str):
            function["arguments"] = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
        if self.calls and self.calls.short_ids:
            changed["id"] = _short(str(call.get("id", "")))
        return {**changed, "function": function}


def _short(identity: str) -> str:
    """Return an id of nine letters and digits; another one becomes a digest of itself."""
    return identity if _SHORT.match(identity) else hashlib.sha256(identity.encode()).hexdigest()[:9]


def answer_form(template: ChatTemplate) -> AnswerForm:
    """Find the form of the answers of the model to which a chat template belongs."""
    thinking, key = _thinking(template)
    calls, as_text, empty = _calls(template) if template.reads_tools else (None, False, "")
    return AnswerForm(thinking, calls, History(key, as_text, empty))


NO_TOOLS = "the chat template of this model does not support tools"


def calls_of(template: ChatTemplate, form: AnswerForm) -> CallForm:
    """Return the form of a model's tool calls.

    Raises ``UserError`` if its chat template reads no tools, or writes calls in an unknown form.
    """
    if not template.reads_tools:
        raise UserError(f"tools: {NO_TOOLS}")
    if form.calls is None:
        names = ", ".join(each.name for each in CALLS.all())
        raise UserError(
            f"tools: the chat template of this model writes tool calls in a form that is not supported; supported are "
            f"the forms {names}"
        )
    return form.calls


def _calls(template: ChatTemplate) -> tuple[CallForm | None, bool, str | None]:
    """Find the form of calls; return it with the fields ``arguments_as_text`` and ``empty`` of ``History``.

    If several forms read the call, the one that leaves the least text unread is chosen.
    """
    for as_text, empty in product((False, True), ("", None)):
        arguments = json.dumps(_ARGUMENTS) if as_text else _ARGUMENTS
        call = {"id": "call00001", "type": "function", "function": {"name": _NAME, "arguments": arguments}}
        message = {"role": "assistant", "content": empty, "tool_calls": [call]}
        texts = list(_renderings(template, message))
        pairs = [(form, _rest(form, text)) for form in CALLS.all() for text in texts]
        rests = [(rest, form) for form, rest in pairs if rest is not None]
        if rests:
            return min(rests, key=lambda each: each[0])[1], as_text, empty
    return None, False, ""


def _renderings(template: ChatTemplate, message: dict[str, Any]) -> Iterator[str]:
    """Yield the text of a message as an answer, without what surrounds every answer and after the end of the prompt."""
    for keys in ({}, {"enable_thinking": False}):
        try:
            yield template.answer(message, tools=[_TOOL], **keys)
            whole, prompt = (
                template.text(messages, tools=[_TOOL], add_generation_prompt=False, **keys)
                for messages in ([_QUESTION, message], [_QUESTION])
            )
        except UserError:
            continue
        if whole.startswith(prompt):
            yield whole[len(prompt) :].removeprefix("<|start|>assistant")


def _rest(form: CallForm, text: str) -> tuple[int, bool] | None:
    """Return how far a form is from a rendered call: the number of characters that it leaves unread, and True if it
    would write the call otherwise. None if it reads no call, or a different one.
    """
    schemas, channels = schemas_of([_TOOL]), "<|channel|>" in text
    if channels != (form.name == "harmony"):
        return None
    reader = ChannelReader(form, schemas) if channels else TaggedReader(None, form, schemas)
    part = reader.feed(text) + reader.flush()
    if [(call.name, _tree(call.arguments)) for call in part.calls] != [(_NAME, _ARGUMENTS)]:
        return None
    written = form.write([(_NAME, _ARGUMENTS)])
    return len(part.content.strip()), "".join(written.split()) not in "".join(text.split())


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _thinking(template: ChatTemplate) -> tuple[ThinkingForm | None, str]:
    """Return the form of the reasoning, and the key of a message in which the template reads it."""
    forms = [form for form in THOUGHTS.all() if all(text in template.source for text in form.named)]
    for key in _KEYS:
        text = _with_reasoning(template, key)
        if _THOUGHT in text:
            tags = _tags(template, text) or ("", "")
            form = next((form for form in forms if form.channels or tags[1].startswith(form.end)), None)
            return form or (ThinkingForm("rendered", *tags) if all(tags) else None), key
    plain = (form for form in THOUGHTS.all() if not (form.dropped or form.channels))
    forms += [form for form in plain if template.has_tokens(form.begin, form.end)]
    form = forms[0] if forms else None
    inside = form is not None and not form.channels and _reads_inside(template, form)
    return form, "content" if inside else ""


def _with_reasoning(template: ChatTemplate, key: str) -> str:
    """Render an answer with reasoning under ``key``; "" if the template refuses it."""
    message = {"role": "assistant", "content": _CONTENT, key: _THOUGHT}
    if key == "parts":
        parts = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": _CONTENT}]
        message = {"role": "assistant", "content": parts}
    try:
        return template.text([_QUESTION, message], add_generation_prompt=False)
    except UserError:
        return ""


def _tags(template: ChatTemplate, text: str) -> tuple[str, str] | None:
    """Return the tags around the reasoning in the rendering of an answer; None if there are none."""
    before, _, after = text.rpartition(_THOUGHT)
    between, content, _ = after.partition(_CONTENT)
    tag, prompt = _TAG.search(before), _prompt(template)
    begin = tag[0].strip() if tag else before[len(prompt) :].strip() if prompt and before.startswith(prompt) else ""
    return (begin, between.strip()) if content and begin and between.strip() else None


def _prompt(template: ChatTemplate) -> str:
    """Return the prompt of a question; "" if the template refuses it."""
    try:
        return template.text([_QUESTION])
    except UserError:
        return ""


def _reads_inside(template: ChatTemplate, form: ThinkingForm) -> bool:
    """Return True if the template handles reasoning between tags in a message's content: it drops that of an earlier
    turn.
    """
    answer = {"role": "assistant", "content": f"{form.begin}\n{_THOUGHT}\n{form.end}\n\n{_CONTENT}"}
    try:
        text = template.text([_QUESTION, answer, _QUESTION])
    except UserError:
        return False
    return _CONTENT in text and _THOUGHT not in text


def end_texts(template: ChatTemplate, form: AnswerForm) -> tuple[str, ...]:
    """Return the texts of the special tokens that end an answer in the format of the template, such as ``<|im_end|>``.

    They end a chat even where the settings of the model name only the end token of its base.
    """
    if form.thinking is not None and form.thinking.ends:
        return tuple(text for text in form.thinking.ends if template.has_tokens(text))
    message = {"role": "assistant", "content": _CONTENT}
    try:
        text = template.text([_QUESTION, message], add_generation_prompt=False)
    except UserError:
        return ()
    after = text.rpartition(_CONTENT)[2].lstrip()
    return tuple(special for special in template.specials if after.startswith(special))[:1]
