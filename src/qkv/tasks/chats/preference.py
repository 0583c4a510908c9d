"""Task on preferences between answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.batching.padding import lengths_or_none, padded
from qkv.data.corpora.corpus import VALIDATION
from qkv.data.records.conversations.read import PREFERENCE_ROLES, JudgedAnswer, read_preference
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.heads.language_loss import log_probabilities
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.preference_tasks import Preference
from qkv.spec.register import implementation, implements
from qkv.system.errors import UserError
from qkv.tasks.chats.audit import tools_sentence
from qkv.tasks.chats.conversational import ConversationalTask
from qkv.tasks.chats.preference_losses import AnswerScores
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import Collate
from qkv.tasks.task import Evaluation, Observed, Scale, Totals
from qkv.tasks.text.next_token import at_targets
from qkv.tokenizers.chat_targets import find_answer
from qkv.tokenizers.chat_template import ChatTemplate

_SHOWN = 3
GOOD, MISMATCHES = "good", "mismatches"
"""Extras of a batch: whether each answer is chosen or good, and the number of its last rows that are prompts with the
answer of another row.
"""


class AnswerIds(NamedTuple):
    """Token ids of a prompt and of an answer to it, through its end token, and whether the answer is good."""

    prompt: np.ndarray
    answer: np.ndarray
    good: bool

    def answered(self, other: AnswerIds) -> AnswerIds:
        """Return the prompt with the answer of ``other``."""
        return self._replace(answer=other.answer)


class PreferenceReader:
    """Encoder of preferences to answers with prompts, of at most ``length`` tokens together."""

    def __init__(self, template: ChatTemplate, spec: Preference, ends: Sequence[int], length: int):
        self.template, self.spec, self.ends, self.length = template, spec, ends, length
        self.judges: bool = spec.loss.judges
        self.kinds: Counter[bool] = Counter()
        """Number of good and of bad answers."""
        self.rows = self.unread_tools = 0

    def __call__(self, row: Mapping[str, Any]) -> list[tuple[AnswerIds, ...]]:
        """Return the pair of a row, chosen and rejected, or its single answers. Raises ``Unusable``."""
        preference = read_preference(row)
        if isinstance(preference, JudgedAnswer):
            if not self.judges:
                raise Unusable("it is one answer with a label, which needs the loss 'kto'")
            answers = [self._encode(preference, preference.answer, preference.good)]
        else:
            kinds = ((preference.chosen, True), (preference.rejected, False))
            answers = [self._encode(preference, answer, good) for answer, good in kinds]
        self.rows += 1
        self.unread_tools += bool(preference.tools) and not self.template.reads_tools
        self.kinds.update(each.good for each in answers)
        return [(each,) for each in answers] if self.judges else [tuple(answers)]

    def _encode(self, preference: Any, answer: Sequence[Mapping[str, Any]], good: bool) -> AnswerIds:
        variables = {"tools": preference.tools, **self.spec.template_variables}
        try:
            encoded = find_answer(
                self.template, preference.prompt, [dict(each) for each in answer], self.ends, **variables
            )
        except UserError as error:
            raise Unusable(str(error)) from None
        if len(encoded.prompt) + len(encoded.ids) > self.length:
            raise Unusable(f"a prompt and its answer have more than the {self.length:,} tokens that fit")
        return AnswerIds(np.asarray(encoded.prompt, np.int64), np.asarray(encoded.ids, np.int64), good)

    def notes(self, examples: int) -> list[str]:
        """Return sentences on answers of one kind only, and on tools that the template does not read."""
        notes = [tools_sentence(self.unread_tools, self.rows)] if self.unread_tools else []
        if not self.judges or len(self.kinds) != 1:
            return notes
        kind, other = ("good", "bad") if self.kinds[True] else ("bad", "good")
        advice = ", or train on these with 'qkv train chat'" if kind == "good" else ""
        warning = (
            f"all {self.kinds.total():,} answers are {kind}: the loss 'kto' learns from the difference to {other} "
            f"ones, and without any it only moves the model away from its start; give {other} answers too{advice}"
        )
        return [*notes, warning]


@implements(Preference)
class PreferenceTask(ConversationalTask):
    """Preferences: the loss of a pair of answers, or of single good and bad ones, compared with the start."""

    spec: Preference
    roles = PREFERENCE_ROLES
    asks = ("prompt",)
    loss_unit = "a pair"
    metric = "accuracy"

    @property
    def needs_reference(self) -> bool:
        return self.spec.loss.needs_reference

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> PreferenceReader:
        length = self.limits(recipe)["messages"]
        return PreferenceReader(self.template(vocabulary), self.spec, recipe.sample.stop_token_ids, length)

    def examples(
        self, rows: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, reader: PreferenceReader
    ) -> list[Example]:
        return [_example(answers) for row in rows for answers in reader(row)]

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        return _batch_of_answers if self.spec.loss.judges else _batch_of_pairs

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """Compute the loss summed over the pairs of the batch, or over its single answers."""
        return self._losses(self.scores(model, batch, tap)).sum()

    def _losses(self, scores: AnswerScores) -> Tensor:
        losses = implementation(self.spec.loss, "qkv.tasks")(self.spec.loss)(scores)
        if not self.spec.chosen_weight:
            return losses
        nats = -scores.policy / scores.lengths
        likely = torch.where(scores.good, nats, 0.0) if self.spec.loss.judges else scores.pairs(nats)[0]
        return losses + self.spec.chosen_weight * likely

    def scores(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> AnswerScores:
        """Score the answers of a batch under the model and under the start of training."""
        policy, lengths = answer_log_probabilities(model, batch, tap)
        reference = torch.zeros_like(policy)
        if self.needs_reference:
            if self.reference is None:
                raise UserError("the loss compares with the start of training, which is not open")
            with torch.no_grad(), self.reference() as start:
                reference, _ = answer_log_probabilities(start, batch)
        good, mismatches = batch.extras[GOOD], batch.extras.get(MISMATCHES, 0)
        ratios = (policy - reference)[len(good) :]
        divergence = ratios.mean() if mismatches else policy.new_zeros(())
        return AnswerScores(policy[: len(good)], reference[: len(good)], lengths[: len(good)], good, divergence)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        scores = self.scores(model, batch)
        columns = (scores.policy, scores.reference, scores.lengths, scores.good)
        outcomes = list(zip(*(column.tolist() for column in columns), strict=True))
        if not self.spec.loss.judges:
            outcomes = list(zip(*(outcomes[i : i + len(outcomes) // 2] for i in (0, len(outcomes) // 2)), strict=True))
        return Observed(self._losses(scores).sum(), batch.num_targets, outcomes)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        """Compute loss, accuracy and margin of rewards, and log-probabilities per token of both kinds of answers.

        The reward of an answer is β r, or without a reference β log π(y|x) per token.
        accuracy: share of pairs whose chosen answer has the higher reward in %; of single answers, share of good ones
        with a positive reward and bad ones with a negative one. divergence: mean of r per token over all answers.
        """
        loss = seen.loss / seen.count if seen.count else math.nan
        return {"loss": loss, **(self._figures_of_answers(seen.outcomes) if seen.outcomes else {})}

    def _figures_of_answers(self, outcomes: Sequence[Any]) -> dict[str, float]:
        judges = self.spec.loss.judges
        flat = (
            [_Answer(*each) for each in outcomes] if judges else [_Answer(*each) for pair in outcomes for each in pair]
        )
        good, bad = ([each for each in flat if each.good is kind] for kind in (True, False))
        if judges:
            right = [(self._reward(each) > 0) == each.good for each in flat]
        else:
            right = [self._reward(_Answer(*chosen)) > self._reward(_Answer(*rejected)) for chosen, rejected in outcomes]
        figures = {"accuracy": 100 * mean(right)}
        if good and bad:
            rewards = [mean(self._reward(each) for each in some) for some in (good, bad)]
            figures |= {"margin": rewards[0] - rewards[1], "reward_chosen": rewards[0], "reward_rejected": rewards[1]}
        for name, some in (("chosen", good), ("rejected", bad)):
            if some:
                figures[f"log_probability_{name}"] = mean(each.per_token for each in some)
        if self.needs_reference:
            figures["divergence"] = mean(each.log_ratio / each.length for each in flat)
        return figures

    def _reward(self, answer: _Answer) -> float:
        """Return β r, or without a reference β log π(y|x) per token."""
        beta = self.spec.loss.beta  # type: ignore[attr-defined]
        return beta * (answer.log_ratio if self.needs_reference else answer.per_token)

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        figures = self.figures(seen, dataset.scale(split))
        rows = dataset.records[split][:_SHOWN]
        preferences = [read_preference(row) for row in rows]
        chats = [(each.prompt, each.tools) for each in preferences]
        after = self.answers(model, dataset.vocabulary, recipe, chats)
        before = self.answers_before(dataset.vocabulary, recipe, chats)
        table_rows = [
            [str(each.prompt[-1]["content"]), *answers]
            for each, *answers in zip(preferences, before, after, strict=True)
        ]
        columns = ["prompt", "answer before training", "answer after training"]
        table = {"kind": "examples", "title": "Answers", "columns": columns, "rows": table_rows}
        return Evaluation(figures | self._baseline(seen.outcomes), [table], self._notes(seen.outcomes))

    def _baseline(self, outcomes: Sequence[Any]) -> dict[str, float]:
        """Return the share of pairs in % whose chosen answer is likelier per token under the start of training."""
        if self.spec.loss.judges or not self.needs_reference or not outcomes:
            return {}
        right = [a.before_per_token > b.before_per_token for a, b in ((_Answer(*x), _Answer(*y)) for x, y in outcomes)]
        return {"accuracy_of_start": 100 * mean(right)}

    def _notes(self, outcomes: Sequence[Any]) -> list[str]:
        """Return a sentence if the chosen answers became less likely."""
        judges = self.spec.loss.judges
        flat = [_Answer(*each) for each in outcomes] if judges else [_Answer(*pair[0]) for pair in outcomes]
        good = [each for each in flat if each.good]
        if not self.needs_reference or not good:
            return []
        before, after = mean(each.before_per_token for each in good), mean(each.per_token for each in good)
        if after >= before:
            return []
        return [
            f"the chosen answers became less likely: {after:.3f} nats per token, {before:.3f} before; a lower "
            "training.optimizer.lr, a larger task.loss.beta or task.chosen_weight=1 keeps them"
        ]

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        assert isinstance(dataset, ExampleDataset)
        preferences = [read_preference(row) for row in dataset.records[VALIDATION][:1]]
        chats = [(each.prompt, each.tools) for each in preferences]
        return "\n\n".join(self.answers(model, dataset.vocabulary, recipe, chats))


class _Answer(NamedTuple):
    """Scores of one answer in an evaluation."""

    policy: float
    reference: float
    length: int
    good: bool

    @property
    def log_ratio(self) -> float:
        """r: log π(y|x) - log π_ref(y|x)."""
        return self.policy - self.reference

    @property
    def per_token(self) -> float:
        """log π(y|x) per token."""
        return self.policy / self.length

    @property
    def before_per_token(self) -> float:
        """log π_ref(y|x) per token."""
        return self.reference / self.length


def answer_log_probabilities(model: Transformer, batch: Batch, tap: Tap | None = None) -> tuple[Tensor, Tensor]:
    """Return (log-probability of the answer in each row, in nats (B); its number of tokens (B))."""
    hidden, _ = model.features(batch.input, tap=tap)
    nats = log_probabilities(model, *at_targets(hidden, batch.targets))
    mask = batch.targets != IGNORED
    rows = mask.nonzero()[:, 0]
    return nats.new_zeros(len(mask)).index_add(0, rows, nats), mask.sum(1)


def _example(answers: tuple[AnswerIds, ...]) -> Example:
    longest = max(len(each.prompt) + len(each.answer) for each in answers)
    return Example(longest - 1, 1, answers)


def _batch_of_pairs(pairs: Sequence[tuple[AnswerIds, AnswerIds]]) -> Batch:
    """Build a batch of all chosen answers, then all rejected ones. Its count is the number of pairs."""
    return _batch([pair[0] for pair in pairs] + [pair[1] for pair in pairs], len(pairs))


def _batch_of_answers(singles: Sequence[tuple[AnswerIds]]) -> Batch:
    """Build a batch of single answers, then of each prompt with the answer of the next row."""
    rows = [each for (each,) in singles]
    mismatches = [each.answered(rows[(i + 1) % len(rows)]) for i, each in enumerate(rows)] if len(rows) > 1 else []
    return _batch(rows, len(rows), mismatches)


def _batch(rows: Sequence[AnswerIds], count: int, mismatches: Sequence[AnswerIds] = ()) -> Batch:
    every = [*rows, *mismatches]
    ids, lengths = padded([np.concatenate((each.prompt, each.answer[:-1])) for each in every])
    targets, _ = padded(
        [np.concatenate((np.full(len(each.prompt) - 1, IGNORED), each.answer)) for each in every], IGNORED
    )
    good = torch.tensor([each.good for each in rows])
    extras = {GOOD: good, MISMATCHES: len(mismatches)}
    return Batch.of(Signal(ids, lengths_or_none(ids, lengths)), targets, count=count, **extras)
