"""Classification of words: one tag per word of a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.batching.padding import lengths_or_none, padded, padded_tables
from qkv.data.corpora.corpus import TRAIN, VALIDATION
from qkv.data.features.word_features import PADDING
from qkv.data.records.model import Records, Role
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.heads import CRFHead
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import TokenClassification
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import Collate, ExampleTask, Truncation, trained, types_or_none
from qkv.tasks.labels.class_weights import label_loss, rare_labels_note, weights_of, with_class_weights
from qkv.tasks.metrics.label_metrics import agreement
from qkv.tasks.task import Defaults, Evaluation, Observed, Scale, Totals
from qkv.tasks.words.entities import (
    OUTSIDE,
    entities,
    entity_f1,
    entity_scores,
    marked,
    marked_text,
    marks_entities,
    text_entities,
)
from qkv.tasks.words.entity_groups import TokenTags, entity_groups
from qkv.tasks.words.sentences import (
    ROLE,
    WORDS,
    Sentence,
    Span,
    TextTokens,
    reader,
    text_reader,
    tokens_of_text,
)
from qkv.tasks.words.tag_baseline import Baselines, too_large

_AT_ONCE = 64
_SHOWN = 20


@implements(TokenClassification)
class TokenClassificationTask(ExampleTask):
    """Tagging of words: -Σ log p(tag of word i | sentence), predicted at the first token of each word.

    Other tokens have no loss. With the front end ``words``, each word is one position, and there is no tokenizer.

    With a tokenizer, words are encoded separately, all but the first with the preceding space. So the ids are the same
    as for the whole sentence if the tokenizer splits at spaces. A separate space token belongs to the next word; the
    tag is predicted at the first token with a character of the word. A word without tokens, such as a control
    character, becomes the unknown token. Sentences are framed by the tokenizer's template, if any.
    """

    loss_unit = "nats a word"
    evaluates = True
    asks = ("words",)
    finds_entities = True
    metric = "f1"
    automatic = Defaults(("words",), best="f1", words=True, head=CRFHead(dropout=0.3), epochs=8)
    roles = (
        Role("words", "words", ("words", "tokens", "sentence", "text", "forms")),
        Role("tags", "tags", ("tags", "nertags", "ner", "labels", "entities", "postags", "pos", "upos")),
    )

    def __init__(self, spec: TokenClassification):
        super().__init__(spec)
        self._baselines = Baselines()

    @cached_property
    def weights(self) -> Tensor | None:
        """Tag weights (C) in the loss; None for no weights."""
        return weights_of(self.spec)

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        tags = [tag for row in records.splits[TRAIN] for tag in row["tags"]]
        return with_class_weights(recipe, tags, _all_tags(records))

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        """Build the list of tags from all splits and, unless the model reads words, the tokenizer from training data.

        A tag that is missing in training cannot be learned, but its errors are counted.
        """
        tags = _all_tags(records)
        if len(tags) < 2:
            raise UserError(
                f"data.source: every word of {records.name!r} has the tag {tags[0]!r}, "
                "so there are no tags to distinguish"
            )
        features = recipe.model.frontend.words
        if features is not None:
            return Vocabulary(labels=tuple(tags), processors={WORDS: features})
        tokenizer = trained(recipe.data.tokenizer, (" ".join(row["words"]) for row in records.splits[TRAIN]))
        return Vocabulary(tokenizer, tokenizer, tuple(tags))

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {ROLE: recipe.model.context_length}

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> Truncation:
        limits = self.limits(recipe)
        if not vocabulary.has_text:
            return Truncation(limits, unit="words")
        return Truncation({ROLE: max(0, limits[ROLE] - vocabulary.tokenizer.frame.size)}, recipe.model.types_read)

    def examples(self, rows: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, cut: Truncation) -> list[Example]:
        read = reader(vocabulary, cut)
        return [_example(row, read(row["words"]), vocabulary.classes) for row in rows]

    def unknown_label(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> str | None:
        return next((tag for tag in row["tags"] if tag not in vocabulary.classes), None)

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        return _collated

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        logits = _logits(model, batch, tap)
        return label_loss(model.head, logits, batch.targets, self.spec.label_smoothing, self.weights)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        """Return the loss of a batch; outcomes: per row (true, predicted) classes of words, -1 for truncated words."""
        logits, mask, pairs = _logits(model, batch), batch.targets != IGNORED, []
        best = model.head.decode(logits, mask)
        for row, unread in enumerate(batch.extras["unread"]):
            read = zip(batch.targets[row][mask[row]].tolist(), best[row][mask[row]].tolist(), strict=True)
            pairs.append([*read, *((true, -1) for true in unread)])
        return Observed(model.head.loss(logits, batch.targets), batch.num_targets, pairs)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        """Compute the loss over the words read, and accuracy and F1 in per cent.

        Truncated words count as wrong in the accuracy. F1 is over whole entities, with truncated words as O. If the
        tags encode no entities, F1 is the mean over tags, without truncated words.
        """
        pairs = [pair for row in seen.outcomes for pair in row]
        right = sum(true == predicted for true, predicted in pairs)
        figures = {
            "loss": seen.loss / max(1, seen.count),
            "accuracy": 100 * right / len(pairs) if pairs else float("nan"),
        }
        if marks_entities(scale.labels):
            return figures | {"f1": entity_f1(*_named(seen, scale.labels))}
        return figures | {
            "f1": agreement([(true, predicted) for true, predicted in pairs if predicted >= 0])["macro_f1"]
        }

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        labels, figures = dataset.vocabulary.labels, self.figures(seen, dataset.scale(split))
        examples = self._tagged(model, dataset, split, recipe)
        fitted_on, rows = dataset.fitted_on or (), dataset.records[split]
        baselines = self._baselines.figures(fitted_on, rows) if fitted_on else {}
        pairs = [pair for row in seen.outcomes for pair in row]
        counts = Counter(tag for row in fitted_on for tag in row["tags"])
        rare = rare_labels_note(self.spec, labels, pairs, counts, recipe.model.head.weighs)
        notes = [*filter(None, [too_large(fitted_on)]), *rare]
        if not marks_entities(labels):
            return Evaluation(figures | baselines, [examples], notes)
        evaluation = entity_scores(*_named(seen, labels))
        return Evaluation(figures | evaluation.figures | baselines, [*evaluation.sections, examples], notes)

    def _tagged(self, model: Any, dataset: ExampleDataset, split: str, recipe: Recipe) -> dict[str, Any]:
        rows = dataset.records[split][:_SHOWN]
        answers = self.predict(model, dataset.vocabulary, recipe, rows)
        sentences = [
            {"words": row["words"], "tags": answer["tags"], "truth": row["tags"]}
            for row, answer in zip(rows, answers, strict=True)
        ]
        return {"kind": "tagged", "title": "Tagged sentences", "sentences": sentences}

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        assert isinstance(dataset, ExampleDataset)
        rows = dataset.records[VALIDATION][:5]
        answers = self.predict(model, dataset.vocabulary, recipe, rows)
        return "\n".join(
            f"{answer['answer']}\n  ({marked(row['words'], row['tags'])})"
            for row, answer in zip(rows, answers, strict=True)
        )

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        cut = self.reader(recipe, vocabulary)
        read_words, read_text, answers = reader(vocabulary, cut), text_reader(vocabulary, cut), list[dict[str, Any]]()
        inputs = [_checked(row["words"]) for row in rows]
        for begin in range(0, len(rows), _AT_ONCE):
            some = inputs[begin : begin + _AT_ONCE]
            read = [read_text(each) if isinstance(each, str) else (read_words(each), None) for each in some]
            sentences = [TaggedSentence(values, types, _at(heads, len(values))) for (values, types, heads), _ in read]
            batch = _collated(sentences).to(model.device)
            with torch.inference_mode(), evaluating(model):
                best = model.head.decode(_logits(model, batch), batch.targets != IGNORED).tolist()
            for each, row, (sentence, spans) in zip(some, best, read, strict=True):
                tags = [vocabulary.labels[row[head]] for head in sentence.heads]
                answers.append(_answer(each, spans, tags, vocabulary.labels))
        return answers

    def grouped(
        self, model: Transformer, vocabulary: Vocabulary, recipe: Recipe, texts: Sequence[str], grouping: str
    ) -> list[dict[str, Any]]:
        """Find the entities of texts with their scores; ``grouping``: see ``qkv.tasks.words.entity_groups``."""
        cut, answers = self.reader(recipe, vocabulary), list[dict[str, Any]]()
        for begin in range(0, len(texts), _AT_ONCE):
            some = texts[begin : begin + _AT_ONCE]
            read = [tokens_of_text(vocabulary.tokenizer, cut, text) for text in some]
            rows = [TaggedSentence(*each.sentence[:2], _at([], len(each.sentence.values))) for each in read]
            with torch.inference_mode(), evaluating(model):
                chances = at_least_single(_logits(model, _collated(rows).to(model.device))).softmax(-1).cpu().numpy()
            for text, each, row in zip(some, read, chances, strict=True):
                groups = entity_groups(text, _token_tags(each, row), vocabulary.labels, grouping)
                answers.append({"answer": marked_text(text, groups), "entities": groups} | cut.note(each.length, ROLE))
        return answers


def _token_tags(read: TextTokens, chances: np.ndarray) -> TokenTags:
    """Return the tokens of a text that belong to words, with their rows of ``chances`` (N, C)."""
    heads = [head - read.begin for head in read.sentence.heads]
    words = np.searchsorted(heads, np.arange(len(read.tokens)), side="right") - 1
    inside = [i for i, (begin, end) in enumerate(read.tokens) if words[i] >= 0 and end > begin]
    return TokenTags(
        [read.tokens[i] for i in inside], [int(words[i]) for i in inside], chances[[read.begin + i for i in inside]]
    )


def _all_tags(records: Records) -> list[str]:
    """Return the tags of all splits, in the order of the classes."""
    return sorted({tag for rows in records.splits.values() for row in rows for tag in row["tags"]})


def _named(seen: Totals, labels: tuple[str, ...]) -> tuple[list[list[str]], list[list[str]]]:
    """Return (true tags, predicted tags) of each sentence as names; truncated words count as O (no entity)."""
    truth = [[labels[true] for true, _ in row] for row in seen.outcomes]
    return truth, [[labels[predicted] if predicted >= 0 else OUTSIDE for _, predicted in row] for row in seen.outcomes]


class TaggedSentence(NamedTuple):
    """Fields of an example.

    values, types (N): input of the model.   targets (N): class of each word at its first position, else ``IGNORED``.
    unread: classes of the truncated words.
    """

    values: np.ndarray
    types: np.ndarray
    targets: np.ndarray
    unread: tuple[int, ...] = ()


def _example(row: Mapping[str, Any], read: Sentence, classes: Mapping[str, int]) -> Example:
    unknown = next((tag for tag in row["tags"] if tag not in classes), None)
    if unknown is not None:
        raise UserError(f"data: the tag {unknown!r} is not among the tags of the run: {', '.join(classes)}")
    tags, (values, types, heads) = [classes[tag] for tag in row["tags"]], read
    targets = _at(heads, len(values), tags[: len(heads)])
    return Example(len(values), len(heads), TaggedSentence(values, types, targets, tuple(tags[len(heads) :])))


def _at(heads: list[int], length: int, classes: Sequence[int] | int = 0) -> np.ndarray:
    """Build targets (``length``,) with ``classes`` at the positions ``heads``; by default a placeholder, class 0."""
    targets = np.full(length, IGNORED, np.int64)
    targets[heads] = classes
    return targets


def _checked(value: Any) -> str | list[str]:
    """Return the input of a prediction: a text, or a list of words. Raises ``UserError`` for anything else."""
    if isinstance(value, str) and value.strip():
        return value
    words = () if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not words or not all(isinstance(word, str) and word for word in words):
        raise UserError(f"words: {value!r} is not a sentence; give a text with at least one word, or a list of words")
    return list(words)


def _answer(
    value: str | list[str], spans: Sequence[Span] | None, tags: list[str], labels: Sequence[str]
) -> dict[str, Any]:
    """Build the readable prediction for a sentence; truncated words get O, or "?" if tags encode no entities.

    ``spans``: offsets of the words of a text; None for a list of words. The answer has ``entities``: type and text of
    each entity, with its offsets [start, end) in a text.
    """
    words = [value[begin:end] for begin, end in spans] if isinstance(value, str) and spans else list(value)
    unread, encodes = len(words) - len(tags), marks_entities(labels)
    tags = tags + [OUTSIDE if encodes else "?"] * unread
    answer: dict[str, Any] = {"answer": marked(words, tags), "words": words, "tags": tags}
    if encodes and isinstance(value, str) and spans:
        answer["entities"] = text_entities(value, spans, tags)
        answer["answer"] = marked_text(value, answer["entities"])
    elif encodes:
        answer["entities"] = [{"type": kind, "text": " ".join(words[begin:end])} for kind, begin, end in entities(tags)]
    if unread:
        answer["note"] = (
            f"the last {unread} of {len(words)} words were truncated: the sentence is longer than the model can read"
        )
    return answer


def _collated(rows: Sequence[TaggedSentence]) -> Batch:
    read = [row.values for row in rows]
    values, lengths = padded(read) if read[0].ndim == 1 else padded_tables(read, PADDING)
    targets, _ = padded([row.targets for row in rows], IGNORED)
    types, unread = types_or_none([row.types for row in rows]), tuple(row.unread for row in rows)
    return Batch.of(Signal(values, lengths_or_none(values, lengths), types=types), targets, unread=unread)


def _logits(model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
    """Compute the logits (B, N, C) of each position for the C tags."""
    return model(batch.input, tap=tap)[0]
