"""Transcription by connectionist temporal classification (CTC): the text of a sound or of another signal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.batching.padding import padded
from qkv.data.corpora.corpus import TRAIN, VALIDATION
from qkv.data.features.token_ngrams import TokenNgrams
from qkv.data.pretrained import Pretrained
from qkv.data.records.model import Records, Role
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.heads.ctc import CTCTranscriber
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.data import NO_DATA, Data
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Transcription
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import Collate, ExampleTask, Rows, column, encode_rows, fit_processors, text_in, trained
from qkv.tasks.inputs import EncodedRow, InputReader, input_roles
from qkv.tasks.metrics.speech_metrics import error_rates, rates_by, token_error, word_error
from qkv.tasks.named_inputs import reader_of
from qkv.tasks.sound.language_scores import read_language_model, text_scores
from qkv.tasks.sound.search import ScoredText, aligned, beam_search, greedy
from qkv.tasks.task import Evaluation, Observed, Scale, Totals

TRANSCRIPT = Role(
    "transcript",
    "text",
    ("transcript", "transcription", "text", "sentence", "normalizedtext", "utterance", "target", "words", "label"),
    written=True,
)
SPEAKER = Role("speaker", "name", ("speaker", "speakerid", "voice", "reader", "clientid"), optional=True, by_name=True)
_AT_ONCE = 16
_SHOWN = 20
_LISTED = 3
_ALIGNED, _WIDEST = 2, 400
"""Number of rows that the report shows with their alignment, and largest number of positions of such a row."""


@implements(Transcription)
class TranscriptionTask(ExampleTask):
    """Transcription: -log Σ p(alignment | signal) over the alignments of the text (CTC, Graves et al. 2006).

    A text of n tokens, of which r equal the one before, has no alignment with fewer than n + r positions. Such rows are
    counted before training; they add nothing to the loss and the gradient, but count in the error rates.
    """

    loss_unit = "nats a token"
    evaluates = True
    metric = "wer"

    def __init__(self, spec: Transcription):
        super().__init__(spec)
        self._language: Pretrained | None = None
        self.reading(NO_DATA)

    def reading(self, data: Data) -> Self:
        self.transcribes = data.processor is not None and data.processor.of_sounds
        inputs = input_roles(data)[:1]
        self.roles, self.asks = (*inputs, TRANSCRIPT, SPEAKER), tuple(role.name for role in inputs)
        return super().reading(data)

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        texts = column(records, TRANSCRIPT.name)
        tokenizer = trained(recipe.data.tokenizer, texts)
        order, ngrams = recipe.task.search.ngram, None  # type: ignore[attr-defined]
        if order:
            ngrams = TokenNgrams.counted(order, tokenizer.vocab_size, [tokenizer.encode(text) for text in texts])
        return Vocabulary(tokenizer, tokenizer, (), fit_processors(recipe.data, records), ngrams)

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {}

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> InputReader:
        if vocabulary.processor is None:
            raise UserError("the task 'transcription' reads one input that is not text; give data.processor")
        return reader_of(recipe, vocabulary)

    def change(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Batch, np.random.Generator], Batch] | None:
        return self.reader(recipe, vocabulary).change

    def encode(self, row: Mapping[str, Any], vocabulary: Vocabulary, reader: Any) -> Example:
        ids = np.asarray(vocabulary.target.encode(text_in(row, TRANSCRIPT.name)), np.int64)
        return reader.example(row, ids)._replace(targets=len(ids))

    def usable(self, rows: Rows, vocabulary: Vocabulary, reader: Any) -> tuple[Rows, list[Example], list[str]]:
        return encode_rows(rows, lambda row: self.encode(row, vocabulary, reader))

    def _dataset(
        self, recipe: Recipe, records: Records, vocabulary: Vocabulary, reader: Any, notes: Sequence[str] = ()
    ) -> ExampleDataset:
        dataset = super()._dataset(recipe, records, vocabulary, reader, notes)
        dataset.notes = (*dataset.notes, *impossible_notes(dataset))
        return dataset

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        read = self.reader(recipe, vocabulary)

        def collate(rows: Sequence[EncodedRow]) -> Batch:
            targets, _ = padded([row.truth for row in rows], -1)
            return read.batch(rows, targets, sum(len(row.truth) for row in rows))

        return collate

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        head, outputs = model.head, self.outputs(model, batch.input, tap)
        assert isinstance(head, CTCTranscriber)
        return head.loss_within(outputs, model.frontend.lengths(batch.input), batch.targets)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        """Return the loss of a batch; outcomes: per row (token ids of the text, ids of the greedy transcription)."""
        outputs, lengths = self.outputs(model, batch.input), model.frontend.lengths(batch.input)
        head = model.head
        assert isinstance(head, CTCTranscriber)
        loss = head.loss_within(outputs, lengths, batch.targets)
        pairs = [
            (truth[truth >= 0].tolist(), list(greedy(row, head.blank).tokens))
            for row, truth in zip(_chances(outputs, lengths), batch.targets.cpu(), strict=True)
        ]
        return Observed(loss, batch.num_targets, pairs)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        truth, answers = [pair[0] for pair in seen.outcomes], [pair[1] for pair in seen.outcomes]
        return {"loss": seen.loss / max(1, seen.count), "token_error": token_error(truth, answers)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        rows = dataset.records[split]
        answers = self.predict(model, dataset.vocabulary, recipe, rows)
        truth, texts = [row[TRANSCRIPT.name] for row in rows], [answer["answer"] for answer in answers]
        figures = error_rates(truth, texts) | self.figures(seen, dataset.scale(split))
        if self.spec.search.beams > 1:
            pairs = [[dataset.vocabulary.target.decode(ids) for ids in pair] for pair in seen.outcomes]
            figures["wer_of_greedy"] = word_error([pair[0] for pair in pairs], [pair[1].strip() for pair in pairs])
        if dataset.fitted_on:
            usual = Counter(row[TRANSCRIPT.name] for row in dataset.fitted_on).most_common(1)[0][0]
            figures["wer_of_most_frequent"] = word_error(truth, [usual] * len(truth))
        examples = [
            self._shown(row, answer, recipe, dataset.vocabulary) for row, answer in zip(rows, answers, strict=True)
        ]
        table = {"kind": "examples", "title": "Transcriptions", "columns": ["input", "transcription", "text"]}
        sections = [*_by_speaker(rows, texts), {**table, "rows": examples[:_SHOWN]}]
        return Evaluation(figures, [*sections, *self._alignments(model, dataset, rows[:_ALIGNED], recipe)])

    def _alignments(
        self, model: Any, dataset: ExampleDataset, rows: Sequence[Mapping[str, Any]], recipe: Recipe
    ) -> list[dict[str, Any]]:
        """Build the report sections of the inputs of rows, and of their texts over positions."""
        reader = self.reader(recipe, dataset.vocabulary)
        read = [self.encoded_row(reader, row) for row in rows]
        sections, pictures = list[dict[str, Any]](), list[dict[str, Any]]()
        for row, chances in zip(rows, self.chances(model, reader, read), strict=True):
            picture = reader.picture(row)
            if picture is not None:
                pictures.append({"source": picture, "sound": reader.player(row), "caption": row[TRANSCRIPT.name]})
            text = self.search(chances, model.head.blank, dataset.vocabulary)
            if text.tokens and len(chances) <= _WIDEST:
                sections.append(alignment_section(chances, text.tokens, model.head.blank, dataset.vocabulary))
        return [*([{"kind": "pictures", "title": "Inputs", "pictures": pictures}] if pictures else []), *sections]

    def _shown(
        self, row: Mapping[str, Any], answer: Mapping[str, Any], recipe: Recipe, vocabulary: Vocabulary
    ) -> list[str]:
        return [self.reader(recipe, vocabulary).shown(row), answer["answer"], row[TRANSCRIPT.name]]

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        assert isinstance(dataset, ExampleDataset)
        rows = dataset.records[VALIDATION][:5]
        answers = self.predict(model, dataset.vocabulary, recipe, rows)
        return "\n".join(
            f"{answer['answer']}\n  ({row[TRANSCRIPT.name]})" for row, answer in zip(rows, answers, strict=True)
        )

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        reader, answers = self.reader(recipe, vocabulary), list[dict[str, Any]]()
        for begin in range(0, len(rows), _AT_ONCE):
            read = [self.encoded_row(reader, row) for row in rows[begin : begin + _AT_ONCE]]
            for chances in self.chances(model, reader, read):
                answers.append(self.answer(chances, model.head.blank, vocabulary))
        return answers

    @staticmethod
    def encoded_row(reader: InputReader, row: Mapping[str, Any]) -> EncodedRow:
        """Encode the input of a row for a prediction. Raises ``UserError``."""
        try:
            return reader.noted(row, ())[0]
        except Unusable as error:
            raise UserError(str(error)) from None

    def chances(self, model: Any, reader: InputReader, rows: Sequence[EncodedRow]) -> list[np.ndarray]:
        """Return log p (N, C) of the tokens and the blank at the positions of each row."""
        signal = reader.signal(rows)[0].to(model.device)
        with torch.inference_mode(), evaluating(model):
            return _chances(self.outputs(model, signal), model.frontend.lengths(signal))

    def answer(self, chances: np.ndarray, blank: int, vocabulary: Vocabulary) -> dict[str, Any]:
        """Return the prediction from log p (N, C): ``answer``, and ``confidence``, the mean probability of a frame."""
        best = self.search(chances, blank, vocabulary)
        text = vocabulary.target.decode(list(best.tokens), skip_special=True).strip()
        sure = math.exp(float(chances.max(1).mean())) if len(chances) else 0.0
        return {"answer": text, "confidence": round(sure, 4)}

    def search(self, chances: np.ndarray, blank: int, vocabulary: Vocabulary) -> ScoredText:
        """Return the best text of log p (N, C) by the task's settings of the search. Raises ``UserError``."""
        settings = self.spec.search
        if settings.beams == 1:
            return greedy(chances, blank)
        if settings.ngram and vocabulary.ngrams is None:
            raise UserError("task.search.ngram: the run holds no n-grams; train with this setting")
        language = vocabulary.ngrams.next_logits if settings.ngram and vocabulary.ngrams else None
        texts = beam_search(chances, blank, settings.beams, language, settings.weight, settings.bonus)
        return texts[0] if settings.language_model is None else self._ordered(texts, vocabulary)[0]

    def _ordered(self, texts: Sequence[ScoredText], vocabulary: Vocabulary) -> list[ScoredText]:
        """Return texts ordered by their scores with the weighted log-probabilities of the language model."""
        settings = self.spec.search
        if self._language is None:
            self._language = read_language_model(settings.language_model)
        written = [vocabulary.target.decode(list(text.tokens), skip_special=True).strip() for text in texts]
        totals = [
            ScoredText(text.tokens, text.score + settings.weight * score)
            for text, score in zip(texts, text_scores(self._language, written), strict=True)
        ]
        return sorted(totals, key=lambda text: -text.score)


