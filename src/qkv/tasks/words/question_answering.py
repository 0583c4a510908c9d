"""Extractive question answering: the span of a context that answers a question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import INPUT, Batch
from qkv.data.batching.padding import lengths_or_none, padded
from qkv.data.corpora.corpus import TRAIN, VALIDATION
from qkv.data.records.model import Records, Role
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec import tasks as spec
from qkv.spec.errors import Problem, SpecError
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import Collate, ExampleTask, Truncation, framed_by, text_in, trained, types_or_none
from qkv.tasks.metrics.answer_metrics import answer_scores
from qkv.tasks.metrics.text_metrics import first_sentence
from qkv.tasks.task import Defaults, Evaluation, Observed, Scale, Totals, lowercase
from qkv.tasks.words.spans import Offsets, TokenSpan, best_spans, characters_of, span_of, windows
from qkv.tokenizers.tokenizer import Tokenizer

_AT_ONCE = 32
_SHOWN = 16
_MARKS = 3
Encode = Callable[[str], tuple[list[int], Offsets]]


class ContextWindow(NamedTuple):
    """Window of a context with its question: ``ids`` of [CLS] question [SEP] part of the context [SEP].

    types: token types, if the model reads them.   target: positions of the answer's first and last token in ``ids``.
    question: index of the question.   asked: end of the question in ``ids``.   begin, end: range of the context in
    ``ids``.   offset: index in the whole context of the token at ``begin``.
    """

    ids: np.ndarray
    types: np.ndarray
    target: np.ndarray
    question: int
    asked: int
    begin: int
    end: int
    offset: int


class Seen(NamedTuple):
    """Prediction for one window of a context.

    span, score: best answer span in the context and its score.   total: log-sum-exp of the scores of all spans. none:
    score of "no answer".   right: True if the prediction with the higher score, span or "no answer", is the target.
    """

    question: int
    span: TokenSpan
    score: float
    total: float
    none: float
    right: bool


class Answer(NamedTuple):
    """Prediction for a question from all its windows: a span of the context, or None for "no answer".

    probability: probability of the prediction, by a softmax over all spans and "no answer".
    """

    span: TokenSpan | None
    probability: float


@implements(spec.QuestionAnswering)
class QuestionAnsweringTask(ExampleTask):
    """Extractive question answering: -log p(first token of the answer) - log p(last token), per window of the context.

    Each probability is a softmax over the positions of

        cls question sep context sep

    or of the tokenizer's template for two texts, whose first token then replaces ``cls``. The prefix of a row, if
    the model reads a prefix, ends before the first ``sep``.

    A long context is split into windows. In a window without the whole answer, and for a question without an answer,
    the target is ``cls`` (Devlin et al. 2019). The predicted answer is the span with the highest s_first + e_last over
    all windows. If "no answer" is allowed, it is predicted when s_cls + e_cls is higher than this in every window.
    Training uses the first of several answers.
    """

    loss_unit = "nats a question"
    evaluates = True
    asks = ("question", "context")
    finds_spans = True
    automatic = Defaults(("question", "context"), tokenizer=lowercase, lengths=(128, 256))
    roles = (
        Role("context", "text", ("context", "passage", "paragraph", "document", "article", "text")),
        Role("question", "text", ("question", "query")),
        Role("answers", "answers", ("answers", "answer")),
    )

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        task = recipe.task
        assert isinstance(task, spec.QuestionAnswering)
        if task.no_answer is not None:
            return recipe
        return recipe.changed(task=task.changed(no_answer=any(not row["answers"] for row in records.splits[TRAIN])))

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        rows = records.splits[TRAIN]
        contexts = dict.fromkeys(row["context"] for row in rows)
        tokenizer = framed_by(trained(recipe.data.tokenizer, [*contexts, *(row["question"] for row in rows)]), 2)
        return Vocabulary(tokenizer, tokenizer)

    def limits(self, recipe: Recipe) -> dict[str, int]:
        """Return the maximum number of tokens of the question and of the whole row.

        Raises ``SpecError`` if the longest question would leave no position for a context.
        """
        return self._limits(recipe, _MARKS)

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> Truncation:
        return Truncation(self._limits(recipe, vocabulary.tokenizer.pair_frame.size), recipe.model.types_read)

    def _limits(self, recipe: Recipe, marks: int) -> dict[str, int]:
        most, question = recipe.model.context_length, self.spec.max_question_tokens
        if most <= question + marks:
            sentence = (
                f"a question of {question} tokens and {marks} special tokens leave no room for a context in {most} "
                "positions"
            )
            raise SpecError(
                [Problem(("task", "max_question_tokens"), f"{sentence}; raise model.context_length or lower this")]
            )
        return {"question": question, "row": most}

    def examples(self, rows: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, cut: Truncation) -> list[Example]:
        """Encode rows to one example per window of a context; windows start ``stride`` tokens apart and overlap."""
        all_windows = (window for i, row in enumerate(rows) for window in self._windows(i, row, vocabulary, cut))
        return [Example(len(window.ids), 2, window) for window in all_windows]

    def _windows(
        self, number: int, row: Mapping[str, Any], vocabulary: Vocabulary, cut: Truncation
    ) -> Iterator[ContextWindow]:
        tokenizer = vocabulary.tokenizer
        frame, question = tokenizer.pair_frame, cut(tokenizer.encode(row["question"]), "question").tolist()
        ids, offsets = _encoder(tokenizer)(row["context"])
        answer = _first_answer(row, offsets)
        for first, end in windows(len(ids), cut.limits["row"] - frame.size - len(question), self.spec.stride):
            framed = cut.framed(frame.around(question, ids[first:end]))
            question_end, begin = framed.begins[0] + len(question), framed.begins[1]
            inside = answer is not None and first <= answer.first and answer.last < end
            target = np.array([i - first + begin for i in answer] if answer and inside else [0, 0], np.int64)
            read, types = np.array(framed.ids, np.int64), np.array(framed.types, np.int64)
            yield ContextWindow(read, types, target, number, question_end, begin, begin + end - first, first)

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        return partial(_collated, prefix=recipe.model.reads_prefix)

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return model.head.loss(_logits(model, batch, tap), batch.targets)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        """Compute the loss of a batch and, as its outcomes, one ``Seen`` per window."""
        logits = _logits(model, batch)
        return Observed(model.head.loss(logits, batch.targets), batch.num_targets, self._outcomes(logits, batch))

    def _outcomes(self, logits: Tensor, batch: Batch) -> list[Seen]:
        begin, extras = batch.extras["begin"], batch.extras
        best = best_spans(logits, begin, extras["end"], self.spec.max_answer_tokens)
        places = torch.stack((best.first, best.last), 1)
        right = (places.masked_fill((best.none > best.score)[:, None], 0) == batch.targets).all(1)
        spans = [TokenSpan(*pair) for pair in (places + (extras["offset"] - begin)[:, None]).tolist()]
        columns = (column.tolist() for column in (best.score, best.total, best.none, right))
        return list(map(Seen, extras["question"].tolist(), spans, *columns))

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        """Compute the loss per boundary (first or last token), and the percentage of right predictions of windows."""
        right = [window.right for window in seen.outcomes]
        return {
            "loss": seen.loss / max(1, seen.count),
            "window_accuracy": 100 * sum(right) / len(right) if right else math.nan,
        }

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        rows = dataset.records[split]
        predictions = self._joined(seen.outcomes, len(rows), recipe)
        answers = list(self._texts(rows, predictions, dataset.vocabulary.tokenizer))
        texts = [text for text, _ in answers]
        truths = [[answer["text"] for answer in row["answers"]] for row in rows]
        lead = answer_scores([first_sentence(row["context"]) for row in rows], truths)
        figures = {
            **self.figures(seen, dataset.scale(split)),
            **answer_scores(texts, truths),
            "f1_of_first_sentence": lead["f1"],
        }
        if not all(truths):
            figures["f1_of_no_answer"] = answer_scores([""] * len(rows), truths)["f1"]
        examples = [
            [
                row["question"],
                text or "no answer",
                " | ".join(dict.fromkeys(truth)) or "no answer",
                f"{answer.probability:.3f}",
            ]
            for row, text, truth, answer in zip(rows[:_SHOWN], texts, truths, predictions, strict=False)
        ]
        columns = ["question", "answer", "truth", "probability"]
        return Evaluation(figures, [{"kind": "examples", "title": "Answers", "columns": columns, "rows": examples}])

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        assert isinstance(dataset, ExampleDataset)
        rows = dataset.records[VALIDATION][:5]
        answers = self.predict(model, dataset.vocabulary, recipe, rows)
        truths = [row["answers"][0]["text"] if row["answers"] else "no answer" for row in rows]
        return "\n".join(
            f"{row['question']}\n→ {answer['answer']}  ({truth})"
            for row, answer, truth in zip(rows, answers, truths, strict=True)
        )

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Answer each row: ``answer``, ``probability``, and, for a span, its character range [``start``, ``end``)."""
        cut, device = self.reader(recipe, vocabulary), model.device
        rows = [{name: text_in(row, name) for name in self.asks} for row in rows]
        pieces = [window for i, row in enumerate(rows) for window in self._windows(i, row, vocabulary, cut)]
        seen: list[Seen] = []
        for begin in range(0, len(pieces), _AT_ONCE):
            batch = _collated(pieces[begin : begin + _AT_ONCE], recipe.model.reads_prefix).to(device)
            with torch.inference_mode(), evaluating(model):
                seen += self._outcomes(_logits(model, batch), batch)
        predictions, answers = self._joined(seen, len(rows), recipe), []
        for row, prediction, (text, place) in zip(
            rows, predictions, self._texts(rows, predictions, vocabulary.tokenizer), strict=True
        ):
            answer: dict[str, Any] = {"answer": text or "no answer", "probability": prediction.probability}
            if place is not None:
                answer |= {"start": place[0], "end": place[1]}
            length = len(vocabulary.tokenizer.encode(row["question"]))
            if length > cut.limits["question"]:
                answer["note"] = (
                    f"the question has {length} tokens and the model reads {cut.limits['question']}; "
                    "the rest was not read"
                )
            answers.append(answer)
        return answers

    def _joined(self, predictions: Iterable[Seen], questions: int, recipe: Recipe) -> list[Answer]:
        """Combine ``predictions``, the predictions for all windows, to one answer per question.

        The score of "no answer" is its minimum over the windows, so that one window that is sure of a span suffices.
        """
        assert isinstance(recipe.task, spec.QuestionAnswering)
        of: list[list[Seen]] = [[] for _ in range(questions)]
        for window in predictions:
            of[window.question].append(window)
        return [_together(seen, bool(recipe.task.no_answer)) for seen in of]

    def _texts(
        self, rows: Sequence[Mapping[str, Any]], predictions: Sequence[Answer], tokenizer: Tokenizer
    ) -> Iterator[tuple[str, tuple[int, int] | None]]:
        """Yield (text, character range in the context) of each answer; ("", None) for "no answer"."""
        encode = _encoder(tokenizer)
        for row, answer in zip(rows, predictions, strict=True):
            if answer.span is None:
                yield "", None
            else:
                place = characters_of(answer.span, row["context"], encode(row["context"])[1])
                yield row["context"][slice(*place)], place


