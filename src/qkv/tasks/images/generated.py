"""Base class for tasks that generate images value by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from qkv.data.records.model import Records, Role
from qkv.data.records.values import natural
from qkv.data.vocabulary import Vocabulary
from qkv.spec.generation import Generation
from qkv.spec.processors import Processor as ProcessorSpec
from qkv.spec.recipe import Recipe
from qkv.spec.signals.image_sequences import ImageSequence
from qkv.system.errors import UserError, nearest
from qkv.tasks.example_task import column, fit_processors
from qkv.tasks.images.sheet_section import picture_section
from qkv.tasks.labels.classification import LABEL
from qkv.tasks.signal_task import SignalTask

SAMPLES = 64
"""Minimum number of generated images in the report."""
_COLUMNS, _MOST_COLUMNS = 8, 16


class GeneratedImagesTask(SignalTask):
    """Base class of tasks that generate an image value by value after a start token.

    The start token is the label of the image, or the same token for all images.
    """

    label: ClassVar[Role | None] = LABEL
    generates_images: ClassVar[bool] = True

    def labelled(self, processor: ProcessorSpec | None) -> bool:
        return processor is not None and processor.reads_label

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        processor = recipe.data.processor
        assert isinstance(processor, ImageSequence)
        labels = tuple(sorted(set(column(records, LABEL.name)), key=natural)) if processor.labelled else ()
        fitted = fit_processors(recipe.data, records)
        starts = {name: each.changed(starts=max(1, len(labels))) for name, each in fitted.items()}
        return Vocabulary(labels=labels, processors=starts)

    def unknown_label(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> str | None:
        label = row.get(LABEL.name)
        return label if vocabulary.labels and label not in vocabulary.classes else None

    def starts(self, vocabulary: Vocabulary, count: int, label: str | None) -> list[int]:
        """Return the start indices of ``count`` images of ``label``; None: all labels in turn. Raises ``UserError``."""
        if label is None:
            return [i % max(1, len(vocabulary.labels)) for i in range(count)]
        if not vocabulary.labels:
            raise UserError("the model was trained on images without labels; leave the label out")
        if label not in vocabulary.classes:
            raise UserError(f"the model has no label {label!r}; {nearest(label, vocabulary.labels)}")
        return [vocabulary.classes[label]] * count

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        raise UserError(
            "a model that generates images has no answer to predict; "
            "generate images with 'qkv generate RUN --image FILE'"
        )

    def samples(self, model: Any, vocabulary: Vocabulary, generation: Generation) -> dict[str, Any]:
        """Build the report section of generated images, with one column per label if there are at most 16 labels."""
        labels = len(vocabulary.labels)
        columns = labels if 1 < labels <= _MOST_COLUMNS else _COLUMNS
        count = -(-SAMPLES // columns) * columns
        images = self.images(model, vocabulary, generation, count)
        names = f"; columns: {', '.join(vocabulary.labels)}" if columns == labels else ""
        caption = f"{count} samples at temperature {generation.temperature:g}{names}"
        return picture_section("Generated images", images, columns, caption)


def places_of(spec: ImageSequence, context_length: int) -> int:
    """Return the number of values of an image. Raises ``UserError`` if it exceeds ``context_length``."""
    assert spec.places is not None
    if spec.places > context_length:
        raise UserError(
            f"model.context_length: an image has {spec.places} values, more than {context_length}; "
            f"give model.context_length={spec.places}"
        )
    return spec.places
