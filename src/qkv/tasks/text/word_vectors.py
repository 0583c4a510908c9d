"""Word vectors: skip-gram and CBOW with negative sampling (Mikolov et al. 2013a, 2013b).

    skip-gram   -Σ over neighbours i  ( log σ(u_o·v_i) + Σ_k log σ(-u_k·v_i) )
    CBOW        -                       log σ(u_o·v̄)  + Σ_k log σ(-u_k·v̄)        v̄: mean of the neighbours' v

o is a word of the text and i its neighbours, as in the authors' code; the paper swaps the roles, with the same pairs. v
(V, D) is the front end's table, u (V, D) the head's. Neighbours of one word share its negatives (Ji et al. 2016), which
gives one small matrix product; negatives equal to the word are ignored. Unknown words are removed from the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import Corpus
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import CBOW, SkipGram
from qkv.system.errors import UserError, nearest
from qkv.tasks.dataset import Dataset, TextDataset
from qkv.tasks.example_task import text_in
from qkv.tasks.objectives.pairs import NegativeSampler, cbow_contexts, keep_probabilities
from qkv.tasks.task import Evaluation, Observed, Scale, Totals
from qkv.tasks.text.analogies import Analogy, analogies
from qkv.tasks.text.text_task import Changes, TextTask
from qkv.tokenizers.tokenizer import Tokenizer

_SHOWN = 16
_NEAR = 6


class WordVectorsTask(TextTask):
    """Base class of word2vec tasks, skip-gram and CBOW with negative sampling."""

    loss_unit = "nats a prediction"
    evaluates = True
    counts_training = True
    asks = ("text",)

    def predictions(self, present: np.ndarray) -> int:
        """Count the predictions for C centre words; ``present`` (C, 2 · window): True where a neighbour exists."""
        raise NotImplementedError

    def predictors(self, inner: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors (C, P, D) that predict the C centre words, and a mask (C, P), 1 where a vector exists.

        inner (C, 2 · window, D): vectors of the neighbours; present (C, 2 · window): True where a neighbour exists.
        P: 1 or 2 · window.
        """
        raise NotImplementedError

    def changes(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Changes:
        spec = self.spec
        counts = np.bincount(corpus.train, minlength=tokenizer.vocab_size)
        keep = np.ones(len(counts)) if spec.threshold is None else keep_probabilities(counts, spec.threshold)
        if tokenizer.unknown_id is not None:
            keep[tokenizer.unknown_id] = counts[tokenizer.unknown_id] = 0
        sampler = NegativeSampler(counts, spec.power)

        def windows(batch: Batch, rng: np.random.Generator) -> Batch:
            ids, lengths = batch.input.values.numpy(), batch.input.lengths
            rows = (
                list(ids)
                if lengths is None
                else [row[:length] for row, length in zip(ids, lengths.tolist(), strict=True)]
            )
            contexts = [cbow_contexts(row, spec.window, keep, rng) for row in rows]
            words, near, present = (np.concatenate(parts) for parts in zip(*contexts, strict=True))
            negatives = sampler.sample((len(words), spec.negatives), rng)
            count = self.predictions(present)
            tensors = [torch.from_numpy(array) for array in (near, words, present, negatives)]
            return Batch.of(tensors[0], tensors[1], count=count, present=tensors[2], negatives=tensors[3])

        return windows

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """Compute the negative-sampling loss, summed over the predictions, in nats.

        Input (C, 2 · window): neighbours of C words, masked by ``present``; ``negatives`` (C, K): negative samples.
        """
        table, negatives = model.frontend.table, batch.extras["negatives"]
        assert table is not None  # a language-model head needs token embeddings
        inner, present = F.embedding(batch.input.values, table), batch.extras["present"].to(table.dtype)
        inner, present = self.predictors(inner, present)
        outer = F.embedding(torch.cat((batch.targets[:, None], negatives), 1), model.head.weight)  # type: ignore[arg-type]
        scores = at_least_single(torch.bmm(inner, outer.transpose(1, 2)))
        other = (negatives != batch.targets[:, None]).to(scores.dtype)
        right, wrong = F.logsigmoid(scores[..., 0]), F.logsigmoid(-scores[..., 1:])
        return -(present * (right + (wrong * other[:, None]).sum(-1))).sum()

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        return Observed(self.summed_loss(model, batch), batch.num_targets, [])

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return {"loss": seen.loss / max(1, seen.count)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        lexicon = Lexicon.of(model, dataset.vocabulary.tokenizer)
        questions, right = lexicon.analogies()
        figures = self.figures(seen, dataset.scale(split)) | {"analogies": len(questions)}
        sections: list[dict[str, Any]] = [_neighbours(lexicon, frequent(dataset))]
        if questions:
            figures["analogy_accuracy"] = sum(right) / len(questions)
            sections.append(_by_group(questions, right))
        return Evaluation(
            figures,
            sections,
            [
                f"{len(questions)} analogies have only words of the vocabulary; an answer may be any word of the "
                "vocabulary"
            ],
        )

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        lexicon = Lexicon.of(model, dataset.vocabulary.tokenizer)
        return "\n".join(
            f"{word}: {', '.join(near)}" for word, near in ((w, lexicon.near(w)) for w in frequent(dataset)[:8])
        )

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Find the words nearest to each input word, or to a sum of words such as ``king - man + woman``."""
        lexicon = Lexicon.of(model, vocabulary.tokenizer)
        answers = []
        for row in rows:
            signs, words = _terms(text_in(row, "text"))
            near = lexicon.nearest([lexicon.number(word) for word in words], signs)
            neighbours = [{"word": lexicon.words[i], "cosine": cosine} for i, cosine in near]
            answers.append({"answer": ", ".join(entry["word"] for entry in neighbours), "nearest": neighbours})
        return answers


@implements(SkipGram)
class SkipGramTask(WordVectorsTask):
    """Skip-gram: each neighbour's vector predicts the centre word."""

    def predictions(self, present: np.ndarray) -> int:
        return int(present.sum())

    def predictors(self, inner: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        return inner, present


@implements(CBOW)
class CBOWTask(WordVectorsTask):
    """CBOW: the mean of the neighbours' vectors predicts the centre word."""

    def predictions(self, present: np.ndarray) -> int:
        return len(present)

    def predictors(self, inner: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.einsum("cn,cnd->cd", present, inner)[:, None] / present.sum(1).clamp(min=1)[:, None, None]
        return mean, torch.ones_like(present[:, :1])


class Lexicon(NamedTuple):
    """Words and their vectors (V, D), normalised to length 1. ``numbers``: row of each word."""

    words: list[str]
    vectors: Tensor
    numbers: dict[str, int]

    @classmethod
    def of(cls, model: Transformer, tokenizer: Tokenizer) -> Lexicon:
        """Build the lexicon of a trained model from its input embeddings; of tokens with equal text, use the first."""
        words = [tokenizer.decode([index]).strip() for index in range(tokenizer.vocab_size)]
        skipped = {"", *(words[index] for index in tokenizer.specials.values())}
        numbers = {word: index for index, word in reversed(list(enumerate(words))) if word not in skipped}
        table = model.frontend.table
        assert table is not None  # a language-model head needs token embeddings
        return cls(words, F.normalize(at_least_single(table.detach()), dim=1), numbers)

    def number(self, word: str) -> int:
        """Return the row of ``word`` in the vectors. Raises ``UserError`` if it has no vector."""
        row = self.numbers.get(word, self.numbers.get(word.lower()))
        if row is None:
            raise UserError(f"the word {word!r} has no vector; {nearest(word, list(self.numbers))}")
        return row

    def nearest(self, words: Sequence[int], signs: Sequence[float], count: int = _NEAR) -> list[tuple[int, float]]:
        """Find up to ``count`` (row, cosine) nearest to Σ sign · vector of the rows ``words``, excluding these rows."""
        direction = (torch.tensor(signs, device=self.vectors.device)[:, None] * self.vectors[list(words)]).sum(0)
        cosines = self.vectors @ F.normalize(direction, dim=0)
        named = torch.zeros(len(cosines), dtype=torch.bool, device=cosines.device)
        named[list(self.numbers.values())] = True
        named[list(words)] = False
        best = cosines.masked_fill(~named, -torch.inf).topk(min(count, int(named.sum())))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def near(self, word: str) -> list[str]:
        """Return the ``_NEAR`` words nearest to ``word`` by cosine."""
        return [self.words[index] for index, _ in self.nearest([self.number(word)], [1.0])]

    def analogies(self) -> tuple[list[Analogy], list[bool]]:
        """Return the analogies a : b = c : d of known words, and for each True if d is nearest to b - a + c."""
        questions = [analogy for analogy in analogies() if all(word in self.numbers for word in analogy[1:])]
        right = []
        for analogy in questions:
            a, b, c, d = (self.numbers[word] for word in analogy[1:])
            right.append(self.nearest([a, b, c], [-1.0, 1.0, 1.0], 1)[0][0] == d)
        return questions, right


def frequent(dataset: Dataset, count: int = _SHOWN) -> list[str]:
    """Return ``count`` frequent training words of at least four letters, evenly spaced by rank, for display."""
    assert isinstance(dataset, TextDataset)
    tokenizer = dataset.vocabulary.tokenizer
    counts = np.bincount(dataset.corpus.train, minlength=tokenizer.vocab_size)
    words = (tokenizer.decode([index]).strip() for index in np.argsort(-counts, kind="stable")[:1000].tolist())
    long = list(dict.fromkeys(word for word in words if len(word) >= 4 and word.isalpha()))
    return long[:: max(1, len(long) // count)][:count]


def _neighbours(lexicon: Lexicon, words: Sequence[str]) -> dict[str, Any]:
    rows = [[word, ", ".join(lexicon.near(word))] for word in words if word in lexicon.numbers]
    return {"kind": "examples", "title": "Nearest neighbours", "columns": ["word", "nearest by cosine"], "rows": rows}


def _by_group(questions: Sequence[Analogy], right: Sequence[bool]) -> dict[str, Any]:
    rows = []
    for group in dict.fromkeys(analogy.group for analogy in questions):
        answers = [answer for analogy, answer in zip(questions, right, strict=True) if analogy.group == group]
        example = next(analogy for analogy in questions if analogy.group == group)
        rows.append([group, f"{example.a} : {example.b} = {example.c} : {example.d}", sum(answers), len(answers)])
    return {
        "kind": "examples",
        "title": "Analogies",
        "columns": ["relation", "for example", "right", "analogies"],
        "rows": rows,
    }


def _terms(text: str) -> tuple[list[float], list[str]]:
    """Parse ``king - man + woman`` to signs (1.0, -1.0, 1.0) and words; words without a sign are added."""
    signs, words, sign = [], [], 1.0
    for part in text.split():
        if part in ("+", "-"):
            sign = 1.0 if part == "+" else -1.0
        else:
            signs.append(sign)
            words.append(part)
            sign = 1.0
    if not words:
        raise UserError(f"{text!r} names no word; give one, or a sum such as 'king - man + woman'")
    return signs, words
