"""Generation of images from continuous patches of pixels."""

from __future__ import annotations

import math
import secrets
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.processors.image_patches import ImagePatchesProcessor
from qkv.data.vocabulary import Vocabulary
from qkv.generation.vectors import generate_vectors
from qkv.layers.tap import Tap
from qkv.models.heads.mixture import MixtureOfGaussians
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import NextPatch
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset, ExampleDataset
from qkv.tasks.example_task import Collate
from qkv.tasks.images.generated import GeneratedImagesTask, places_of
from qkv.tasks.inputs import EncodedRow, SignalReader
from qkv.tasks.signal_task import processor_of
from qkv.tasks.task import Evaluation, Scale, Totals

PIXELS, STARTS, UNIT = "pixels", "starts", "unit"
"""Names of the tensors in the extras of a batch.

They hold the pixel levels (B, N, F) without noise, the start indices (B), and the constant that converts nats per
standardised value to nats per level.
"""


@implements(NextPatch)
class NextPatchTask(GeneratedImagesTask):
    """Generation of images from patches: -Σ log p(patch_i | start, patch_<i), in nats, as densities over pixel levels.

    Uniform noise is added to the levels. In training, each step samples new noise; in evaluation, the noise depends on
    the image only.
    """

    loss_unit = "nats a value"

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        places_of(patches_of(vocabulary).spec, recipe.model.context_length)
        return super().collator(recipe, vocabulary)

    def batch(self, reader: SignalReader, rows: Sequence[EncodedRow]) -> Batch:
        levels = np.stack([row.value for row in rows])
        noise = np.stack(
            [np.random.default_rng(zlib.crc32(each.data)).random(each.shape, np.float32) for each in levels]
        )
        starts = torch.tensor([row.truth for row in rows])
        return noisy(_patches(reader), torch.from_numpy(levels), torch.from_numpy(noise), starts)

    def change(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Batch, np.random.Generator], Batch] | None:
        processor = patches_of(vocabulary)

        def change(batch: Batch, rng: np.random.Generator) -> Batch:
            levels = batch.extras[PIXELS]
            noise = torch.from_numpy(rng.random(tuple(levels.shape), np.float32))
            return noisy(processor, levels, noise, batch.extras[STARTS])

        return change

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        outputs, _ = model(batch.input, tap=tap)
        return model.head.loss(outputs, batch.targets) + batch.extras[UNIT] * batch.targets.numel()

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        loss = seen.loss / seen.count if seen.count else math.nan
        return {"loss": loss, "bits_per_value": loss / math.log(2)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        figures = self.figures(seen, dataset.scale(split)) | pixel_gaussians(dataset, split)
        return Evaluation(figures, [self.samples(model, dataset.vocabulary, recipe.sample)])

    def images(
        self, model: Any, vocabulary: Vocabulary, generation: Generation, count: int, label: str | None = None
    ) -> list[np.ndarray]:
        head, processor, spec = model.head, patches_of(vocabulary), patches_of(vocabulary).spec
        assert isinstance(head, MixtureOfGaussians)
        setting = next((name for name in generation.drawing() if name != "temperature"), None)
        if setting is not None:
            raise UserError(f"{setting}: patches are sampled from densities, not from tokens; set only the temperature")
        assert spec.places is not None
        starts = torch.tensor(self.starts(vocabulary, count, label))
        first = read_next(torch.zeros(count, head.features), starts, spec.starts or 1)
        seed = secrets.randbits(32) if generation.seed is None else generation.seed
        generators = [torch.Generator().manual_seed(seed + row) for row in range(count)]

        def draw(outputs: Tensor) -> tuple[Tensor, Tensor]:
            drawn = head.drawn(outputs, generators, generation.temperature)
            return drawn, read_next(drawn, None, spec.starts or 1)

        return processor.images(generate_vectors(model, first, spec.places, draw))


def noisy(processor: ImagePatchesProcessor, levels: Tensor, noise: Tensor, starts: Tensor) -> Batch:
    """Build a batch: the front end reads a start index and all patches but the last, and the targets are all patches.

    levels (B, N, F): pixel levels. noise (B, N, F): uniform noise in [0, 1), which is added to them. starts (B): start
    indices, see ``read_next``.
    """
    patches = processor.standardised(levels + noise)
    count = processor.spec.starts or 1
    first = read_next(torch.zeros_like(patches[:, 0]), starts, count)
    read = torch.cat((first[:, None], read_next(patches[:, :-1], None, count)), 1)
    extras = {PIXELS: levels, STARTS: starts, UNIT: processor.level_nats}
    return Batch.of(read, patches, count=patches.numel(), **extras)


def read_next(patches: Tensor, starts: Tensor | None, count: int) -> Tensor:
    """Append a one-hot start index (``count`` values; zeros for None) to patches (…, F): the front end's input."""
    marks = patches.new_zeros(*patches.shape[:-1], count)
    if starts is not None:
        marks[torch.arange(len(starts)), starts] = 1
    return torch.cat((patches, marks), -1)


def patches_of(vocabulary: Vocabulary) -> ImagePatchesProcessor:
    """Return the processor of a run on patches. Raises ``UserError`` if the run has none."""
    processor = processor_of(vocabulary)
    assert isinstance(processor, ImagePatchesProcessor)
    return processor


def _patches(reader: SignalReader) -> ImagePatchesProcessor:
    assert isinstance(reader.processor, ImagePatchesProcessor)
    return reader.processor


def pixel_gaussians(dataset: ExampleDataset, split: str) -> dict[str, float]:
    """Compute the loss, in nats per value, of a baseline: one Gaussian per value, fitted to the training images."""
    examples = dataset.fitted_examples
    if not examples:
        return {}
    total, squares = (np.zeros(examples[0].fields.value.shape) for _ in range(2))
    for example in examples:
        levels = example.fields.value.astype(np.float64)
        total += levels
        squares += levels**2
    mean = total / len(examples)
    variance = squares / len(examples) - mean**2 + 1 / 12  # variance of the uniform noise
    nats = 0.0
    for example in dataset.examples[split]:
        errors = (example.fields.value - mean) ** 2 + 1 / 12
        nats += float((errors / variance / 2 + np.log(2 * math.pi * variance) / 2).mean())
    return {"loss_of_pixel_gaussians": nats / len(dataset.examples[split])}
