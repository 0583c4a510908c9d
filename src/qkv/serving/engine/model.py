"""Served model: a run with its name, its worker thread and its capabilities."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from qkv.generation.decode.speculate import Speculator
from qkv.generation.logits.constrain import Constraint
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.generation.text import prompt_ids
from qkv.interop.files.mapped import watch, watched_files
from qkv.layers.signal import Signal
from qkv.models.edit.sharing import share_weights
from qkv.models.transformer import Transformer
from qkv.runs.chats.pictures import picture_reader
from qkv.runs.inference.embed import embed_opened, matryoshka, opened
from qkv.runs.inference.end_tokens import writing
from qkv.runs.inference.rerank import scorer_kind
from qkv.runs.run import Run, task_of
from qkv.runs.sound.speech import speaks
from qkv.runs.transcription.transcribe import transcribe
from qkv.serving.engine.pictures import served_picture
from qkv.serving.engine.warm import attempt, write_twice
from qkv.serving.engine.worker import Worker
from qkv.serving.errors import ApiError, as_api_error
from qkv.serving.limits import KEPT, MAX_PICTURES, Limits
from qkv.serving.requests.bodies import GenerationBody
from qkv.serving.requests.structure import Constraints, Structure
from qkv.spec.generation import FILTERS, Generation
from qkv.system.errors import UserError
from qkv.tasks.chats.pictures import PictureReader
from qkv.tokenizers.answers.form import AnswerForm, answer_form, end_texts
from qkv.tokenizers.chat_template import NO_TEMPLATE, ChatTemplate, find_template

_SEARCH = ("num_beams", "length_penalty", "num_return", "early_stopping", "seed")
"""Generation settings of a run that a server ignores: those of beam search, and the seed."""
_END = 64
"""Number of tokens at the end of a prompt in which an answer may begin."""
_SHORTEST_LIMIT = 2048
"""Lower bound of the default limit of tokens per text, for models without a table of positions."""


class ServedModel:
    """Run that a server serves, with its worker thread.

    writes: True if it generates text, after a prompt or, with an encoder, from a source. embeds: True if it computes
    embeddings of texts. reranks: True if it scores documents for a query. predicts: True if its task has predictions.
    transcribes: True if it writes the text of a sound, and nothing else.
    speaks: True if it speaks texts.
    """

    def __init__(
        self,
        name: str,
        source: Run | str | Path,
        limits: Limits,
        speculation: Callable[[Run], Speculator] | None = None,
        keep_adapters: bool = False,
        chat_template: str | None = None,
    ):
        """Load ``source``, a run or a folder.

        speculation: function that returns the speculator of a run; None for plain decoding. keep_adapters: keep
        adapters separate, see ``share``. chat_template: template that replaces the tokenizer's, or None. Raises
        ``UserError`` if the model has no capability that can be served, or if the speculator cannot propose tokens.
        """
        run, self.embedding = opened(source, keep_adapters=keep_adapters)
        self.name, self.run, self.limits, self.created = name, run, limits, int(time.time())
        self.task, self.tokenizer = task_of(run), run.tokenizer
        model, text = run.model, run.vocabulary.has_text
        if text and chat_template is not None:
            self.tokenizer.chat_template = chat_template
        written = model.spec.decodes and model.vocab_size is not None and run.recipe.model.head.predicts_tokens
        # A decoder that generates from a source is served only if it has named inputs, which messages can contain.
        reads = (model.encoder is not None) == self.task.writes_from_source or bool(run.recipe.data.inputs)
        self.writes = text and written and reads
        self.transcribes = self.task.transcribes
        self.embeds = text and not self.transcribes
        self.reranks = not self.transcribes and bool(scorer_kind(run, self.embedding))
        self.predicts = not self.transcribes and (bool(self.task.asks) or self.task.predicts_tables)
        self.speaks = speaks(run)
        if not (self.writes or self.embeds or self.predicts or self.transcribes):
            raise UserError(f"{run.folder}: the model yields no text, embeddings or predictions that can be served")
        self._reading = Lock()
        """Held while the pictures of a request are read."""
        queued, keep = (model, self.tokenizer, limits.memory, limits.batch, limits.queue), limits.memory or KEPT
        speculator = speculation(run) if speculation is not None and self.writes else None
        if speculator is not None:
            speculator.check(model, Generation())
        requests = RequestQueue(*queued, speculator=speculator, keep=keep) if self.writes else None
        self.worker = Worker(requests, name, limits.queue, self._warm_up)

    def _warm_up(self) -> None:
        """Prepare the model for its first request, in the worker thread; see ``qkv.serving.engine.warm``."""
        digit = Structure("regex", "[0-9]", "guided_regex")
        steps: list[Callable[[], object]] = []
        if self.worker.requests is not None:
            steps = [self._write, lambda: self.ends, lambda: self.constraints.of(digit)]
        if self.chats:
            steps += [lambda: self.chat_prompt([{"role": "user", "content": "1"}], {}), lambda: self.chat_ends]
        if self.embeds:
            steps.append(lambda: embed_opened(self.run, self.embedding, [self._word]))
        if self.transcribes:
            steps.append(self._hear)
        attempt(steps)

    def _hear(self) -> None:
        """Transcribe a second of noise."""
        noise = (np.random.default_rng(0).standard_normal(16_000) / 10).astype(np.float32)
        several: dict[str, Any] = {"guard": False}
        if self.run.model.encoder is not None:
            several |= {"max_new_tokens": 4, "temperatures": (0.0,)}
        transcribe(self.run, (noise, 16_000), **several)

    def _write(self) -> None:
        """Generate a short text twice, from the tokens of a word."""
        run, requests = self.run, self.worker.requests
        assert requests is not None
        ids = self.prompt(self._word)
        if run.model.encoder is None:
            write_twice(requests, ids, None)
        else:
            write_twice(requests, list(self.task.first_ids(run.vocabulary)), ids)

    @property
    def _word(self) -> str:
        """Short text without unknown tokens; "1" if there is none."""
        ids = range(min(256, self.tokenizer.vocab_size))
        texts = (self.tokenizer.decode([index]) for index in reversed(ids))
        return next((text for text in texts if text.strip() and not self.tokenizer.unknown(text)), "1")

    @property
    def networks(self) -> list[Transformer]:
        """The model and its draft, if it has one."""
        speculator = self.worker.requests and self.worker.requests.speculator
        draft = speculator and speculator.draft
        return [self.run.model, *([draft] if draft else [])]

    @cached_property
    def ends(self) -> frozenset[int]:
        """Ids of tokens that end a text."""
        return frozenset(self.writing.stop_token_ids)

    @cached_property
    def writing(self) -> Generation:
        """Generation settings of the run, with its end tokens."""
        return writing(self.run)

    @cached_property
    def constraints(self) -> Constraints:
        """Cache of compiled constraints for structured outputs."""
        return Constraints(self.tokenizer)

    @cached_property
    def template(self) -> ChatTemplate:
        """Chat template. Raises ``UserError`` if there is none."""
        if self.tokenizer.chat_template is None:
            way_out = "use /v1/completions, or start the server with --chat-template FILE"
            raise UserError(f"messages: the model {self.name!r} has {NO_TEMPLATE}; {way_out}")
        return find_template(self.tokenizer)

    @cached_property
    def answer_form(self) -> AnswerForm:
        """Form of the answers in chats: reasoning and tool calls. Raises ``UserError`` without a chat template."""
        return answer_form(self.template)

    @cached_property
    def chat_ends(self) -> tuple[int, ...]:
        """Ids of the tokens that end an answer in the format of the chat template."""
        ids = map(self.tokenizer.core.token_to_id, end_texts(self.template, self.answer_form))
        return tuple(index for index in ids if index is not None)

    @cached_property
    def chat_problem(self) -> str | None:
        """Reason why a model that generates text after a prompt answers no chats; None if it does, or writes none."""
        if not self.writes or self.run.model.encoder is not None:
            return None
        if self.tokenizer.chat_template is None:
            return "the model has no chat template (--chat-template FILE)"
        try:
            return None if self.template.source.strip() else "the chat template is empty (--chat-template FILE)"
        except UserError as error:
            return str(error)

    @property
    def chats(self) -> bool:
        """True if the model answers chats: it generates text, has no encoder, and has a chat template."""
        return self.writes and self.run.model.encoder is None and self.chat_problem is None

    @cached_property
    def sizes(self) -> tuple[int, ...] | None:
        """Dimensions to which embeddings may be truncated (Matryoshka); () for any, None for none."""
        return matryoshka(self.run, self.embedding)

    @property
    def most_tokens(self) -> int:
        """Maximum number of tokens of one text, prompt and new tokens together.

        Never more than the positions of a model that has a table of them: its context would slide, and silently lose
        the start of a prompt.
        """
        positions = self.run.model.limit
        usual = self.limits.tokens or max(_SHORTEST_LIMIT, self.run.model.spec.context_length)
        return usual if positions is None or self.run.model.encoder is not None else min(usual, positions)

    def to_dict(self) -> dict[str, Any]:
        """Return the model's entry in ``/v1/models``."""
        can = {
            "completions": self.writes,
            "chat": self.chats,
            "pictures": self.chats and self.pictures is not None,
            "embeddings": self.embeds,
            "rerank": self.reranks,
            "predict": self.predicts,
            "transcriptions": self.transcribes,
            "speech": self.speaks,
        }
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "qkv",
            "max_model_len": self.most_tokens,
            "task": self.run.recipe.task.kind,
            "capabilities": [name for name, possible in can.items() if possible],
            "answers": self._answers(),
            "defaults": self._defaults(),
        }

    def _answers(self) -> dict[str, str | None]:
        """Return the names of the forms of reasoning and tool calls in chats, None without; nothing without chats."""
        if not self.chats:
            return {}
        form = self.answer_form
        return {"reasoning": form.thinking and form.thinking.name, "tools": form.calls and form.calls.name}

    def _defaults(self) -> dict[str, Any]:
        """Return the default settings of requests, for the parameters that they leave out."""
        generation = self.writing
        settings = {name: getattr(generation, name) for name in (*FILTERS, "presence_penalty", "frequency_penalty")}
        return (
            {**settings, "max_tokens": generation.max_new_tokens, "stop": list(generation.stop)} if self.writes else {}
        )

    def prompt(self, content: str | Sequence[int]) -> list[int]:
        """Tokenize a prompt; for a model with an encoder, as the encoder's input."""
        if not isinstance(content, str):
            return list(content)
        if not self.task.writes_from_source:
            return prompt_ids(self.tokenizer, content)
        source = self.task.source_ids(self.run.vocabulary, content)
        if self.run.model.encoder is not None:
            return source
        return [*source[:-1], *self.task.first_ids(self.run.vocabulary)]

    def read_pictures(self, pictures: Sequence[str]) -> tuple[list[list[int]], Mapping[str, Signal] | None]:
        """Read the pictures of a chat; return (placeholder ids of each, their signals by name of the input, or None
        without pictures), one chat at a time, so that memory is bounded. Raises ``UserError`` if the model reads no
        pictures, and for pictures that cannot be read or are not allowed, see ``served_picture``.
        """
        if not pictures:
            return [], None
        reader = self.pictures
        if reader is None:
            raise UserError(f"messages: the model {self.name!r} reads no pictures; leave them out")
        if len(pictures) > MAX_PICTURES:
            raise UserError(f"messages: {len(pictures)} pictures given; allowed: at most {MAX_PICTURES}")
        reader.names_of(len(pictures))
        with self._reading:
            return reader.read([served_picture(each, self.limits.pictures) for each in pictures])

    @cached_property
    def pictures(self) -> PictureReader | None:
        """Reader of the pictures of chats; None if no named input of the model is a picture."""
        return picture_reader(self.run)

    def chat_prompt(
        self,
        messages: Sequence[dict[str, Any]],
        variables: dict[str, Any],
        opening: str = "",
        spans: Sequence[Sequence[int]] = (),
    ) -> list[int]:
        """Render and tokenize the prompt of a chat. ``variables``: further template variables. opening: start of the
        answer, appended to the prompt. spans: placeholder ids of each picture in the messages.

        Raises ``UserError``.
        """
        if self.run.model.encoder is not None:
            raise UserError("messages: a model with an encoder has no chat template; use /v1/completions")
        ids = self.template.ids(messages, opening, spans, **variables)
        if self.tokenizer.unknown_id is not None and self.tokenizer.unknown_id in ids:
            unknown = self.tokenizer.unknown(self.template.text(messages, **variables))
            raise UserError(f"messages: the tokenizer's vocabulary lacks {', '.join(map(repr, unknown[:5]))}")
        return ids

    def prompt_end(self, ids: Sequence[int]) -> str:
        """Return the text at the end of a prompt, which tells how its answer begins."""
        return self.tokenizer.decode(token for token in ids[-_END:] if token >= 0)  # others stand for pictures

    def requests(
        self,
        prompt: Sequence[int],
        body: GenerationBody,
        most_new: int | None,
        structure: Structure | None,
        inputs: Mapping[str, Signal] | None = None,
        ends: Sequence[int] = (),
    ) -> list[Request]:
        """Build the requests of the ``n`` texts after a prompt. most_new: requested maximum number of new tokens; None
        for the default, see ``_most_new``. structure: constraint of the texts. inputs: signals of the inputs other than
        text, such as pictures, whose placeholders are in the prompt. ends: further ids that end a text.

        Text i has the seed of the body + i. Raises ``ApiError`` for a text that may be longer than the limit.
        """
        settings = self._settings(body, self._most_new(len(prompt), most_new, body.goes_on), structure, ends)
        constraint = None if structure is None else self._constraint(structure)
        source, begin = None, list(prompt)
        if self.run.model.encoder is not None:
            source, begin = begin, list(self.task.first_ids(self.run.vocabulary))
        several = range(body.n or 1)
        seeds = [None if settings.seed is None else settings.seed + i for i in several]
        return [
            Request(
                begin, settings.changed(seed=seed), source, body.alternatives, self.limits.seconds, constraint, inputs
            )
            for seed in seeds
        ]

    def _constraint(self, structure: Structure) -> Constraint:
        try:
            return self.constraints.of(structure)
        except UserError as error:
            raise as_api_error(error, structure.name) from None

    def _settings(
        self, body: GenerationBody, most: int, structure: Structure | None, further: Sequence[int]
    ) -> Generation:
        """Return the run's settings without beam search, overridden by the body. most: maximum number of new tokens.
        further: ids that end a text, besides those of the run.
        """
        run_settings = self.writing
        stop = () if structure else run_settings.stop  # a constraint ends a text itself
        ends = () if body.ignore_eos else (*run_settings.stop_token_ids, *further)
        settings: dict[str, Any] = {
            name: getattr(run_settings, name) for name in Generation.model_fields if name not in _SEARCH
        }
        settings |= {"stop": stop, "min_tokens": min(run_settings.min_tokens, most), **body.settings}
        settings["stop_token_ids"] = tuple(dict.fromkeys((*(body.stop_token_ids or ()), *ends)))
        return Generation.parse({**settings, "max_new_tokens": most})

    def _most_new(self, prompt: int, most_new: int | None, goes_on: bool) -> int:
        """Return the maximum number of new tokens: ``most_new``, or a default if it is None.

        The default is the rest of the context after the prompt if ``goes_on``. Otherwise, and if the prompt is longer
        than the context of training, it is the run's ``max_new_tokens``. It never exceeds the limit of tokens.
        """
        most, usual = self.most_tokens, self.writing.max_new_tokens
        room, reach = most - prompt, min(self.limits.tokens or self.run.model.spec.context_length, most)
        if goes_on and reach > prompt:
            usual = reach - prompt
        fewest = 1 if most_new is None else most_new  # an answer without a token would tell nothing
        if room < fewest:
            long, limit = f"the prompt has {prompt} tokens, which", f"the limit of {most} tokens"
            sentence, param = f"{long} leave no room for an answer within {limit}; shorten it", None
            if prompt < most:
                sentence, param = f"{long} with {fewest} new ones exceed {limit}; ask for fewer", "max_tokens"
            raise ApiError(sentence, param=param, code="context_length_exceeded")
        return min(usual, room) if most_new is None else most_new


def share(models: Iterable[ServedModel]) -> int:
    """Store equal weights of several models once, before the models serve requests; return the bytes saved.

    Adapters of models loaded with ``keep_adapters`` stay separate where the weights below them are shared, and are
    merged into other weights.
    """
    networks = [network for model in models for network in model.networks]
    saved = share_weights(networks)
    files = dict.fromkeys(file for network in networks for file in watched_files(network))
    for network in networks:
        before = watched_files(network)
        watch(network, [file for file in files if file not in before])
    return saved
