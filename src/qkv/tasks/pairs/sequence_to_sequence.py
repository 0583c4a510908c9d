"""Text-to-text tasks: translation and summarisation, with an encoder or as one sequence with a prefix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Self

import numpy as np
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import VALIDATION
from qkv.data.records.model import Records, Role
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.transformer import Transformer
from qkv.spec.data import Data
from qkv.spec.errors import Problem, SpecError
from qkv.spec.generation import Generation
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Summarization, Translation
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import (
    Collate,
    ExampleTask,
    Rows,
    Truncation,
    column,
    encode_rows,
    fit_processors,
    text_in,
    trained,
)
from qkv.tasks.inputs import input_roles, text_roles
from qkv.tasks.metrics.text_metrics import bleu, first_sentence, rouge
from qkv.tasks.named_inputs import EncodedInputs, InputsEncoder
from qkv.tasks.pairs.aligned import MOST_TOKENS, aligned
from qkv.tasks.pairs.pairs import TokenPair, joined, marks, pair_loss, paired, write_after
from qkv.tasks.pairs.windows import split_text
from qkv.tasks.task import Defaults, Evaluation, Observed, Scale, Totals
from qkv.tokenizers.tokenizer import Tokenizer

_AT_ONCE = 64
"""Batch size of generation."""
_SHOWN = 8


class SequenceToSequenceTask(ExampleTask):
    """Base class of tasks that generate a target y from a source x: -Σ log p(y_i | y_<i, x) with teacher forcing.

        With an encoder:  source x eos         ids bos y          targets y eos
        Without:                               ids x bos y        targets (none for x) y eos,  prefix len(x) + 1

    The task's ``begin`` replaces bos; its tokens after the first are targets too.
    """

    evaluates = True
    roles: tuple[Role, ...]
    asks = ("source",)
    inputs: tuple[str, ...] = ()
    """Names of the inputs that form the source; empty if the source is one text."""
    text: tuple[str, ...] = ("source",)
    """Name of the text of the source, if it has one."""
    writes_from_source = True
    automatic = Defaults(("source",), "target")

    def reading(self, data: Data) -> Self:
        if data.inputs:
            self.roles, self.asks = (*input_roles(data), self.roles[-1]), tuple(data.inputs)
            self.inputs, self.text = self.asks, tuple(role.name for role in text_roles(data))
        return super().reading(data)

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        """Return a copy of the recipe with greedy decoding up to the target limit, unless ``sample`` is set."""
        if recipe.sample != type(recipe).model_fields["sample"].default:
            return recipe
        return recipe.changed(sample=Generation(max_new_tokens=self.limits(recipe)["target"], temperature=0.0))

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        data, targets = recipe.data, column(records, "target")
        sources = [text for name in self.text for text in column(records, name)]
        if data.target_tokenizer is None:
            both = trained(data.text_tokenizer, [*sources, *targets], self._roles)
            return Vocabulary(both, both, (), fit_processors(data, records))
        if recipe.model.encoder is None:
            sentence = (
                "source and target are one sequence in a model without an encoder, so they have one tokenizer; "
                "leave the key out"
            )
            raise SpecError([Problem(("data", "target_tokenizer"), sentence)])
        return Vocabulary(
            trained(data.tokenizer, sources, ("eos",)), trained(data.target_tokenizer, targets, self._roles)
        )

    @property
    def _roles(self) -> tuple[str, ...]:
        """Roles, such as "bos", of the special tokens that the target's tokenizer needs."""
        return ("eos",) if self.spec.begin else ("bos", "eos")

    def limits(self, recipe: Recipe) -> dict[str, int]:
        model, begin = recipe.model, max(1, len(self.spec.begin))
        if model.encoder:
            return {"source": model.encoder.context_length - 1, "target": model.context_length - begin}
        return {
            "source": model.context_length // 2 - 1,
            "target": model.context_length - model.context_length // 2 - begin,
        }

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> Truncation:
        limits = self.limits(recipe)
        if self.inputs:
            return InputsEncoder(recipe, vocabulary, limits["source"], target=limits["target"])
        if self.spec.framed:  # one position is already reserved for the end token
            limits["source"] = max(0, limits["source"] + 1 - max(1, vocabulary.tokenizer.frame.size))
        return Truncation(limits)

    def usable(self, rows: Rows, vocabulary: Vocabulary, reader: Any) -> tuple[Rows, list[Example], list[str]]:
        return encode_rows(rows, lambda row: self.encode(row, vocabulary, reader))

    def encode(self, row: Mapping[str, Any], vocabulary: Vocabulary, cut: Truncation) -> Example:
        source, target = self._source(row, vocabulary, cut), cut(vocabulary.target.encode(row["target"]), "target")
        begin, end = marks(vocabulary, self.spec.begin)
        written, ids = np.concatenate((begin, target, [end])), source.ids
        return Example(len(ids) + len(written) - 1, len(written) - 1, TokenPair(ids, written, source.values))

    def source_ids(self, vocabulary: Vocabulary, text: str) -> list[int]:
        ids = vocabulary.tokenizer.encode(self.spec.prefix + text)
        return self._framed(vocabulary, np.asarray(ids, np.int64)).tolist()

    def first_ids(self, vocabulary: Vocabulary) -> tuple[int, ...]:
        return marks(vocabulary, self.spec.begin).begin

    def _source(self, row: Mapping[str, Any], vocabulary: Vocabulary, cut: Truncation) -> EncodedInputs:
        if isinstance(cut, InputsEncoder):
            read, _ = cut.encode(row)
            return read._replace(ids=self._framed(vocabulary, read.ids))
        ids = cut(vocabulary.tokenizer.encode(self.spec.prefix + text_in(row, "source")), "source")
        return EncodedInputs(self._framed(vocabulary, ids))

    def _framed(self, vocabulary: Vocabulary, ids: np.ndarray) -> np.ndarray:
        """Add to the source ``ids`` the special tokens that the model expects around them."""
        frame = vocabulary.tokenizer.frame
        if self.spec.framed and frame.size:
            return np.concatenate((frame.before, ids, frame.behind)).astype(np.int64)
        end = vocabulary.tokenizer.special("eos")
        assert end is not None
        return np.append(ids, end)

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        if not self.inputs:
            return paired if recipe.model.encoder else joined
        reader = self.reader(recipe, vocabulary)
        assert isinstance(reader, InputsEncoder)
        return lambda rows: joined(rows, reader.signals([row.values for row in rows]))

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return pair_loss(model, batch, self.spec.label_smoothing, tap)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        return Observed(pair_loss(model, batch, 0.0), batch.num_targets, [])

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        loss = seen.loss / seen.count if seen.count else math.nan
        return {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf}

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        assert isinstance(dataset, ExampleDataset)
        rows = dataset.records[VALIDATION][:3]
        written = self.write(model, dataset.vocabulary, recipe, rows)
        return "\n\n".join(
            f"{self._format_source(row, recipe, dataset.vocabulary)}\n→ {text}\n  ({row['target']})"
            for row, text in zip(rows, written, strict=True)
        )

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        cut = self.reader(recipe, vocabulary)
        if not self.text:
            return [{"answer": text} for text in self.write(model, vocabulary, recipe, rows, cut)]
        tokenizer, role = vocabulary.tokenizer, self.text[0]
        lengths = [len(tokenizer.encode(self.spec.prefix + text_in(row, role))) for row in rows]
        if self.inputs or self.spec.windows == 1:
            texts = self.write(model, vocabulary, recipe, rows, cut)
            return [{"answer": text} | cut.note(length, role) for text, length in zip(texts, lengths, strict=True)]
        windows = [self._windows(row["source"], tokenizer, cut.limits["source"]) for row in rows]
        parts = [{"source": text} for texts in windows for text in texts[: self.spec.windows]]
        texts = iter(self.write(model, vocabulary, recipe, parts, cut))
        return [
            {"answer": " ".join(islice(texts, min(len(each), self.spec.windows)))} | self._note(length, len(each), cut)
            for each, length in zip(windows, lengths, strict=True)
        ]

    def _windows(self, source: str, tokenizer: Tokenizer, most: int) -> list[str]:
        """Split a source of more than ``most`` tokens, the prefix included, at ends of sentences."""
        return split_text(source, lambda text: len(tokenizer.encode(self.spec.prefix + text)) <= most)

    def _note(self, length: int, windows: int, cut: Truncation) -> dict[str, str]:
        if windows == 1:
            return cut.note(length, "source")
        most = self.spec.windows
        rest = "" if windows <= most else f", of which the first {most} were read"
        sentence = f"the input has {length} tokens and the model reads {cut.limits['source']} at once; it was split at "
        return {"note": f"{sentence}ends of sentences into {windows} parts{rest}, and their outputs are joined"}

    def _format_source(self, row: Mapping[str, Any], recipe: Recipe, vocabulary: Vocabulary) -> str:
        """Format the source of a row as a text for tables."""
        reader = self.reader(recipe, vocabulary)
        return reader.shown(row) if isinstance(reader, InputsEncoder) else row["source"]

    def write(
        self,
        model: Transformer,
        vocabulary: Vocabulary,
        recipe: Recipe,
        rows: Sequence[Mapping[str, Any]],
        cut: Truncation | None = None,
    ) -> list[str]:
        """Generate the target text of each row's source, with the settings of ``recipe.sample``.

        ``cut`` truncates the sources.
        """
        cut = cut or self.reader(recipe, vocabulary)
        try:
            sources = [self._source(row, vocabulary, cut) for row in rows]
        except Unusable as error:
            raise UserError(str(error)) from None
        order = sorted(range(len(rows)), key=lambda i: len(sources[i].ids))
        texts: dict[int, str] = {}
        for begin in range(0, len(order), _AT_ONCE):
            some = order[begin : begin + _AT_ONCE]
            ids = [sources[i].ids for i in some]
            inputs = [cut.signals([sources[i].values]) for i in some] if isinstance(cut, InputsEncoder) else None
            written = write_after(model, vocabulary, recipe.sample, ids, self.spec.begin, inputs)
            for i, tokens in zip(some, written, strict=True):
                texts[i] = vocabulary.target.decode(tokens, skip_special=True).strip()
        return [texts[i] for i in range(len(rows))]

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        rows = dataset.records[split]
        written = self.write(model, dataset.vocabulary, recipe, rows)
        evaluation = self.compare(written, rows)
        sources = [self._format_source(row, recipe, dataset.vocabulary) for row in rows[:_SHOWN]]
        examples = [[source, text, row["target"]] for source, row, text in zip(sources, rows, written, strict=False)]
        table = {
            "kind": "examples",
            "title": "Generated text",
            "columns": ["source", "generated", "reference"],
            "rows": examples,
        }
        figures = {**self.figures(seen, dataset.scale(split)), **evaluation.figures}
        return Evaluation(
            figures,
            [*evaluation.sections, table, *self._looked_at(model, dataset.vocabulary, recipe, rows, written)],
            evaluation.notes,
        )

    def _looked_at(
        self,
        model: Any,
        vocabulary: Vocabulary,
        recipe: Recipe,
        rows: Sequence[Mapping[str, Any]],
        written: Sequence[str],
    ) -> list[dict[str, Any]]:
        """Build the report section of attention weights for the first row that is neither very short nor too long."""
        if self.inputs:
            return []
        cut, (begin, end) = self.reader(recipe, vocabulary), marks(vocabulary, self.spec.begin)
        for row, text in zip(rows[:_AT_ONCE], written, strict=False):
            source, target = self._source(row, vocabulary, cut).ids, cut(vocabulary.target.encode(text), "target")
            if len(source) > 4 and len(target) > 3:
                sections = aligned(model, vocabulary, source.tolist(), [*begin, *target.tolist(), end])
                if sections or len(source) <= MOST_TOKENS:
                    return sections
        return []

    def compare(self, written: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Evaluation:
        """Compute metrics of the generated texts ``written`` against the targets of ``rows``, such as BLEU or ROUGE."""
        raise NotImplementedError


@implements(Translation)
class TranslationTask(SequenceToSequenceTask):
    """Translation, evaluated by sacreBLEU, and by BLEU over lower-cased words and punctuation, as in tutorials."""

    roles = (
        Role("source", "text", ("source", "src", "input", "from")),
        Role("target", "text", ("target", "tgt", "translation", "output", "to"), written=True),
    )

    def compare(self, written: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Evaluation:
        return bleu(written, [row["target"] for row in rows])


@implements(Summarization)
class SummarizationTask(SequenceToSequenceTask):
    """Summarisation, evaluated by ROUGE; baseline: ROUGE of the first sentence of the source as summary (lead-1)."""

    roles = (
        Role("source", "text", ("source", "text", "article", "document", "dialogue", "input")),
        Role("target", "text", ("target", "summary", "abstract", "headline", "title", "highlights"), written=True),
    )

    def compare(self, written: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Evaluation:
        references = [row.get("targets") or [row["target"]] for row in rows]
        evaluation = rouge(written, references)
        if not self.text:
            return Evaluation(evaluation.figures, [], evaluation.notes)
        lead = rouge([first_sentence(row[self.text[0]]) for row in rows], references)
        return Evaluation(
            evaluation.figures | {f"{name}_of_lead_1": value for name, value in lead.figures.items()},
            [],
            evaluation.notes,
        )
