"""Causal modelling of images as sequences of codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.processors.image_codes import ImageCodesProcessor
from qkv.data.vocabulary import Vocabulary
from qkv.generation.decode.sample import Sampling
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.heads.language_loss import language_loss
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.signals.image_sequences import ImageCodes
from qkv.spec.tasks import NextToken
from qkv.tasks.dataset import Dataset, ExampleDataset
from qkv.tasks.example_task import Collate
from qkv.tasks.images.generated import GeneratedImagesTask, places_of
from qkv.tasks.inputs import EncodedRow, SignalReader
from qkv.tasks.signal_task import processor_of
from qkv.tasks.task import Evaluation, Scale, Totals
from qkv.tasks.text.next_token import exponential


@implements(NextToken, of=ImageCodes)
class ImageTokensTask(GeneratedImagesTask):
    """Causal modelling of the codes of images: -Σ log p(c_i | start, c_<i), in the order of the processor.

    The vocabulary is the ids of the codes, then the ids of the start tokens: one per label, or one for all images.
    """

    loss_unit = "nats a code"

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        places_of(codes_of(vocabulary).spec, recipe.model.context_length)
        return super().collator(recipe, vocabulary)

    def batch(self, reader: SignalReader, rows: Sequence[EncodedRow]) -> Batch:
        signal, _ = reader.signal(rows)
        first = torch.tensor([row.truth for row in rows]) + reader.processor.spec.codes
        return Batch.of(torch.cat((first[:, None], signal.values[:, :-1]), 1), signal.values)

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """Compute -Σ log p(next code) over the batch, in nats."""
        return language_loss(model, batch.input, batch.targets, tap=tap)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        loss = seen.loss / seen.count if seen.count else math.nan
        return {"loss": loss, "perplexity": exponential(loss), "bits_per_code": loss / math.log(2)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        figures = self.figures(seen, dataset.scale(split)) | place_frequencies(dataset, split)
        return Evaluation(figures, [self.samples(model, dataset.vocabulary, recipe.sample)])

    def images(
        self, model: Any, vocabulary: Vocabulary, generation: Generation, count: int, label: str | None = None
    ) -> list[np.ndarray]:
        processor = codes_of(vocabulary)
        spec = processor.spec
        starts = [[start + (spec.codes or 0)] for start in self.starts(vocabulary, count, label)]
        generation = generation.changed(max_new_tokens=spec.places, stop=(), num_beams=1, num_return=1)
        sampling = Sampling(model, starts, generation, drawn=spec.codes)
        with evaluating(model):
            while sampling.running:
                sampling.step()
        return processor.images(np.array([text[1:] for text in sampling.texts.values()], np.int32))


def codes_of(vocabulary: Vocabulary) -> ImageCodesProcessor:
    """Return the processor of a run on codes of images. Raises ``UserError`` if the run has none."""
    processor = processor_of(vocabulary)
    assert isinstance(processor, ImageCodesProcessor)
    return processor


def place_frequencies(dataset: ExampleDataset, split: str) -> dict[str, float]:
    """Compute the loss of a baseline, in nats per code: code frequencies at each position, with add-one smoothing.

    The frequencies are counted over the training split.
    """
    examples = dataset.fitted_examples
    if not examples:
        return {}
    codes = codes_of(dataset.vocabulary).spec.codes or 1
    train, truth = (
        np.stack([example.fields.value for example in some]) for some in (examples, dataset.examples[split])
    )
    total = 0.0
    for place in range(train.shape[1]):
        counts = np.bincount(train[:, place], minlength=codes) + 1.0
        total -= float(np.log(counts / counts.sum())[truth[:, place]].mean())
    return {"loss_of_place_frequencies": total / train.shape[1]}
