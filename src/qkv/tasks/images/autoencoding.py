"""Autoencoding of images through a codebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import INPUT, Batch
from qkv.data.processors.images import ImageProcessor
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.heads.codebook import CodebookDecoder, Reconstruction
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Autoencoding
from qkv.tasks.dataset import Dataset, ExampleDataset
from qkv.tasks.images.sheet_section import picture_section
from qkv.tasks.inputs import EncodedRow, SignalReader
from qkv.tasks.signal_task import SignalTask, processor_of
from qkv.tasks.task import Evaluation, Observed, Scale, Totals

_SHOWN = 16
"""Number of images in the report, each above its reconstruction."""
_AT_ONCE = 256
DEVIATION = "deviation"
"""Name of the tensor, in the extras of a batch, with the standard deviation of each channel, for pixels from 0 to 1."""


class Reconstructed(NamedTuple):
    """Results of a batch.

    squared: sum of the squared errors, for pixels from 0 to 1.   count: number of pixel values.   uses (K): number of
    uses of each code.
    """

    squared: float
    count: int
    uses: np.ndarray


@implements(Autoencoding)
class AutoencodingTask(SignalTask):
    """Autoencoding of images: loss (pixel - reconstruction)² + β (z - code)², both as means over their values."""

    adds_rows = False  # its loss has means over the batch
    loss_unit = "a pixel"
    metric = "mse"

    def reconstructed(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Reconstruction:
        """Reconstruct the images of a batch."""
        head = model.head
        assert isinstance(head, CodebookDecoder)
        return head.reconstructed(model.features(batch.input, tap=tap)[0])

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return self._loss(model, batch, self.reconstructed(model, batch, tap))

    def _loss(self, model: Transformer, batch: Batch, reconstruction: Reconstruction) -> Tensor:
        head = model.head
        assert isinstance(head, CodebookDecoder)
        weight = head.part.commitment * batch.targets.numel()
        return head.loss(reconstruction.pixels, batch.targets) + weight * reconstruction.commitment

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        reconstruction = self.reconstructed(model, batch)
        errors = (at_least_single(reconstruction.pixels) - batch.targets) * batch.extras[DEVIATION][:, None, None]
        count = int(model.spec.head.codes)  # type: ignore[attr-defined]
        uses = torch.bincount(reconstruction.codes.ids.flatten(), minlength=count).cpu().numpy()
        seen = Reconstructed(errors.square().sum(dtype=torch.float64).item(), batch.targets.numel(), uses)
        return Observed(self._loss(model, batch, reconstruction), batch.num_targets, [seen])

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        outcomes: Sequence[Reconstructed] = seen.outcomes
        mse = sum(each.squared for each in outcomes) / max(1, sum(each.count for each in outcomes))
        used = usage(np.sum([each.uses for each in outcomes], axis=0)) if outcomes else {}
        return {"loss": seen.loss / max(1, seen.count), "mse": mse, "psnr": decibels(mse), **used}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        figures = self.figures(seen, dataset.scale(split)) | mean_image_error(dataset, split)
        processor = processor_of(dataset.vocabulary)
        assert isinstance(processor, ImageProcessor)
        originals = [example.fields for example in dataset.examples[split][:_SHOWN]]
        with torch.inference_mode(), evaluating(model):
            batch = self.batch(SignalReader(processor), originals).to(model.device)
            pixels = self.reconstructed(model, batch).pixels
        pictures = [*processor.restored(batch.targets), *processor.restored(pixels)]
        caption = f"first {len(originals)} images of the {split} split, and below them their reconstructions"
        return Evaluation(figures, [picture_section("Reconstructions", pictures, len(originals), caption)])

    def batch(self, reader: SignalReader, rows: Sequence[EncodedRow]) -> Batch:
        signal, _ = reader.signal(rows)
        extras: dict[str, Any] = {DEVIATION: torch.tensor(reader.processor.spec.deviation)}
        return Batch.of(signal, signal.values, count=signal.values.numel(), **extras)

    def change(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Batch, np.random.Generator], Batch] | None:
        processor = processor_of(vocabulary)

        def change(batch: Batch, rng: np.random.Generator) -> Batch:
            signal, _ = processor.augmented(batch.input, rng)
            return replace(batch, signals={**batch.signals, INPUT: signal}, targets=signal.values)

        return change

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        reader, answers = self.reader(recipe, vocabulary), list[dict[str, Any]]()
        for begin in range(0, len(rows), _AT_ONCE):
            some = [example.fields for example in self.examples(rows[begin : begin + _AT_ONCE], vocabulary, reader)]
            batch = self.batch(reader, some).to(model.device)
            with torch.inference_mode(), evaluating(model):
                reconstruction = self.reconstructed(model, batch)
            errors = (at_least_single(reconstruction.pixels) - batch.targets) * batch.extras[DEVIATION][:, None, None]
            means = errors.square().mean((1, 2, 3)).tolist()
            answers += [
                {"answer": f"mse {mse:.4g}", "mse": mse, "codes": codes}
                for mse, codes in zip(means, reconstruction.codes.ids.tolist(), strict=True)
            ]
        return answers


def usage(uses: np.ndarray) -> dict[str, float]:
    """Compute metrics of the uses of each code (K): share of the codes in use, in per cent, and perplexity exp(H)."""
    shares = uses[uses > 0] / max(1, uses.sum())
    entropy = float(-(shares * np.log(shares)).sum())
    return {"codes_used": 100 * len(shares) / len(uses), "code_perplexity": math.exp(entropy)}


def decibels(mse: float) -> float:
    """Compute the peak signal-to-noise ratio -10 log10(MSE) of pixels from 0 to 1; infinity for an MSE of 0."""
    return -10 * math.log10(mse) if mse > 0 else math.inf


def mean_image_error(dataset: ExampleDataset, split: str) -> dict[str, float]:
    """Compute the MSE of predicting the mean training image, for pixels from 0 to 1; empty without training images."""
    examples = dataset.fitted_examples
    if not examples:
        return {}
    total = np.zeros(examples[0].fields.value.shape)
    for example in examples:
        total += example.fields.value
    mean, squared = total / len(examples), 0.0
    for example in dataset.examples[split]:
        squared += float(np.square((example.fields.value - mean) / 255).mean())
    return {"mse_of_mean_image": squared / len(dataset.examples[split])}
