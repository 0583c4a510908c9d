"""Conversations and preferences from the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qkv.data.records.conversations.contents import pictures_of
from qkv.data.records.conversations.messages import (
    Message,
    check_characters,
    parsed,
    read_messages,
    read_text_or_messages,
    read_tools,
)
from qkv.data.records.model import Role
from qkv.data.records.values import Unusable
from qkv.system.errors import quoted

_SYSTEM = Role("system", "messages", ("system", "system_prompt"), optional=True, by_name=True)
_PROMPT = Role("prompt", "messages", ("prompt", "instruction", "question", "query"), optional=True, by_name=True)
_CONTEXT = Role("context", "messages", ("input", "context"), optional=True, by_name=True)
_TOOLS = Role("tools", "messages", ("tools", "functions"), optional=True, by_name=True)
_MESSAGES = Role(
    "messages", "messages", ("messages", "conversations", "conversation", "dialogue", "chat"), True, by_name=True
)
_COMPLETION = Role("completion", "messages", ("completion", "response", "output", "answer"), True, by_name=True)
CONVERSATION_ROLES = (
    _MESSAGES,
    _PROMPT,
    _CONTEXT,
    _COMPLETION,
    _SYSTEM,
    Role("history", "messages", ("history",), optional=True, by_name=True),
    _TOOLS,
)
"""Columns of conversations: a list of messages, or prompt and completion (also called instruction and output, with an
input), and what stands beside them.
"""
PREFERENCE_ROLES = (
    Role("chosen", "messages", ("chosen", "preferred", "accepted", "preferred_output"), optional=True, by_name=True),
    Role("rejected", "messages", ("rejected", "dispreferred", "non_preferred_output"), optional=True, by_name=True),
    Role("label", "messages", ("label", "desirable", "thumbs_up"), optional=True, by_name=True),
    *(role for role in CONVERSATION_ROLES if role.name != "history"),
)
"""Columns of preferences: two answers, chosen and rejected, or one answer with a label."""


@dataclass(frozen=True)
class Conversation:
    """Messages in the form that chat templates read, through the last answer. ``left_out``: messages after it."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] | None = None
    left_out: int = 0


@dataclass(frozen=True)
class Preference:
    """Two answers to one prompt, of which the first is preferred."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True)
class JudgedAnswer:
    """Answer to a prompt, and whether it is good."""

    prompt: tuple[Message, ...]
    answer: tuple[Message, ...]
    good: bool
    tools: tuple[dict[str, Any], ...] | None = None


def read_conversation(row: Mapping[str, Any]) -> Conversation:
    """Read the conversation of a row with values of ``CONVERSATION_ROLES``.

    A list of messages comes first, else prompt and completion; a completion is also the answer to messages that end
    without one. Messages after the last answer are left out. Raises ``Unusable`` for a conversation without an answer,
    and for an empty one.
    """
    conversation = _conversation(row)
    check_characters([conversation.messages, conversation.tools])
    return conversation


def _conversation(row: Mapping[str, Any]) -> Conversation:
    messages = _all_messages(row)
    end = _end(messages)
    if not end:
        raise Unusable("it has no answer of the assistant")
    if all(message["role"] == "assistant" for message in messages[:end]):
        raise Unusable("no message stands before its answer")
    _check(messages[:end])
    return Conversation(tuple(messages[:end]), read_tools(row.get("tools")), len(messages) - end)


def _all_messages(row: Mapping[str, Any]) -> list[Message]:
    if not _is_empty(row.get("messages")):
        messages = read_messages(row["messages"])
        if messages and messages[-1]["role"] != "assistant" and not _is_empty(row.get("completion")):
            messages += _answer(row["completion"], "completion")
    elif row.get("prompt") is not None or row.get("completion") is not None:
        messages = [*_prompt(row), *_answer(row.get("completion"), "completion")]
    else:
        raise Unusable("it has neither messages nor a prompt with a completion")
    return _with_system(messages, row)


def _end(messages: Sequence[Message]) -> int:
    """Return the number of messages through the last answer."""
    return max((i for i, message in enumerate(messages, 1) if message["role"] == "assistant"), default=0)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def prompt_of(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the messages before the answer that is compared, judged, or the last. Raises ``Unusable``."""
    if any(row.get(name) is not None for name in ("chosen", "rejected", "label")):
        return read_preference(row).prompt
    return read_conversation(row).messages[:-1]


def read_preference(row: Mapping[str, Any]) -> Preference | JudgedAnswer:
    """Read the preference of a row with values of ``PREFERENCE_ROLES``.

    ``chosen`` and ``rejected`` that are whole conversations have as their prompt what both begin with. A row with a
    label is one answer. Raises ``Unusable``.
    """
    preference = _preference(_unfold(row))
    if pictures_of(preference.prompt):
        raise Unusable("its prompt has a picture, but preferences are learned from texts")
    return preference


