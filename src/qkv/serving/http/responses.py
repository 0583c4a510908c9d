"""``/v1/responses``: chats in the format of OpenAI's Responses API, which go on from earlier responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qkv.data.records.conversations.contents import text_of
from qkv.serving.engine.service import Service
from qkv.serving.http.answers import answer
from qkv.serving.http.completions import asked_to_chat, writer
from qkv.serving.http.items import ResponseLayout
from qkv.serving.http.reading import read_body
from qkv.serving.limits import MAX_LOGPROBS
from qkv.serving.requests import structure as read
from qkv.serving.requests.bodies import GenerationBody, Neutral, only
from qkv.serving.requests.chats import ChatBody, ChatMessage, choice_of, tools_of
from qkv.serving.requests.effects import Lenient, NoEffect
from qkv.spec.errors import Problem, SpecError
from qkv.system.errors import quoted

LOGPROBS = "message.output_text.logprobs"
KINDS = ("message", "function_call", "function_call_output", "reasoning")


def _messages(value: Any) -> Any:
    """Convert ``input``, a text or a list of items, to chat messages."""
    if isinstance(value, tuple):  # already converted
        return value
    items: list[Any] = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise ValueError(f"{quoted(value)} given; allowed: a text, or a list of items")
    messages, thoughts = list[dict[str, Any]](), ""
    for place, item in enumerate(items):
        kind = item.get("type", "message") if isinstance(item, dict) else item
        if not isinstance(kind, str) or kind not in KINDS:
            raise ValueError(f"item {place + 1} has the type {quoted(kind)}; allowed: {', '.join(KINDS)}")
        if kind == "reasoning":
            thoughts += _thoughts(item)
            continue
        _add(messages, item, kind)
        if thoughts and messages[-1].get("role") == "assistant":
            messages[-1]["reasoning_content"] = thoughts
        thoughts = ""  # reasoning belongs to the item after it
    return tuple(_message(place, each) for place, each in enumerate(messages))


def _add(messages: list[dict[str, Any]], item: dict[str, Any], kind: str) -> None:
    """Append an item to the messages; a tool call is added to the assistant's message before it."""
    if kind == "message":
        messages.append(dict(item))
    elif kind == "function_call_output":
        output = text_of(item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    else:
        if not messages or messages[-1].get("role") != "assistant":
            messages.append({"role": "assistant", "content": None})
        function = {"name": item.get("name"), "arguments": item.get("arguments", "")}
        messages[-1].setdefault("tool_calls", []).append({"id": item.get("call_id"), "function": function})


def _thoughts(item: Mapping[str, Any]) -> str:
    """Return the text of a reasoning item: its content, or its summary if it has none."""
    parts = item.get("content") or item.get("summary") or ()
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _message(place: int, fields: dict[str, Any]) -> ChatMessage:
    try:
        return ChatMessage.parse(fields)
    except SpecError as error:
        raise ValueError(f"message {place + 1}: {error}") from None


def _tools(value: Any) -> Any:
    """Convert tools to the format of chats, in which a function is a nested object."""
    if not isinstance(value, list):
        return tools_of(value)
    wrong = next((tool for tool in value if not isinstance(tool, dict) or tool.get("type") != "function"), None)
    if wrong is not None:
        kind = wrong.get("type") if isinstance(wrong, dict) else wrong
        raise ValueError(f"a tool of the type {quoted(kind)} given; allowed: function")
    functions = [{name: each for name, each in tool.items() if name != "type"} for tool in value]
    return tools_of([{"type": "function", "function": f.get("function", f)} for f in functions])


def _choice(value: Any) -> Any:
    """Convert ``tool_choice`` to the format of chats."""
    if isinstance(value, dict) and value.get("type") == "function" and "name" in value:
        value = {"type": "function", "function": {"name": value["name"]}}
    return choice_of(value)


def _format(value: Any) -> Any:
    """Convert ``text.format`` to the format of ``response_format``, in which a schema is a nested object."""
    if isinstance(value, dict) and value.get("type") == "json_schema" and "json_schema" not in value:
        value = {"type": "json_schema", "json_schema": {name: each for name, each in value.items() if name != "type"}}
    return read.response_format(value)


class TextOptions(Lenient):
    """Options for the text of an answer: its format."""

    format: Annotated[Any, BeforeValidator(_format)] = None
    verbosity: NoEffect = None

    @property
    def said(self) -> dict[str, Any]:
        """``format`` as it is repeated in the response."""
        if self.format is None:
            return {"type": "text"}
        return {"type": "json_schema", "name": "schema", "schema": json.loads(self.format.text), "strict": True}


class ReasoningOptions(Lenient):
    """Options for the reasoning: its effort. Reasoning is always returned as it is, never as a summary."""

    effort: str | None = None
    summary: NoEffect = None
    generate_summary: NoEffect = None


class ResponsesBody(GenerationBody):
    """Body of ``/v1/responses``. Parameters that OpenAI's interface lacks are the same as for chats."""

    input: Annotated[tuple[ChatMessage, ...], BeforeValidator(_messages)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=0)
    text: TextOptions | None = None
    tools: Annotated[Any, BeforeValidator(_tools)] = None
    tool_choice: Annotated[Any, BeforeValidator(_choice)] = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    include: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    n: Annotated[Any, BeforeValidator(only(1))] = None
    previous_response_id: str | None = None
    conversation: Neutral = None
    prompt: Neutral = None
    background: Annotated[Any, BeforeValidator(only(False))] = None
    truncation: NoEffect = None
    reasoning: ReasoningOptions | None = None
    max_tool_calls: NoEffect = None

    def problems(self) -> list[Problem]:
        if self.text is not None and self.text.format is not None and self._structures:
            return [Problem((self._structures[0].name,), "it cannot be combined with text.format; leave one out")]
        return super().problems()

    @property
    def scored(self) -> bool:
        """True if log-probabilities are part of the answer."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def to_chat(self, earlier: Sequence[ChatMessage] = ()) -> ChatBody:
        """Convert the body to that of an equivalent chat. earlier: messages up to the previous response. Raises
        ``SpecError``.
        """
        fields = {name: getattr(self, name) for name in (*GenerationBody.model_fields, *_SHARED)}
        first = [] if self.instructions is None else [ChatMessage(role="system", content=self.instructions)]
        fields |= {"messages": (*first, *earlier, *self.input), "max_completion_tokens": self.max_output_tokens}
        if self.scored:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        if self.text is not None and self.text.format is not None:
            fields["response_format"] = self.text.format
        if self.reasoning is not None:
            fields["reasoning_effort"] = self.reasoning.effort or self.reasoning_effort
        return ChatBody.parse({**fields, "stream_options": None})

    @property
    def keeps(self) -> bool:
        """True if later requests may go on from the response."""
        return self.store is not False

    def echo(self) -> dict[str, Any]:
        """Return the fields of the request that are repeated in its response."""
        missing = {"parameters": None, "strict": None}
        tools = [{**missing, **tool["function"], "type": "function"} for tool in self.tools or ()]
        named = {"type": "function", "name": self.tool_choice[0]} if isinstance(self.tool_choice, tuple) else None
        names = ("instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs", "user", "metadata")
        return {
            **{name: getattr(self, name) for name in names},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "tool_choice": named or self.tool_choice or "auto",
            "tools": tools,
            "text": {"format": self.text.said if self.text is not None else {"type": "text"}},
            "reasoning": {"effort": self.reasoning and self.reasoning.effort, "summary": None},
            "previous_response_id": self.previous_response_id,
            "store": self.keeps,
            "background": False,
            "truncation": "disabled",
        }


_SHARED = ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "enable_thinking")
"""Parameters that chats have under the same names, besides those of ``GenerationBody``."""


async def responses(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/responses``: the next output items of a chat."""
    body = await read_body(http, ResponsesBody, service.limits)
    model = writer(service, body.model)
    earlier = service.conversations.find(body.previous_response_id) if body.previous_response_id else ()

    def keep(name: str, items: list[dict[str, Any]]) -> None:
        service.conversations.add(name, (*earlier, *body.input, *_messages(items)))

    layout = ResponseLayout(body.echo(), keep if body.keeps else None)
    texts = await asyncio.to_thread(lambda: asked_to_chat(model, body.to_chat(earlier), service, layout))
    http.state.ignored += texts.ignored
    return await answer(http, texts)
