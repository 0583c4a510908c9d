"""Answer of a model to a chat: the function ``qkv.chat``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from qkv.runs.chats.history import checked_messages, checked_tools
from qkv.system.errors import UserError
from qkv.system.torch_settings import with_usual_settings

if TYPE_CHECKING:
    from qkv.runs.chats.model import ChatModel, RunningAnswer
    from qkv.runs.run import Run


def check_installed() -> None:
    """Raise ``UserError`` if the library that renders chat templates is not installed."""
    if find_spec("jinja2") is None:
        raise UserError("chat templates need jinja2, which is not installed; pip install 'qkv[serve]'")


def open_model(run: Run, template: str | None = None, way_out: str = "give one as 'template'") -> ChatModel:
    """Return the model that answers the chats of a run, see ``ChatModel``. Raises ``UserError``."""
    check_installed()
    from qkv.runs.chats.model import ChatModel

    return ChatModel(run, template, way_out)


@overload
def chat(
    model: Run | str | Path,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    stream: Literal[False] = False,
    template: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Return the assistant's next message."""


@overload
def chat(
    model: Run | str | Path,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    stream: Literal[True],
    template: str | None = None,
    **settings: Any,
) -> Iterator[str]:
    """Return an iterator over the content of the assistant's next message."""


@with_usual_settings
def chat(
    model: Run | str | Path,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    stream: bool = False,
    template: str | None = None,
    **settings: Any,
) -> dict[str, Any] | Iterator[str]:
    """Return the assistant's next message in a chat, such as ``{"role": "assistant", "content": "…"}``.

    ``model``: a run, its folder, or a published checkpoint with a chat template. ``messages``: dicts with ``role``
    ("system", "user", "assistant", "tool") and ``content``; the answer can be appended to them. ``tools``: functions
    that the model may call, in OpenAI's form; a call is in ``tool_calls`` of the answer, with its arguments as a dict.
    Reasoning that the model writes before its answer is in ``reasoning_content``. ``stream``: return an iterator over
    the pieces of the content instead, while it is generated. ``template``: text of a chat template that replaces the
    model's own.

    ``settings``: max_new_tokens (default: the rest of the context), temperature, top_k, top_p, min_p,
    repetition_penalty, presence_penalty, frequency_penalty, logit_bias, min_tokens, stop, stop_token_ids, seed;
    defaults are those of the folder. Raises ``UserError``, also for a chat that the context has no room for.
    """
    rows, functions = checked_messages(messages), checked_tools(tools or ())
    if not rows:
        raise UserError("messages: there are none; give at least one")
    check_installed()
    from qkv.runs.storage.load import load

    run = load(model) if isinstance(model, (str, Path)) else model
    answer = open_model(run, template).answer(rows, functions, settings)
    if stream:
        return _contents(answer)
    for _ in answer:
        pass
    return answer.message or {"role": "assistant", "content": ""}


def _contents(answer: RunningAnswer) -> Iterator[str]:
    for part in answer:
        if part.content:
            yield part.content
