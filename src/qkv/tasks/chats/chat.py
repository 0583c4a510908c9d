"""Task on conversations: a causal model learns the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.batching.best_fit import pack
from qkv.data.batching.padding import lengths_or_none, padded
from qkv.data.corpora.corpus import VALIDATION
from qkv.data.records.conversations.contents import pictures_of, shown_text
from qkv.data.records.conversations.messages import Message
from qkv.data.records.conversations.read import CONVERSATION_ROLES, Conversation, read_conversation
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.heads.language_loss import loss_of_vectors
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.chat_tasks import Chat
from qkv.spec.register import implements
from qkv.system.errors import UserError
from qkv.tasks.chats.audit import ChatTally
from qkv.tasks.chats.conversational import ConversationalTask
from qkv.tasks.chats.pictures import (
    PictureReader,
    ReadPicture,
    marked_messages,
    reader_of_pictures,
    whole_pictures,
)
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import Collate
from qkv.tasks.task import Evaluation, Scale, Totals
from qkv.tasks.text.next_token import at_targets, exponential
from qkv.tokenizers.chat_targets import EncodedChat, encode_chat
from qkv.tokenizers.chat_template import ChatTemplate

_SHOWN = 3
Inputs = Mapping[str, Signal] | None
"""Signals of the pictures of a batch by name of the input, None without any."""


class ChatText(NamedTuple):
    """One training text: its ids, which of them are targets, and the pictures that its placeholder ids stand for."""

    ids: np.ndarray
    targets: np.ndarray
    pictures: Sequence[ReadPicture] = ()


See = Callable[[Sequence[ChatText]], Inputs]
"""Function from the texts of a batch to the signals of their pictures."""


class ConversationReader:
    """Encoder of conversations to training texts of at most ``length`` tokens; counts what it reads.

    pictures: reader of pictures, None for a model that reads none.
    """

    def __init__(
        self,
        template: ChatTemplate,
        spec: Chat,
        ends: Sequence[int],
        tally: ChatTally,
        pictures: PictureReader | None = None,
    ):
        self.template, self.spec, self.ends, self.tally, self.pictures = template, spec, ends, tally, pictures
        self.rows = 0

    def __call__(self, row: Mapping[str, Any]) -> list[ChatText]:
        """Return the training texts of a row. Raises ``Unusable``."""
        conversation = read_conversation(row)
        names = pictures_of(conversation.messages)
        try:
            messages, spans, pictures = self._read(conversation.messages, names)
            texts = encode_chat(
                self.template,
                messages,
                self.spec.learn,
                conversation.tools,
                self.ends,
                spans,
                **self.spec.template_variables,
            )
        except UserError as error:
            raise Unusable(str(error)) from None
        self.rows += 1
        self.tally.add(self.rows, texts)
        self.tally.unread_tools += bool(conversation.tools) and not self.template.reads_tools
        fitting = [short for text in texts if (short := self._shorten(text, pictures)).targets.any()]
        if not fitting:
            sizes = ", ".join(f"{name} has {len(span):,}" for name, span in zip(names, spans, strict=True))
            beside = f", of which {sizes}" if sizes else ""
            raise Unusable(f"no answer ends within the {self.tally.length} tokens that fit{beside}")
        return fitting

    def _read(
        self, messages: Sequence[Message], names: Sequence[str]
    ) -> tuple[Sequence[Message], list[list[int]], list[ReadPicture]]:
        """Read the pictures ``names`` of messages; return (messages with markers, ids of each, what was read)."""
        if not names:
            return messages, [], []
        if self.pictures is None:
            raise UserError("a message has a picture, but the model reads texts only")
        return marked_messages(messages)[0], *self.pictures.spans(names)

    def _shorten(self, text: EncodedChat, pictures: Sequence[ReadPicture]) -> ChatText:
        """Return the text through the last answer that fits, with whole pictures only; empty if no answer does."""
        ids, limit = np.asarray(text.ids, np.int64), self.tally.kept(text)
        limit, inside = whole_pictures(ids, limit, pictures)
        return ChatText(ids[:limit], np.asarray(text.targets[:limit], bool), inside)

    def notes(self, examples: int) -> list[str]:
        """Return sentences about targets, ends and shortened conversations."""
        return list(self.tally.audit("").summary)


@implements(Chat)
class ChatTask(ConversationalTask):
    """Conversations whose answers are learned: -Σ log p(x_i | x_<i) over the tokens of answers."""

    spec: Chat
    roles = CONVERSATION_ROLES
    asks = ("messages",)

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> ConversationReader:
        length, start = self.limits(recipe)["messages"], vocabulary.tokenizer.special("bos")
        tally = ChatTally(length, start, everything=self.spec.learn == "everything")
        pictures = reader_of_pictures(recipe, vocabulary, length)
        return ConversationReader(self.template(vocabulary), self.spec, recipe.sample.stop_token_ids, tally, pictures)

    def examples(
        self, rows: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, reader: ConversationReader
    ) -> list[Example]:
        return [_example(text) for row in rows for text in reader(row)]

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        pictures, length = reader_of_pictures(recipe, vocabulary), recipe.data.batching.packed_length
        if recipe.model.reads_prefix:
            collate: Callable[..., Batch] = _with_prefix
        else:  # words and pictures with positions on several axes have rows of their own
            collate = one_per_row if length is None or recipe.model.place_axes else _packer(length)
        return collate if pictures is None else partial(collate, see=partial(_seen, pictures))

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """Compute -Σ log p(token) over the targets of the batch, in nats."""
        hidden, _ = model.features(batch.input, tap=tap)
        return loss_of_vectors(model, *at_targets(hidden, batch.targets), tap=tap)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        loss = seen.loss / seen.count if seen.count else math.nan
        return {"loss": loss, "perplexity": exponential(loss)}

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        assert isinstance(dataset, ExampleDataset)
        chats = [_before_answer(each) for each in _with_question(dataset.records[VALIDATION], 1)]
        return "\n\n".join(self.answers(model, dataset.vocabulary, recipe, chats))

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        figures = self.figures(seen, dataset.scale(split))
        baseline = self._baseline(dataset, split, seen.count)
        notes = []
        if baseline and figures["loss"] >= baseline["loss_of_start"]:
            notes.append("training did not lower the loss of the held-out answers; the start is as good")
        conversations = _with_question(dataset.records[split], _SHOWN)
        chats = [_before_answer(each) for each in conversations]
        before = self.answers_before(dataset.vocabulary, recipe, chats)
        after = self.answers(model, dataset.vocabulary, recipe, chats)
        rows = [
            [shown_text(messages[-1]["content"]), *answers, str(each.messages[-1]["content"])]
            for each, (messages, _), *answers in zip(conversations, chats, before, after, strict=True)
        ]
        columns = ["last message", "answer before training", "answer after training", "answer of the data"]
        table = {"kind": "examples", "title": "Answers", "columns": columns, "rows": rows}
        return Evaluation(figures | baseline, [table] if rows else [], notes)

    def _baseline(self, dataset: Dataset, split: str, count: int) -> dict[str, float]:
        """Return loss and perplexity of the start of training on the split, whose answers have ``count`` targets."""
        if self.reference is None or not count:
            return {}
        with torch.no_grad(), self.reference() as start:
            nats = sum(float(self.summed_loss(start, batch.to(start.device))) for batch in dataset.rows(split))
        return {"loss_of_start": nats / count, "perplexity_of_start": exponential(nats / count)}


def _with_question(rows: Iterable[Mapping[str, Any]], most: int) -> list[Conversation]:
    """Return the first ``most`` conversations that have a message before the last answer."""
    conversations = (read_conversation(row) for row in rows)
    return list(islice((each for each in conversations if len(each.messages) > 1), most))


def _before_answer(conversation: Conversation) -> tuple[Sequence[Mapping[str, Any]], Any]:
    """Return the messages before the last answer, and the tools."""
    return conversation.messages[:-1], conversation.tools


def _example(text: ChatText) -> Example:
    return Example(len(text.ids) - 1, int(text.targets[1:].sum()), text)


def _seen(reader: PictureReader, texts: Sequence[ChatText]) -> Inputs:
    """Return the signals of the pictures of texts, in their order; None without any."""
    return reader.signals([each for text in texts for each in text.pictures]) or None


def _nothing(texts: Sequence[ChatText]) -> Inputs:
    return None


def one_per_row(texts: Sequence[ChatText], see: See = _nothing) -> Batch:
    """Build a batch with one text per row. ``see``: signals of the pictures of texts, by name of the input."""
    ids, lengths = padded([text.ids[:-1] for text in texts])
    targets, _ = padded([_next_targets(text) for text in texts], IGNORED)
    return Batch.of(Signal(ids, lengths_or_none(ids, lengths), inputs=see(texts)), targets)


def _with_prefix(texts: Sequence[ChatText], see: See = _nothing) -> Batch:
    """Build a batch with one text per row, whose prefix ends before the first target."""
    batch = one_per_row(texts, see)
    ends = torch.tensor([int(text.targets.argmax()) for text in texts])
    return Batch.of(replace(batch.input, prefix=ends), batch.targets)


def _next_targets(text: ChatText) -> np.ndarray:
    """Return the next token at each position that predicts a target, ``IGNORED`` elsewhere."""
    return np.where(text.targets[1:], text.ids[1:], IGNORED)


def _packer(length: int) -> Callable[..., Batch]:
    """Return the function that packs texts into rows of ``length`` positions, which do not see each other."""

    def packed(texts: Sequence[ChatText], see: See = _nothing) -> Batch:
        rows = pack([len(text.ids) - 1 for text in texts], length)
        ordered = [texts[i] for row in rows for i in row]
        if all(len(row) == 1 for row in rows):
            return one_per_row(ordered, see)
        ids, lengths = padded([np.concatenate([texts[i].ids[:-1] for i in row]) for row in rows])
        targets, _ = padded([np.concatenate([_next_targets(texts[i]) for i in row]) for row in rows], IGNORED)
        numbers = [np.repeat(np.arange(len(row)), [len(texts[i].ids) - 1 for i in row]) for row in rows]
        segments = torch.stack([_filled(number, ids.shape[1]) for number in numbers])
        signal = Signal(ids, lengths_or_none(ids, lengths), segments=segments, inputs=see(ordered))
        return Batch.of(signal, targets)

    return packed


def _filled(numbers: np.ndarray, length: int) -> Tensor:
    """Return the document numbers of a row, whose padding belongs to the last document."""
    return torch.from_numpy(np.pad(numbers, (0, length - len(numbers)), mode="edge"))