def _preference(row: Mapping[str, Any]) -> Preference | JudgedAnswer:
    tools = read_tools(row.get("tools"))
    if row.get("chosen") is None and row.get("rejected") is None:
        if row.get("label") is None:
            raise Unusable("it has neither chosen and rejected answers nor a label")
        return _judged(row, tools)
    chosen, rejected = (_answer(row.get(name), name) for name in ("chosen", "rejected"))
    if chosen[0]["role"] == rejected[0]["role"] == "assistant":
        prompt = _given_prompt(row)
    else:
        pairs = zip(chosen, rejected, strict=False)
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(chosen), len(rejected)))
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    prompt = _with_system(prompt, row)
    if chosen == rejected:
        raise Unusable("the chosen and the rejected answer are equal")
    if not any(message["role"] == "user" for message in prompt):
        raise Unusable("it has no prompt: the chosen and the rejected conversation begin differently")
    chosen, rejected = (answer[: _end(answer)] for answer in (chosen, rejected))
    for answer in (chosen, rejected):
        if not answer or answer[0]["role"] != "assistant":
            raise Unusable("the chosen or the rejected conversation has no answer where they begin to differ")
        _check([*prompt, *answer])
    check_characters([prompt, chosen, rejected, tools])
    return Preference(tuple(prompt), tuple(chosen), tuple(rejected), tools)


def _given_prompt(row: Mapping[str, Any]) -> list[Message]:
    """Return the prompt that stands beside the answers; empty if none does."""
    return [] if row.get("prompt") is None and row.get("messages") is None else _prompt(row)


def _unfold(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row with messages and tools that stand together in one cell, as OpenAI's preferences have them."""
    inner = row.get("context")
    if not isinstance(inner, Mapping) or "messages" not in inner:
        return row
    return {**row, "context": None, "messages": inner["messages"], "tools": inner.get("tools")}


def _judged(row: Mapping[str, Any], tools: tuple[dict[str, Any], ...] | None) -> JudgedAnswer:
    conversation = read_conversation(row)
    place = next(
        i for i in range(len(conversation.messages), 0, -1) if i == 1 or conversation.messages[i - 2]["role"] == "user"
    )
    prompt, answer = conversation.messages[: place - 1], conversation.messages[place - 1 :]
    if not prompt:
        raise Unusable("it has no prompt")
    return JudgedAnswer(prompt, answer, _good(row["label"]), tools)


def _good(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in ("true", "1", "1.0", "yes", "good"):
        return True
    if text in ("false", "0", "0.0", "-1", "-1.0", "no", "bad"):
        return False
    raise Unusable(f"its label is {quoted(value)}; allowed: true and false, 1 and 0, 1 and -1")


def _prompt(row: Mapping[str, Any]) -> list[Message]:
    """Return the messages before the answer: history, and the prompt with its input."""
    value = row.get("prompt") if row.get("prompt") is not None else row.get("messages")
    value = read_text_or_messages(value, "prompt")
    if not isinstance(value, str):
        return value
    text, more = value, read_text_or_messages(row.get("context"), "context")
    if isinstance(more, str) and more.strip():
        text = f"{text}\n\n{more}" if text.strip() else more
    if not text.strip():
        raise Unusable("its prompt is empty")
    return [*_history(row), {"role": "user", "content": text}]


def _history(row: Mapping[str, Any]) -> list[Message]:
    """Return the messages of earlier turns, which are pairs of a question and an answer."""
    turns = parsed(row.get("history"), "history") or []
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise Unusable(f"its history is {quoted(turns)}, not a list of turns")
    if turns and isinstance(turns[0], Mapping):
        return read_messages(turns, "history")
    pairs = all(isinstance(turn, Sequence) and len(turn) == 2 and not isinstance(turn, str) for turn in turns)
    if not pairs or not all(isinstance(text, str) and text.strip() for turn in turns for text in turn):
        raise Unusable("its history is not a list of pairs of a question and an answer, each a text that is not empty")
    return [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]


def _answer(value: Any, name: str) -> list[Message]:
    value = read_text_or_messages(value, name)
    if not value or (isinstance(value, str) and not value.strip()):
        raise Unusable(f"its {name} is empty")
    return [{"role": "assistant", "content": value}] if isinstance(value, str) else value


def _with_system(messages: list[Message], row: Mapping[str, Any]) -> list[Message]:
    text = row.get("system")
    if not isinstance(text, str) or not text.strip() or (messages and messages[0]["role"] == "system"):
        return messages
    return [{"role": "system", "content": text}, *messages]


def _check(messages: Sequence[Message]) -> None:
    """Raise ``Unusable`` for an empty answer, and for a tool's message without a call before it."""
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            written = message["content"].strip() or message.get("tool_calls") or message.get("reasoning_content")
            if not written:
                raise Unusable(f"message {i + 1}, an answer, is empty")
        if message["role"] == "tool":
            before = messages[i - 1] if i else {"role": ""}
            if before["role"] != "tool" and not (before["role"] == "assistant" and before.get("tool_calls")):
                raise Unusable(f"message {i + 1} is a tool's, but no message before it calls a tool")
