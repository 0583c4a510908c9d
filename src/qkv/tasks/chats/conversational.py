"""Base class of tasks on conversations: chat template, end of an answer, answers of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from qkv.data.records.conversations.contents import pictures_of, shown_text
from qkv.data.records.conversations.messages import read_text_or_messages, read_tools
from qkv.data.records.model import Records
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.generation.decode.sample import generate
from qkv.layers.signal import Signal
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.chat_tasks import Conversational
from qkv.system.errors import UserError
from qkv.tasks.chats.pictures import PictureReader, marked_messages, reader_of_pictures
from qkv.tasks.dataset import Example
from qkv.tasks.example_task import ExampleTask, Rows, trained
from qkv.tokenizers.chat import read_template
from qkv.tokenizers.chat_targets import end_of_answer
from qkv.tokenizers.chat_template import NO_TEMPLATE, ChatTemplate
from qkv.tokenizers.tokenizer import Tokenizer

_MOST = 128
"""Maximum number of tokens of an answer that is only shown."""
Reference = Callable[[], AbstractContextManager[Transformer]]
"""Function that returns the start of training within a context."""


class ConversationalTask(ExampleTask):
    """Base class of tasks on conversations that the chat template of the tokenizer renders."""

    spec: Conversational
    evaluates = True
    chats = True
    reference: Reference | None = None
    """Start of training, with which losses and evaluations compare; None if there is none, or if it is gone."""

    @property
    def needs_reference(self) -> bool:
        """True if the loss of each step compares with the start of training."""
        return False

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        processors = recipe.data.processors
        strange = next((name for name, each in processors.items() if not each.of_images), None)
        if strange is not None:
            raise UserError(
                f"data.inputs.{strange}: conversations are learned from texts and pictures only; leave the input out"
            )
        tokenizer = self._tokenizer(recipe)
        return Vocabulary(tokenizer, tokenizer, processors=processors)

    def _tokenizer(self, recipe: Recipe) -> Tokenizer:
        """Return the tokenizer of the start, with the template that the run will use."""
        if recipe.start.checkpoint is None and self.spec.chat_template is None:
            raise UserError(
                f"a model of the task {self.spec.kind!r} is trained from a chat model; name a run, folder or file with "
                "--from (start), or a chat template for a new model with --chat-template (task.chat_template)"
            )
        tokenizer = trained(recipe.data.text_tokenizer, ())
        if self.spec.chat_template is not None:
            tokenizer = tokenizer.with_chat_template(read_template(Path(self.spec.chat_template).expanduser()))
        if tokenizer.chat_template is None:
            raise UserError(
                f"the start has {NO_TEMPLATE}; name a file with a template with --chat-template FILE "
                "(task.chat_template)"
            )
        return tokenizer

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        """Return the recipe whose answers end at the end token of the template."""
        tokenizer, sample = self._tokenizer(recipe), recipe.sample
        end = end_of_answer(ChatTemplate(tokenizer.chat_template or "", tokenizer), sample.stop_token_ids)
        ends = tuple(dict.fromkeys((*sample.stop_token_ids, end)))
        return recipe.changed(sample=sample.changed(stop_token_ids=ends))

    def template(self, vocabulary: Vocabulary) -> ChatTemplate:
        """Compile the chat template of the run."""
        return ChatTemplate(vocabulary.tokenizer.chat_template or "", vocabulary.tokenizer)

    def limits(self, recipe: Recipe) -> dict[str, int]:
        longest = recipe.model.context_length
        return {"messages": min(longest, recipe.data.batching.tokens_of_window or longest)}

    def usable(self, rows: Rows, vocabulary: Vocabulary, reader: Any) -> tuple[Rows, list[Example], list[str]]:
        usable, examples, bad = Rows(), list[Example](), list[str]()
        for row in rows:
            try:
                examples += self.examples([row], vocabulary, reader)
                usable.append(row)
            except Unusable as error:
                bad.append(str(error))
        return usable, examples, bad

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Answer the messages of each row, a list of messages or the text of one, with temperature 0."""
        role, most = self.asks[0], recipe.model.context_length
        try:
            chats = [(_question(row[role], role), read_tools(row.get("tools"))) for row in rows]
        except Unusable as error:
            raise UserError(str(error)) from None
        return [{"answer": text} for text in self.answers(model, vocabulary, recipe, chats, most)]

    def answers_before(
        self, vocabulary: Vocabulary, recipe: Recipe, chats: Sequence[tuple[Sequence[Mapping[str, Any]], Any]]
    ) -> list[str]:
        """Write the next message of each conversation by the start of training; empty texts without one."""
        if self.reference is None:
            return [""] * len(chats)
        with torch.no_grad(), self.reference() as start:
            return self.answers(start, vocabulary, recipe, chats)

    def answers(
        self,
        model: Transformer,
        vocabulary: Vocabulary,
        recipe: Recipe,
        chats: Sequence[tuple[Sequence[Mapping[str, Any]], Any]],
        most: int = _MOST,
    ) -> list[str]:
        """Write the next message of each conversation, with temperature 0, in at most ``most`` tokens; an empty text
        for a conversation that is too long. chats: messages and tools of each.
        """
        template, reader = self.template(vocabulary), reader_of_pictures(recipe, vocabulary)
        read = [self._prompt(template, reader, *chat) for chat in chats]
        prompts, inputs = [prompt for prompt, _ in read], [seen for _, seen in read]
        texts = [""] * len(prompts)
        longest, ends = min(most, recipe.sample.max_new_tokens), set(recipe.sample.stop_token_ids)
        rooms = [min(longest, recipe.model.context_length - len(prompt)) for prompt in prompts]
        for room in sorted({room for room in rooms if room > 0}):  # a long prompt does not shorten other answers
            places = [i for i, each in enumerate(rooms) if each == room]
            generation = recipe.sample.changed(temperature=0.0, num_beams=1, num_return=1, max_new_tokens=room)
            pictures = [inputs[i] for i in places] if any(inputs) else None
            written = generate(model, [prompts[i] for i in places], generation, inputs=pictures)
            for i, ids in zip(places, written, strict=True):
                tokens = [token for token in ids if token not in ends]
                texts[i] = vocabulary.tokenizer.decode(tokens, skip_special=True).strip()
        return texts

    def _prompt(
        self, template: ChatTemplate, reader: PictureReader | None, messages: Sequence[Mapping[str, Any]], tools: Any
    ) -> tuple[list[int], Mapping[str, Signal]]:
        """Return the ids that the model continues, and the signals of the pictures among them. Raises ``UserError``."""
        variables = {"tools": tools, **self.spec.template_variables}
        if not pictures_of(messages):
            return template.ids([dict(each) for each in messages], **variables), {}
        if reader is None:
            raise UserError("messages: a message has a picture, but the model reads texts only")
        plain, names = marked_messages(messages)
        spans, seen = reader.read(names)
        return template.ids(plain, spans=spans, **variables), seen


def _question(value: Any, role: str) -> list[dict[str, Any]]:
    """Return the messages that ``value`` asks to answer: a conversation that ends with an answer is answered anew.

    Raises ``Unusable`` if nothing is asked.
    """
    read = read_text_or_messages(value, role)
    messages = [{"role": "user", "content": read}] if isinstance(read, str) else read
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages or not shown_text(messages[-1]["content"]).strip():
        raise Unusable(f"{role}: there is no message to answer")
    return messages