@lru_cache(maxsize=4)
def _encoder(tokenizer: Tokenizer) -> Encode:
    """Return the tokenizer's ``encode_offsets`` with a cache, since many questions share a context."""
    return lru_cache(maxsize=64)(tokenizer.encode_offsets)


def _first_answer(row: Mapping[str, Any], offsets: Offsets) -> TokenSpan | None:
    if not row.get("answers"):
        return None
    answer = row["answers"][0]
    return span_of(answer["start"], answer["start"] + len(answer["text"]), offsets)


def _together(seen: Sequence[Seen], may_have_none: bool) -> Answer:
    best = max(seen, key=lambda window: window.score, default=None)
    if best is None or best.score == -math.inf:
        return Answer(None, 1.0)
    none = min(window.none for window in seen) if may_have_none else -math.inf
    total = float(np.logaddexp.reduce([*(window.total for window in seen), none]))
    return (
        Answer(None, math.exp(none - total)) if none > best.score else Answer(best.span, math.exp(best.score - total))
    )


def _collated(rows: Sequence[ContextWindow], prefix: bool) -> Batch:
    """Collate windows; targets (B, 2): first and last position of the answer, or 0 and 0 without the whole answer.

    Extras, each (B,): ``question``, row of the table; ``begin`` and ``end``, range of the context in the ids;
    ``offset``, index in the context of the token at ``begin``. ``prefix``: the prefix of a row ends with the question.
    """
    ids, lengths = padded([window.ids for window in rows])
    targets = torch.from_numpy(np.stack([window.target for window in rows]))
    places = {
        name: torch.tensor([getattr(window, name) for window in rows])
        for name in ("question", "begin", "end", "offset")
    }
    prefixes = torch.tensor([window.asked for window in rows]) if prefix else None
    types = types_or_none([window.types for window in rows])
    return Batch({INPUT: Signal(ids, lengths_or_none(ids, lengths), types=types, prefix=prefixes)}, targets, places)


def _logits(model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
    """Compute the logits (B, N, 2) of first and last position; -∞ at padding."""
    logits, lengths = at_least_single(model(batch.input, tap=tap)[0]), batch.input.lengths
    if lengths is None:
        return logits
    padding = torch.arange(logits.shape[1], device=logits.device) >= lengths[:, None]
    return logits.masked_fill(padding[..., None], -torch.inf)
