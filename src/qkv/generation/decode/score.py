"""Multiple choice by likelihood: score options as continuations of a prompt.

    log p(option | prompt) = Σ_i log p(option_i | prompt, option_1 … option_{i-1})

The common prefix of all prompts is read once. Its state is forked for the prompts, and the state of each prompt is
forked for its options, which are read in one padded batch. This is a policy of the engine.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from qkv.generation import context
from qkv.generation.decode.sample import TokenScore, scored
from qkv.generation.engine import DecodedRow, Engine, Next, Reading
from qkv.generation.text import prompt_ids
from qkv.layers.context import Memory
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.generation import Generation, Measure
from qkv.system.errors import UserError, nearest
from qkv.tokenizers.tokenizer import Tokenizer


class OptionScore(NamedTuple):
    """Log probability of an option after the prompt, in nats: sum over its tokens, and mean per token."""

    sum: float
    mean: float


class ScoredOption(NamedTuple):
    """Result for an option.

    text: the option.   probability: softmax(score) over the options.   log_probability: log p in nats.   tokens:
    number of its tokens.   score: log p, total or per token or character.
    """

    text: str
    probability: float
    log_probability: float
    tokens: int
    score: float


def score_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: str,
    options: Sequence[str],
    by: Measure = "sum",
    memory: Memory | None = None,
) -> list[ScoredOption]:
    """Score each option as a continuation of ``prompt``; probabilities are softmax(score). The order is kept.

    by: "sum" (log p), "token" (log p per token) or "character" (log p per character).
    memory: encoder output of one row.
    An option is appended to the prompt without a space, and both are tokenized together: tokens that span the boundary
    are part of the score. Raises ``UserError`` for an unknown measure, repeated or empty options, and unknown
    characters.
    """
    check_measure(by)
    check_options(options)
    before, after = joined_ids(tokenizer, prompt, options)
    scores = score_options(model, before, after, memory)
    judged = [score_by(by, option, both) for option, both in zip(options, scores, strict=True)]
    columns = zip(options, softmax(judged), judged, scores, after, strict=True)
    return [ScoredOption(text, chance, both.sum, len(ids), score) for text, chance, score, both, ids in columns]


def score_by(by: Measure, option: str, score: OptionScore) -> float:
    """Return the log probability of an option: in total, per token or per character."""
    return {"sum": score.sum, "token": score.mean, "character": score.sum / len(option)}[by]


def softmax(scores: Sequence[float]) -> list[float]:
    """Compute exp(s_i) / Σ_j exp(s_j) for a few numbers."""
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    return [weight / sum(weights) for weight in weights]


def check_measure(by: str) -> None:
    """Raise ``UserError`` for an unknown measure."""
    if by not in get_args(Measure):
        raise UserError(f"options cannot be scored by {by!r}; {nearest(str(by), get_args(Measure))}")


def check_options(options: Sequence[str]) -> None:
    """Raise ``UserError`` for repeated options."""
    for place, option in enumerate(options):
        if option in options[:place]:
            raise UserError(f"the option {option!r} is given twice, which would split its probability; give it once")


def joined_ids(tokenizer: Tokenizer, prompt: str, options: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """Tokenize prompt + option; return (longest common prefix over all options, the remaining tokens of each option).

    A tokenizer may encode "A: " + "yes" with a token " yes" that spans the boundary, so the split follows tokens, not
    characters. Without a common token, prompt and options are tokenized separately.
    """
    before = prompt_ids(tokenizer, prompt)
    for option in options:
        unknown = tokenizer.unknown(option)
        if unknown:
            raise UserError(
                f"the option {option!r} has {unknown[0]!r}, which is not in the tokenizer's vocabulary; leave it out"
            )
    whole = [tokenizer.encode(prompt + option) for option in options]
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(before, *whole, strict=False)))
    if not prompt or not common:
        return before, [tokenizer.encode(option) for option in options]
    return before[:common], [ids[common:] for ids in whole]


def score_options(
    model: Transformer, prompt: Sequence[int], options: Sequence[Sequence[int]], memory: Memory | None = None
) -> list[OptionScore]:
    """Score each option (token ids) after ``prompt``. ``memory``: encoder output of one row.

    If the prompt and the longest option do not fit the model's positions, the prompt is truncated from the left, for
    all options alike, with a ``UserWarning``. Raises ``UserError`` for empty options, ids outside the vocabulary and
    options that do not fit.
    """
    return score_prompts(model, [prompt], [options], memory)[0]


def score_prompts(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Sequence[Sequence[int]]],
    memory: Memory | None = None,
) -> list[list[OptionScore]]:
    """Score the options of each prompt, as ``score_options`` does for one prompt.

    A common prefix of all prompts, such as examples, is read once.
    """
    read = []
    for prompt, row_options in zip(prompts, options, strict=True):
        _check(model, prompt, row_options)
        read.append(list(prompt[_first_read(len(prompt), max(map(len, row_options)), model.limit) :]))
    shared = _shared(read)
    scoring = Scoring([prompt[shared:] for prompt in read], options)
    engine = Engine(model, scoring)
    if shared:
        engine.admit([read[0][:shared]], [0], memory)
    else:
        engine.admit(read, range(len(read)), memory)
    with evaluating(model):
        while engine.rows:
            engine.step()
    return [[OptionScore(math.fsum(f), math.fsum(f) / len(f)) for f in sums] for sums in scoring.found]


_CHUNK = 256
"""Number of tokens of a text that are scored in one pass, which bounds the memory of their logits."""


def score_tokens(model: Transformer, tokens: Sequence[int], alternatives: int = 0) -> list[TokenScore]:
    """Score all ``tokens`` of a text but the first by log p(x_i | x_1 … x_{i-1}).

    alternatives: number of most probable tokens to return with each score. Raises ``UserError`` for ids outside the
    vocabulary, logits that are not finite, and a text that has more tokens than the model has positions.
    """
    context.check(model, [tokens], Generation(max_new_tokens=0))
    if model.limit is not None and len(tokens) - 1 > model.limit:
        raise UserError(
            f"the text has {len(tokens)} tokens, and the model has {model.limit} positions; log-probabilities need all "
            "tokens before each, so give a shorter text"
        )
    scores = list[TokenScore]()

    def policy(rows: Sequence[DecodedRow], reading: Reading) -> list[Next]:
        logits = at_least_single(reading.all_logits(0) if scores else reading.logits())
        if not bool(logits.isfinite().all()):
            raise UserError("the model's logits are not finite, so tokens have no probability; its weights are damaged")
        for line in logits.log_softmax(-1):
            scores.append(scored(line, tokens[len(scores) + 1], alternatives))
        read = len(rows[0].tokens)
        following = tokens[read : min(read + _CHUNK, len(tokens) - 1)]
        return [Next(0, following)] if following else []

    engine = Engine(model, policy)
    if len(tokens) > 1:
        engine.admit([tokens[:1]], [0])
    with evaluating(model):
        while engine.rows:
            engine.step()
    return scores


def _shared(prompts: Sequence[Sequence[int]]) -> int:
    """Return the length of the common prefix of all prompts. For a single prompt, that is its whole length; for
    several, it is at most the length of the shortest prompt minus 1.
    """
    if len(prompts) == 1:
        return len(prompts[0])
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False)))
    return min(common, min(map(len, prompts)) - 1)


class Scoring:
    """Engine policy for multiple choice: one row per option, read after its prompt up to the second to last token."""

    def __init__(self, rests: Sequence[Sequence[int]], options: Sequence[Sequence[Sequence[int]]]):
        """``rests``: tokens of each prompt after the common prefix; empty for a single prompt, which is all prefix."""
        self.rests, self.options = rests, options
        self.found: list[list[list[float]]] = [[[] for _ in row_options] for row_options in options]
        """Log probability of each token: ``found[prompt][option][token]``."""
        self._places = [(i, k) for i, row_options in enumerate(options) for k in range(len(row_options))]
        self._forked = self._begun = False

    def __call__(self, rows: Sequence[DecodedRow], reading: Reading) -> list[Next]:
        if len(rows) < len(self.rests) and not self._forked:
            self._forked = True
            return [Next(0, rest, key) for key, rest in enumerate(self.rests)]
        if not self._begun:
            self._begun = True
            return self._begin(rows, reading.logits())
        for place, row in enumerate(rows):  # one by one: all logits together would be options · tokens · vocabulary
            i, k = self._places[row.key]
            self.found[i][k] += _picked(reading.all_logits(place), self.options[i][k][1:])
        return []

    def _begin(self, rows: Sequence[DecodedRow], logits: Tensor) -> list[Next]:
        """Score the first token of each option; return successors for the options that have more tokens."""
        parents = {row.key: place for place, row in enumerate(rows)}
        of_prompt = logits[[parents[i] for i, _ in self._places]]
        firsts = _picked(of_prompt, [self.options[i][k][0] for i, k in self._places])
        for (i, k), first in zip(self._places, firsts, strict=True):
            self.found[i][k].append(first)
        return [
            Next(parents[i], self.options[i][k][:-1], key)
            for key, (i, k) in enumerate(self._places)
            if len(self.options[i][k]) > 1
        ]


def _picked(logits: Tensor, tokens: Sequence[int]) -> list[float]:
    """Return the log probability of each of N ``tokens`` under logits (N, V); computed in fp32 or float64."""
    logits = at_least_single(logits)
    if not bool(logits.isfinite().all()):
        raise UserError("the model's logits are not finite, so options cannot be ranked; its weights are damaged")
    at = torch.tensor(tokens, device=logits.device)[:, None]
    return (logits.gather(-1, at)[:, 0] - logits.logsumexp(-1)).double().tolist()


def _check(model: Transformer, prompt: Sequence[int], options: Sequence[Sequence[int]]) -> None:
    context.check(model, [prompt], Generation(max_new_tokens=0))
    if not options:
        raise UserError("there is no option to choose from; give at least one")
    vocab_size = model.vocab_size or 0
    for place, option in enumerate(options, 1):
        if not option:
            raise UserError(f"option {place} of {len(options)} has no tokens; an option needs at least one")
        outside = [token for token in option if not 0 <= token < vocab_size]
        if outside:
            raise UserError(
                f"option {place} of {len(options)} has the token {outside[0]}, "
                f"which is outside the vocabulary (0 to {vocab_size - 1})"
            )


def _first_read(length: int, longest: int, limit: int | None) -> int:
    """Return the number of prompt tokens to drop from the left, so that prompt and longest option fit ``limit``
    positions. Warn if tokens are dropped.

    The last token of an option is predicted and needs no position.
    """
    if limit is None or length + longest - 1 <= limit:
        return 0
    if longest > limit:
        raise UserError(
            f"the longest option has {longest} tokens, which do not fit the model's {limit} positions after a prompt; "
            "shorten it"
        )
    first = length + longest - 1 - limit
    warnings.warn(
        f"the prompt has {length} tokens, the longest option {longest}, and the model has {limit} positions; "
        f"the first {first} prompt tokens are dropped",
        stacklevel=3,
    )
    return first