def _chances(outputs: Tensor, lengths: Tensor | None) -> list[np.ndarray]:
    """Return the log-probabilities (N, C) of each row of logits, without padding."""
    counts = [outputs.shape[1]] * len(outputs) if lengths is None else lengths.clamp(max=outputs.shape[1]).tolist()
    chances = at_least_single(outputs).log_softmax(-1).cpu().numpy()
    return [row[:count] for row, count in zip(chances, counts, strict=True)]


def alignment_section(chances: np.ndarray, tokens: Sequence[int], blank: int, vocabulary: Vocabulary) -> dict[str, Any]:
    """Build the report section of the probability of each token of a text over positions, near its own position.

    chances (N, C): log-probabilities of the tokens and the blank.
    """
    places = aligned(chances, tokens, blank)
    borders = [0, *((a + b + 1) // 2 for a, b in pairwise(places)), len(chances)]
    weights = np.zeros((len(tokens), len(chances)))
    for row, token in enumerate(tokens):
        begin, end = borders[row], borders[row + 1]
        weights[row, begin:end] = np.exp(chances[begin:end, token])
    return {
        "kind": "alignment",
        "title": f"Alignment of “{vocabulary.target.decode(list(tokens)).strip()}”",
        "source": [str(i) if i % 10 == 0 else "" for i in range(len(chances))],
        "target": [vocabulary.target.decode([token]) for token in tokens],
        "weights": weights.round(3).tolist(),
        "x_label": "position",
        "y_label": "token",
    }


def frames_needed(ids: Sequence[int]) -> int:
    """Return the smallest number of positions with an alignment of a text: tokens, and a blank in each equal pair."""
    return len(ids) + sum(a == b for a, b in pairwise(ids))


def impossible_notes(dataset: ExampleDataset) -> list[str]:
    """Return a note for each split with texts that have no alignment, as they are too long for their signals.

    Raises ``UserError`` if no text of the training split has an alignment.
    """
    notes, processor, frontend = list[str](), dataset.vocabulary.processor, dataset.recipe.model.frontend
    assert processor is not None
    for split, examples in dataset.examples.items():
        needed = [frames_needed(example.fields.truth.tolist()) for example in examples]
        there = [frontend.positions_of(processor.values_of(example.size)) for example in examples]
        wrong = [index for index, (most, count) in enumerate(zip(there, needed, strict=True)) if most < count]
        if not wrong:
            continue
        some = "; ".join(
            f"{dataset.records[split][i][TRANSCRIPT.name][:40]!r} needs {needed[i]} positions of {there[i]}"
            for i in wrong[:_LISTED]
        )
        what = f"{len(wrong):,} of {len(examples):,} texts of the {split} split are too long for their signals"
        if split == TRAIN and len(wrong) == len(examples):
            raise UserError(f"{what}: {some}; use a front end with a smaller stride, or a tokenizer with longer tokens")
        notes.append(f"{what}, and have no alignment: {some}; {_CONSEQUENCE[split == TRAIN]}")
    return notes


_CONSEQUENCE = ("they count as errors", "they are not learned")


def _by_speaker(rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Build the report section of the error rates of each speaker; empty without a column of speakers."""
    groups = dict[str, tuple[list[str], list[str]]]()
    for row, text in zip(rows, texts, strict=True):
        if row.get(SPEAKER.name) is not None:
            truth, answers = groups.setdefault(str(row[SPEAKER.name]), ([], []))
            truth.append(row[TRANSCRIPT.name])
            answers.append(text)
    return [rates_by(groups, "Error rates by speaker")] if groups else []
