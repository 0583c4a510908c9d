"""Bodies of chats, in the form of OpenAI's interface: messages, tools and their calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from qkv.data.records.conversations.contents import Picture, content_of
from qkv.data.records.conversations.messages import read_arguments
from qkv.serving.limits import MAX_LOGPROBS, MAX_TOOLS
from qkv.serving.requests.bodies import GenerationBody, Neutral, Unused, only
from qkv.serving.requests.effects import Lenient, NoEffect
from qkv.spec.base import Seq
from qkv.spec.errors import Problem, SpecError
from qkv.system.errors import nearest, quoted
from qkv.tasks.chats.pictures import marked
from qkv.tokenizers.chat_template import open_ended

CHOICES = ("none", "auto", "required")


class CalledFunction(Lenient):
    """Function of a call, with its arguments."""

    name: str
    arguments: Annotated[dict[str, Any], BeforeValidator(read_arguments)]


class MessageCall(Lenient):
    """Call of a tool in a message of the assistant. index: ignored; clients copy it from streamed answers."""

    index: Unused = None
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def to_template(self) -> dict[str, Any]:
        """Return the call in the form that chat templates read."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {**({"id": self.id} if self.id else {}), "type": self.type, "function": function}


class Function(Lenient):
    """Function that a model may call. parameters: JSON schema of its arguments."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.\-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Lenient):
    """Tool that a model may use."""

    type: Literal["function"]
    function: Function


def tools_of(value: Any) -> Any:
    """Validate tools and return them unchanged, because the chat template renders them as given."""
    if not value:
        return None
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        amount = f"{len(value)} tools" if isinstance(value, list) else quoted(value)
        raise ValueError(f"{amount} given; allowed: a list of at most {MAX_TOOLS}")
    names = set[str]()
    for place, each in enumerate(value):
        try:
            name = Tool.parse(each).function.name
        except SpecError as error:
            raise ValueError(f"tool {place + 1}: {error}") from None
        if name in names:
            raise ValueError(f"the function {name!r} is given twice; each tool needs a different name")
        names.add(name)
    return value


def choice_of(value: Any) -> Any:
    """Validate ``tool_choice``; return one of ``CHOICES``, or a tuple with the name of a function."""
    if value is None or value in CHOICES or isinstance(value, tuple):
        return value
    named = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if not isinstance(named, dict) or not isinstance(named.get("name"), str):
        function = '{"type": "function", "function": {"name": "…"}}'
        raise ValueError(f"{quoted(value)} given; allowed: {', '.join(CHOICES)}, {function}")
    return (named["name"],)


class ChatMessage(Lenient):
    """Message of a chat: ``content`` is a text, or the texts and pictures of its parts in order.

    The role ``function`` and ``function_call`` are OpenAI's older names of a tool's message and of a tool call;
    ``reasoning_content``, also as ``reasoning``, is the reasoning of the model; ``refusal`` is the text of a refused
    answer; ``prefix``: the answer continues this message, which is the last.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[Any, BeforeValidator(content_of)] = None
    name: str | None = None
    tool_calls: Seq[MessageCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    prefix: bool | None = None
    refusal: str | None = None
    function_call: CalledFunction | None = None
    audio: Neutral = None
    annotations: Unused = None
    id: Unused = None
    type: Unused = None
    status: Unused = None

    @property
    def calls(self) -> list[MessageCall]:
        """Tool calls of the message, in OpenAI's current or older form."""
        calls = [] if self.function_call is None else [MessageCall(function=self.function_call)]
        return [*(self.tool_calls or ()), *calls]

    def problems(self) -> list[Problem]:
        if self.role != "assistant" and (self.calls or self.prefix):
            cannot = "cannot call tools" if self.calls else "is no start of an answer"
            return [
                Problem(("tool_calls" if self.calls else "prefix",), f"a message of the role {self.role!r} {cannot}")
            ]
        return []

    @property
    def pictures(self) -> list[str]:
        """Data URIs, or names of files, of the pictures in the message."""
        return [piece.value for piece in self.content or () if isinstance(piece, Picture)]

    def to_template(self, first: int = 0) -> dict[str, Any]:
        """Return the message in the form that chat templates read. The role ``developer`` becomes ``system``, and
        ``function`` becomes ``tool``. ``first``: number of the message's first picture.
        """
        roles = {"developer": "system", "function": "tool"}
        message: dict[str, Any] = {"role": roles.get(self.role, self.role)}
        message["content"] = marked(self.content or self.refusal or "", first)
        message |= {key: getattr(self, key) for key in ("name", "tool_call_id") if getattr(self, key)}
        if thought := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = thought
        if self.calls:
            message["tool_calls"] = [call.to_template() for call in self.calls]
        return message


class ChatBody(GenerationBody):
    """Body of ``/v1/chat/completions``.

    Parameters beyond OpenAI's: ``chat_template_kwargs``, further variables of the chat template, such as
    ``enable_thinking``, which may also be given alone; ``continue_final_message`` (the answer continues the last
    message); ``add_generation_prompt``.
    """

    messages: Seq[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=0)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Neutral = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    tools: Annotated[Any, BeforeValidator(tools_of)] = None
    tool_choice: Annotated[Any, BeforeValidator(choice_of)] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Any, BeforeValidator(only([]))] = None
    function_call: Annotated[Any, BeforeValidator(only("none", "auto"))] = None
    modalities: Annotated[Any, BeforeValidator(only(["text"]))] = None
    audio: Neutral = None
    prediction: NoEffect = None
    web_search_options: Neutral = None

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.top_logprobs is not None and not self.logprobs:
            problems.append(Problem(("top_logprobs",), "it applies with log-probabilities; set logprobs to true"))
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            sentence = f"{self.max_tokens} given, but max_completion_tokens is {self.max_completion_tokens}; give one"
            problems.append(Problem(("max_tokens",), sentence))
        return problems + self._problems_of_end() + self._problems_of_tools()

    def _problems_of_end(self) -> list[Problem]:
        early = [i for i, message in enumerate(self.messages[:-1]) if message.prefix]
        if early:
            return [Problem(("messages", early[0], "prefix"), "only the last message can be the start of the answer")]
        if not self.continues:
            return []
        if self.messages[-1].role != "assistant" or self.messages[-1].calls or self.messages[-1].pictures:
            sentence = "the last message is no text of the assistant, so the answer cannot continue it"
            return [Problem(("continue_final_message",), sentence)]
        if self.add_generation_prompt:
            return [Problem(("add_generation_prompt",), "it cannot be combined with continue_final_message")]
        return []

    @property
    def continues(self) -> bool:
        """True if the answer continues the last message."""
        return bool(self.continue_final_message or self.messages[-1].prefix)

    @property
    def start(self) -> str:
        """Text of the last message, if the answer continues it."""
        return self.messages[-1].to_template()["content"] if self.continues else ""

    def _problems_of_tools(self) -> list[Problem]:
        named = self.tool_choice[0] if isinstance(self.tool_choice, tuple) else None
        if not self.tools and (named or self.tool_choice == "required"):
            return [Problem(("tool_choice",), "it requires a tool call, but there are no tools; give them in tools")]
        if named and named not in self.names:
            return [Problem(("tool_choice",), f"there is no tool {named!r}; {nearest(named, self.names)}")]
        if self.usable and self.structure and self.structure.kind != "json_schema":
            sentence = "it would forbid the calls of the given tools; set tool_choice to none or leave {} out"
            return [Problem((self.structure.name,), sentence.format(self.structure.name))]
        return []

    @property
    def pictures(self) -> list[str]:
        """Data URIs, or names of files, of the pictures in all messages."""
        return [uri for message in self.messages for uri in message.pictures]

    def to_template(self) -> list[dict[str, Any]]:
        """Return the messages in the form that chat templates read, with a numbered marker in place of each picture."""
        firsts = accumulate((len(message.pictures) for message in self.messages), initial=0)
        messages = [message.to_template(first) for message, first in zip(self.messages, firsts, strict=False)]
        if self.continues:
            messages[-1]["content"] = open_ended(messages[-1]["content"])
        return messages

    @property
    def names(self) -> list[str]:
        """Names of the functions of all tools."""
        return [tool["function"]["name"] for tool in self.tools or ()]

    @property
    def usable(self) -> Sequence[dict[str, Any]] | None:
        """Tools that the answer may call."""
        return None if self.tool_choice == "none" else self.tools

    @property
    def required(self) -> Sequence[dict[str, Any]]:
        """Tools of which the answer must call one; empty if it need not call any."""
        if isinstance(self.tool_choice, tuple):
            return [tool for tool in self.tools if tool["function"]["name"] == self.tool_choice[0]]
        return self.tools if self.tool_choice == "required" else ()

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
