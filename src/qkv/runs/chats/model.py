"""Model that answers chats: prompts in the form of its template, settings of its folder, and answers in parts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from qkv.generation.queue.requests import Request, RequestQueue, TextDelta
from qkv.layers.signal import Signal
from qkv.models.fast.frozen_weights import unchanged
from qkv.runs.chats.history import Message
from qkv.runs.chats.pictures import picture_reader
from qkv.runs.chats.settings import checked_settings
from qkv.runs.inference.end_tokens import writing
from qkv.runs.run import Run
from qkv.spec.generation import Generation
from qkv.system.errors import UserError
from qkv.system.torch_settings import usual_settings
from qkv.tasks.chats.pictures import PictureReader, marked_messages
from qkv.tokenizers.answers.form import AnswerForm, answer_form, calls_of, end_texts
from qkv.tokenizers.answers.reader import AnswerPart, AnswerReader
from qkv.tokenizers.chat_template import NO_TEMPLATE, ChatTemplate

_KEPT = 1 << 30
"""Maximum bytes of the prefix cache, with which a turn reads only its new messages."""


class ContextFull(UserError):
    """Raised for a chat whose messages leave no room for an answer. tokens: number of its tokens. limit: of the
    context.
    """

    def __init__(self, tokens: int, limit: int):
        self.tokens, self.limit = tokens, limit
        super().__init__(
            f"the chat has {tokens:,} tokens, but the context has room for {limit:,}; shorten it or begin a new chat"
        )


class ChatModel:
    """Model with its chat template, whose prefix cache is kept between answers. Not thread-safe."""

    def __init__(self, run: Run, template: str | None = None, way_out: str = "give one as 'template'"):
        """``template``: text of a chat template; None: the tokenizer's. way_out: advice for a model without one.

        Raises ``UserError`` for a model that cannot chat.
        """
        model, head = run.model, run.recipe.model.head
        if not (run.vocabulary.has_text and model.spec.decodes and head.predicts_tokens) or model.encoder is not None:
            raise UserError(f"{run.folder} answers no chats: it is no language model that continues texts")
        text = run.tokenizer.chat_template if template is None else template
        if text is None:
            raise UserError(f"{run.folder} has {NO_TEMPLATE}; {way_out}")
        self.run, self.template = run, ChatTemplate(text, run.tokenizer)
        self.queue: RequestQueue = RequestQueue(model, run.tokenizer, keep=_KEPT)

    @property
    def limit(self) -> int:
        """Number of tokens of the context: prompt and answer together."""
        return self.run.model.spec.context_length

    @cached_property
    def form(self) -> AnswerForm:
        """Form of the model's reasoning and tool calls."""
        return answer_form(self.template)

    def check_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Raise ``UserError`` for tools whose calls cannot be read from the model's answers, as the server does."""
        if tools:
            calls_of(self.template, self.form)

    @cached_property
    def defaults(self) -> Generation:
        """Settings of the folder, with the tokens that end an answer."""
        settings, core = writing(self.run), self.run.tokenizer.core
        ends = [core.token_to_id(text) for text in end_texts(self.template, self.form)]
        stops = dict.fromkeys((*settings.stop_token_ids, *(index for index in ends if index is not None)))
        return settings.changed(num_beams=1, num_return=1, seed=None, stop_token_ids=tuple(stops))

    def settings(self, options: Mapping[str, Any], room: int) -> Generation:
        """Return the folder's settings changed by ``options``; ``room``: most new tokens. Raises ``UserError``."""
        changes, defaults = checked_settings(options), self.defaults
        new = min(room, changes.get("max_new_tokens", room))
        fewest = min(changes.get("min_tokens", defaults.min_tokens), new)
        stops = tuple(dict.fromkeys((*changes.get("stop_token_ids", ()), *defaults.stop_token_ids)))
        return defaults.changed(**{**changes, "max_new_tokens": new, "min_tokens": fewest, "stop_token_ids": stops})

    def answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> RunningAnswer:
        """Begin the answer to ``messages``. options: settings that replace the folder's, see ``SETTINGS``.

        Raises ``UserError``, also for messages that the template refuses; ``ContextFull``.
        """
        self.check_tools(tools)
        variables: dict[str, Any] = {"tools": list(tools)} if tools else {}
        plain, pictures = marked_messages(messages)
        spans, inputs = self.read_pictures(pictures)
        rows = self.form.to_template(plain)
        text = self.template.marked_text(rows, **variables)
        ids = self.template.encode_marked(text, spans)
        self._check_known(ids, rows, variables)
        if len(ids) >= self.limit:
            raise ContextFull(len(ids), self.limit)
        request = Request(ids, self.settings(options or {}, self.limit - len(ids)), inputs=inputs)
        return RunningAnswer(self.queue, request, self.form.reader(text, tools))

    def read_pictures(self, pictures: Sequence[str]) -> tuple[list[list[int]], Mapping[str, Signal] | None]:
        """Read pictures, given as data URIs or names of files; return (placeholder ids of each, their signals by name
        of the input, or None without pictures). Raises ``UserError``.
        """
        return self.pictures.read(pictures) if pictures else ([], None)

    def check_picture(self, picture: str) -> None:
        """Raise ``UserError`` for a picture that cannot be read, or if the model reads none."""
        self.pictures.check(picture)

    @cached_property
    def pictures(self) -> PictureReader:
        """Reader of the pictures of chats. Raises ``UserError`` if no named input of the model is a picture."""
        reader = picture_reader(self.run)
        if reader is None:
            raise UserError(f"messages: {self.run.folder} reads no pictures; leave them out")
        return reader

    def _check_known(self, ids: Sequence[int], rows: Sequence[Message], variables: Mapping[str, Any]) -> None:
        """Raise ``UserError`` for messages with characters that the vocabulary lacks."""
        tokenizer = self.run.tokenizer
        if tokenizer.unknown_id is not None and tokenizer.unknown_id in ids:
            unknown = ", ".join(map(repr, tokenizer.unknown(self.template.text(rows, **variables))[:5]))
            raise UserError(f"messages: the tokenizer's vocabulary lacks {unknown}")


