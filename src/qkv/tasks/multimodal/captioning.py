"""Captioning: a decoder writes a text about the image, or another signal, that an encoder reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qkv.data.corpora.corpus import TRAIN
from qkv.data.processors.processor import Processor
from qkv.data.records.model import Records, Role
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.models.alignment import alignment
from qkv.models.nearest import Nearest
from qkv.models.transformer import Transformer
from qkv.models.wide import DEEP
from qkv.ops.at_least_single import at_least_single
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Captioning
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import Truncation, text_in
from qkv.tasks.metrics.caption_metrics import cider
from qkv.tasks.metrics.text_metrics import metric_library
from qkv.tasks.multimodal.baseline import spread
from qkv.tasks.pairs.pairs import marks
from qkv.tasks.pairs.signal_to_text import SignalToTextTask
from qkv.tasks.task import Evaluation, Totals

_SHOWN, _WORDS = 12, 12
"""Numbers of captions in the report, and of tokens whose attention is drawn."""
_NOTE = "Cross-attention of the last layer, mean over heads, when each token was written: bright places were read."


@implements(Captioning)
class CaptioningTask(SignalToTextTask):
    """Captioning, evaluated by CIDEr and BLEU; baseline: the caption of the most similar training image."""

    roles = (
        Role("image", "image", ("image", "picture", "photo", "file", "path")),
        Role(
            "target",
            "text",
            ("target", "caption", "captions", "text", "description", "sentence", "title"),
            written=True,
        ),
    )
    asks = ("image",)
    metric = "cider"

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        recipe = super().completed(recipe, records)
        if recipe.wide is None:
            return recipe
        texts = sorted((text_in(row, "target") for row in records.splits[TRAIN]), key=lambda text: -len(text.encode()))
        longest = texts[: len(spread(len(texts)))]  # which rows are kept is known when all of them are read
        return recipe.changed(wide=recipe.wide.of_texts(longest))

    def write(
        self,
        model: Transformer,
        vocabulary: Vocabulary,
        recipe: Recipe,
        rows: Sequence[Mapping[str, Any]],
        cut: Truncation | None = None,
    ) -> list[str]:
        if self.wide is None or self.wide.reads(DEEP):
            return super().write(model, vocabulary, recipe, rows, cut)
        assert isinstance(self.wide, Nearest)
        processor = self.processor_of(vocabulary)
        try:
            features = _features(processor, [processor.read(row[self.asks[0]]) for row in rows])
        except Unusable as error:
            raise UserError(str(error)) from None
        assert features is not None
        return self.wide.nearest(features) if len(features) else []

    def fit_nearest(self, dataset: ExampleDataset) -> int:
        """Keep the features and texts of the training rows in the wide path; return the number of rows."""
        assert isinstance(self.wide, Nearest)
        features, texts = self._known(dataset)
        assert features is not None
        self.wide.place(features, texts)
        return len(texts)

    def _known(self, dataset: ExampleDataset) -> tuple[np.ndarray | None, list[str]]:
        """Return (simple features of training rows, None if there are none; their captions)."""
        examples, rows = [*(dataset.fitted_examples or ())], [*(dataset.fitted_on or ())]
        indices = spread(len(examples))
        processor = self.processor_of(dataset.vocabulary)
        features = _features(processor, [self._signal_of(examples[i]) for i in indices])
        return features, [rows[i]["target"] for i in indices]

    def compare(self, written: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Evaluation:
        references = _references(rows, self.asks[0])
        scorer = metric_library("sacrebleu.metrics").BLEU()
        most = max(map(len, references), default=0)
        columns = [[some[k] if k < len(some) else None for some in references] for k in range(most)]
        score = scorer.corpus_score(list(written), columns)
        exact = sum(text in some for text, some in zip(written, references, strict=True)) / max(1, len(written))
        figures = {"cider": cider(written, references), "bleu": score.score, "exact": 100 * exact}
        return Evaluation(figures, [], [f"BLEU: {scorer.get_signature()}"])

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        evaluation = super().evaluate(model, dataset, split, seen, recipe)
        assert isinstance(dataset, ExampleDataset)
        nearest = self._nearest(dataset, split)
        if nearest is None:
            return evaluation
        simple = self.compare(nearest, dataset.records[split]).figures
        figures = evaluation.figures | {f"{name}_of_nearest_neighbour": value for name, value in simple.items()}
        return Evaluation(figures, evaluation.sections, evaluation.notes)

    def _nearest(self, dataset: ExampleDataset, split: str) -> list[str] | None:
        """Return the caption of the most similar training image for each image of a split, by the cosine of simple
        features; None without such features.
        """
        training, texts = self._known(dataset)
        values = [self._signal_of(example) for example in dataset.examples[split]]
        unseen = _features(self.processor_of(dataset.vocabulary), values)
        if training is None or unseen is None:
            return None
        mean, deviation = training.mean(0), training.std(0) + 1e-6
        training, unseen = (_unit((x - mean) / deviation) for x in (training, unseen))
        return [texts[i] for i in (unseen @ training.T).argmax(1)]

    def _signal_of(self, example: Example) -> Any:
        """Return the encoded image of an example."""
        return example.fields.values[0] if self.inputs else example.fields.source

    def _looked_at(
        self,
        model: Any,
        vocabulary: Vocabulary,
        recipe: Recipe,
        rows: Sequence[Mapping[str, Any]],
        written: Sequence[str],
    ) -> list[dict[str, Any]]:
        """Build the report sections of images with their captions, and of where each word of one looked."""
        processor = self.processor_of(vocabulary)
        pairs = zip(rows[:_SHOWN], written, strict=False)
        drawn = [
            {"source": picture, "sound": processor.player(row[self.asks[0]]), "caption": f"{text} ({row['target']})"}
            for row, text in pairs
            if (picture := processor.picture(row[self.asks[0]])) is not None
        ]
        if not drawn:
            return []
        section = {"kind": "pictures", "title": "Captions, and those of the data", "pictures": drawn}
        if self.wide is not None and not self.wide.reads(DEEP):
            return [section]  # the model did not write them
        return [section, *self._attention(model, vocabulary, processor, rows[0], written[0])]

    def _attention(
        self, model: Transformer, vocabulary: Vocabulary, processor: Processor, row: Mapping[str, Any], text: str
    ) -> list[dict[str, Any]]:
        """Build the section of cross-attention over one image; empty if positions are on no grid of an image."""
        encoder, encoded = model.spec.encoder, processor.read(row[self.asks[0]])
        picture = processor.picture_read(encoded)
        grid = (
            None if encoder is None or encoder.latents is not None else encoder.frontend.grid
        )  # latents have no place
        if encoder is None or grid is None or len(grid) != 2 or picture is None:
            return []
        begin, _ = marks(vocabulary, self.spec.begin)
        tokens = vocabulary.target.encode(text)[:_WORDS]
        try:
            _, weights = alignment(model, processor.signal([encoded]), [*begin, *tokens][:-1])[-1]
        except UserError:  # the decoder reads the memory without attention
            return []
        shares = at_least_single(weights).mean(0)[len(begin) - 1 :, encoder.frontend.leading :].reshape(-1, *grid).cpu()
        pictures = [
            {
                "source": picture,
                "caption": vocabulary.target.decode([token]).strip(),
                "heat": (share / share.max().clamp(min=1e-12)).tolist(),
                "covered": list(encoder.frontend.covered[-2:]),
            }
            for token, share in zip(tokens, shares, strict=False)
        ]
        return [{"kind": "pictures", "title": "Where each word looked", "note": _NOTE, "pictures": pictures}]


def _references(rows: Sequence[Mapping[str, Any]], name: str) -> list[list[str]]:
    """Return the captions of the image of each row: of all rows with the same file."""
    captions = defaultdict[Any, list[str]](list)
    keys = [row[name] if isinstance(row[name], str) else i for i, row in enumerate(rows)]
    for key, row in zip(keys, rows, strict=True):
        captions[key].append(row["target"])
    return [captions[key] for key in keys]


def _features(processor: Processor, values: Sequence[Any]) -> np.ndarray | None:
    rows = [row for row in map(processor.features, values) if row is not None]
    return np.stack(rows) if rows and len(rows) == len(values) else None


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
