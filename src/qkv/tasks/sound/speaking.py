"""Speech from text, as codes of a neural codec."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.data.batching.batch import Batch
from qkv.data.batching.padding import lengths_or_none
from qkv.data.processors.speech import SpeechCodesProcessor, plain_text, row_of
from qkv.data.records.model import Records, Role
from qkv.data.records.values import Unusable, natural
from qkv.data.vocabulary import Vocabulary
from qkv.generation.codes import CodeSampling
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.heads.speech import IGNORED
from qkv.models.transformer import Transformer
from qkv.spec.data import Data
from qkv.spec.generation import Generation
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Speech
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import Collate, Reader, Rows, column, fit_processors
from qkv.tasks.inputs import TEXT, EncodedRow, SignalReader, input_roles
from qkv.tasks.signal_task import SignalTask, processor_of
from qkv.tasks.sound.coding import player
from qkv.tasks.task import Evaluation, Scale, Totals
from qkv.tasks.text.next_token import exponential

VOICE = Role("voice", "label", ("voice", "speaker"), optional=True, by_name=True)
"""Column with the name of the speaker; one voice for all without it."""
ALONE = "voice"
"""Name of the voice of data without a column of voices."""
_HEARD = 6
"""Number of spoken texts in the report."""


@implements(Speech)
class SpeechTask(SignalTask):
    """Speech from text: -Σ log p(code | voice, text, earlier codes) over the codes of all codebooks, in nats."""

    loss_unit = "nats a code"
    next_command = 'qkv say {run} "…" --out said.wav'
    label: ClassVar[Role | None] = None

    def reading(self, data: Data) -> Self:
        super().reading(data)
        self.roles = (*input_roles(data), TEXT, VOICE) if data.processors else (TEXT, VOICE)
        self.asks, self.may_ask = (TEXT.name,), (VOICE.name,)
        return self

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        characters = sorted(set("".join(plain_text(text) for text in column(records, TEXT.name))))
        voices = sorted({row.get(VOICE.name) or ALONE for row in records.splits["train"]}, key=natural)
        processors = {
            name: each.changed(characters=tuple(characters), voices=tuple(voices))
            for name, each in fit_processors(recipe.data, records).items()
        }
        return Vocabulary(processors=processors)

    def usable(self, rows: Rows, vocabulary: Vocabulary, reader: Reader) -> tuple[Rows, list[Example], list[str]]:
        processor, sound = speech_of(vocabulary), self.roles[0].name
        usable_rows, examples, bad = list[dict[str, Any]](), list[Example](), list[str]()
        encoded = processor.encode_all([row[sound] for row in rows])
        for row, codes in zip(rows, encoded, strict=True):
            try:
                if isinstance(codes, Unusable):
                    raise codes
                ids = row_of(processor.symbols(row[TEXT.name], row.get(VOICE.name)), codes, processor.spec.delay)
            except (Unusable, UserError) as error:
                bad.append(str(error))
                continue
            examples.append(Example(len(ids), codes.size + 1, EncodedRow(ids, codes)))
            usable_rows.append(row)
        return usable_rows, examples, bad

    def batch(self, reader: SignalReader, rows: Sequence[EncodedRow]) -> Batch:
        ids = pad_sequence([torch.from_numpy(row.value) for row in rows], batch_first=True)
        read, end = ids[:, :-1].clamp(min=0), reader.processor.spec.codes
        later = ids[:, 1:, 1:]
        targets = torch.where(later > 0, later - 1, torch.where(later < 0, end, IGNORED))
        lengths = torch.tensor([len(row.value) - 1 for row in rows])
        return Batch.of(Signal(read, lengths_or_none(read[..., 0], lengths)), targets)

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        return super().collator(recipe, vocabulary)

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        outputs, _ = model(batch.input, tap=tap)
        return model.head.loss(outputs, batch.targets)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        loss = seen.loss / seen.count if seen.count else math.nan
        return {"loss": loss, "perplexity": exponential(loss)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        figures = self.figures(seen, dataset.scale(split)) | code_frequencies(dataset, split)
        return Evaluation(figures, [self._players(model, dataset, split, recipe.sample)])

    def _players(self, model: Any, dataset: ExampleDataset, split: str, sample: Generation) -> dict[str, Any]:
        """Build the report section with texts of the split as spoken by the model, after the original sounds."""
        processor, rows = speech_of(dataset.vocabulary), dataset.records[split]
        chosen = np.unique(np.linspace(0, len(rows) - 1, _HEARD).round().astype(int))
        sounds, codec = list[dict[str, str]](), processor.coder
        for index in chosen:
            row, codes = rows[index], dataset.examples[split][index].fields.truth
            voice = row.get(VOICE.name)
            name = row[TEXT.name] + (f" ({voice})" if voice else "")
            with evaluating(model):
                spoken = say(model, processor, row[TEXT.name], voice, sample.changed(seed=sample.seed or 1))
            original = codec.decoded([codes])[0]
            for samples, kind in ((original, "coded"), (spoken, "spoken")):
                sounds.append(player(torch.from_numpy(samples), codec.rate, f"{name}: {kind}"))
        return {"kind": "sounds", "title": "Spoken texts", "sounds": sounds, "columns": 2}

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        processor = speech_of(vocabulary)
        answers = list[dict[str, Any]]()
        for row in rows:
            samples = say(model, processor, row[TEXT.name], row.get(VOICE.name), recipe.sample)
            seconds = len(samples) / processor.coder.rate
            answers.append({"answer": f"{seconds:.2f} s of speech; 'qkv say' writes it", "seconds": seconds})
        return answers

    def examples(self, rows: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, reader: Any) -> list[Example]:
        _, examples, bad = self.usable([dict(row) for row in rows], vocabulary, reader)
        if bad:
            raise UserError(bad[0])
        return examples


def say(
    model: Transformer, processor: SpeechCodesProcessor, text: str, voice: str | None, generation: Generation
) -> np.ndarray:
    """Speak a text; return samples (T) in float32 at the rate of the codec. Raises ``UserError``."""
    return np.concatenate([np.zeros(0, np.float32), *say_in_pieces(model, processor, text, voice, generation, 0)])


def say_in_pieces(
    model: Transformer,
    processor: SpeechCodesProcessor,
    text: str,
    voice: str | None,
    generation: Generation,
    vectors: int = 10,
) -> Iterator[np.ndarray]:
    """Speak a text; yield samples as soon as ``vectors`` more vectors are complete; 0: all at once.

    The codec decodes the vectors so far again; samples that later vectors change are held back, and all of them if the
    codec is not causal. The model has to be in evaluation mode. Raises ``UserError``.
    """
    codec, symbols = processor.coder, processor.symbols(text, voice)
    lookahead = codec.head.lookahead
    apart = 0 if lookahead is None else vectors
    prompt = torch.zeros(len(symbols), 1 + processor.codebooks, dtype=torch.long)
    prompt[:, 0] = torch.tensor(symbols) + 1
    sampling, count, sent = CodeSampling(model, [prompt], generation, processor.spec.delay), 0, 0
    while sampling.running:
        sampling.step()
        if apart and sampling.ready(0) >= count + apart:
            samples, count = codec.decoded([sampling.codes(0).numpy()])[0], sampling.ready(0)
            end = max(sent, len(samples) - (lookahead or 0))
            yield samples[sent:end]
            sent = end
    if sampling.ready(0) * codec.head.hop > sent:
        yield codec.decoded([sampling.codes(0).numpy()])[0][sent:]


def speech_of(vocabulary: Vocabulary) -> SpeechCodesProcessor:
    """Return the processor of a run of the task ``speech``. Raises ``UserError`` if its files are missing."""
    processor = processor_of(vocabulary)
    assert isinstance(processor, SpeechCodesProcessor)
    return processor


def code_frequencies(dataset: ExampleDataset, split: str) -> dict[str, float]:
    """Compute the loss of a baseline, in nats a code: frequencies of the codes of each codebook, add-one smoothed."""
    examples = dataset.fitted_examples
    if not examples:
        return {}
    codes = speech_of(dataset.vocabulary).spec.codes or 1
    total, count = 0.0, 0
    train, truth = (
        np.concatenate([example.fields.truth for example in some]) for some in (examples, dataset.examples[split])
    )
    for book in range(train.shape[1]):
        counts = np.bincount(train[:, book], minlength=codes) + 1.0
        total -= float(np.log(counts / counts.sum())[truth[:, book]].sum())
        count += len(truth)
    return {"loss_of_code_frequencies": total / count}