class RunningAnswer:
    """Answer while it is generated; iterating over it generates, and yields its parts.

    read: number of tokens of the prompt. written: number of new tokens. seconds: from the first of them to the last.
    finished: why the answer ended, see ``Finish``; None while it runs.
    """

    def __init__(self, queue: RequestQueue, request: Request, reader: AnswerReader):
        self._queue, self._request, self._reader = queue, request, reader
        self._stopped, self._begun = False, 0.0
        self.read, self.written, self.seconds = len(request.prompt), 0, 0.0
        self.finished: str | None = None
        self.whole = AnswerPart()
        """All parts so far, as one."""

    def stop(self) -> None:
        """End the answer after the present token; what is written stays. May be called by a signal handler."""
        self._stopped = True

    def __iter__(self) -> Iterator[AnswerPart]:
        number = self._queue.submit(self._request)
        try:
            while self.finished is None:
                if self._stopped:
                    self._queue.cancel(number)
                with usual_settings(), unchanged():
                    deltas = self._queue.step()
                for delta in deltas:
                    if delta.number == number:
                        yield self._added(delta)
        finally:
            if self.finished is None:
                self._queue.cancel(number)

    def _added(self, delta: TextDelta) -> AnswerPart:
        """Count and read a piece of text; return what it completes. Raises ``UserError`` for a failed answer."""
        now = time.monotonic()
        if delta.tokens:
            self._begun = self._begun or now
            self.seconds = now - self._begun
        self.written += len(delta.tokens)
        self.finished = delta.finished
        part = self._reader.feed(delta.text)
        if delta.finished:
            part += self._reader.flush()
        self.whole += part
        if delta.finished in ("failed", "refused"):
            raise UserError(delta.error)
        return part

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first token; None if it cannot be told."""
        return (self.written - 1) / self.seconds if self.written > 1 and self.seconds > 0 else None

    @property
    def message(self) -> Message | None:
        """Message of the assistant, as far as it is written; None if it is empty."""
        whole = self.whole
        if not (whole.reasoning or whole.content or whole.calls):
            return None
        message: Message = {"role": "assistant", "content": whole.content}
        if whole.reasoning:
            message["reasoning_content"] = whole.reasoning
        if whole.calls:
            message["tool_calls"] = [_call(each.to_dict()) for each in whole.calls]
        return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object, as chat templates read them."""
    function = call["function"]
    try:
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    except ValueError:
        return call
