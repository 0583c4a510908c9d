"""How probable given texts are after a prompt: answering by choosing.

    log p(option | prompt) = Σ_i log p(option_i | prompt, option_1 … option_{i-1})

The prompt is read once; its state is forked for all options, which are read in one padded batch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from qkv.generation import context
from qkv.generation.reading import padded, read
from qkv.generation.sample import evaluating
from qkv.generation.text import prompt_ids
from qkv.models.transformer import State, Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError, nearest
from qkv.spec.generation import Generation, Measure
from qkv.state.tree import rows
from qkv.tokenizers.tokenizer import Tokenizer


class OptionScore(NamedTuple):
    """log p of an option's tokens in nats: their sum and their mean."""

    sum: float
    mean: float


class Choice(NamedTuple):
    """An option's text, its share of the probability among all options, log p, its tokens, and what it was judged by."""

    text: str
    probability: float
    log_probability: float
    tokens: int
    score: float


def score_texts(
    model: Transformer, tokenizer: Tokenizer, prompt: str, options: Sequence[str], by: Measure = "sum", memory: Any | None = None
) -> list[Choice]:
    """The options in their order, with probabilities softmax(score) over them; ``by`` says what the score is.

    An option goes on right after the prompt, so a space between them is part of one of the two. Both are made into tokens together:
    where a tokenizer joins the prompt's end with an option, those tokens are scored too. Raises ``UserError``.
    """
    if by not in get_args(Measure):
        raise UserError(f"options cannot be judged by {by!r}; {nearest(str(by), get_args(Measure))}")
    for place, option in enumerate(options):
        if option in options[:place]:
            raise UserError(f"the option {option!r} is given twice, and would share its probability with itself; give it once")
    before, after = joined_ids(tokenizer, prompt, options)
    scores = score_options(model, before, after, memory)
    judged = [{"sum": s.sum, "token": s.mean, "character": s.sum / len(o)}[by] for o, s in zip(options, scores, strict=True)]
    largest = max(judged)
    mass = sum(math.exp(score - largest) for score in judged)
    columns = zip(options, judged, scores, after, strict=True)
    return [Choice(text, math.exp(score - largest) / mass, both.sum, len(ids), score) for text, score, both, ids in columns]


def joined_ids(tokenizer: Tokenizer, prompt: str, options: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """(what the tokens of prompt and option have in common in all options, what follows it in each).

    A tokenizer may write "A: " + "yes" with one token " yes" that stands for the end of the prompt and the option, so the two are not
    cut where their texts are. Where no token is left for the prompt, it and the options are made into tokens each for itself.
    """
    before = prompt_ids(tokenizer, prompt)
    for option in options:
        unknown = tokenizer.unknown(option)
        if unknown:
            raise UserError(f"the option {option!r} holds {unknown[0]!r}, which the tokenizer has never seen; leave it out")
    whole = [tokenizer.encode(prompt + option) for option in options]
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(before, *whole, strict=False)))
    if not prompt or not common:
        return before, [tokenizer.encode(option) for option in options]
    return before[:common], [ids[common:] for ids in whole]


def score_options(
    model: Transformer, prompt: Sequence[int], options: Sequence[Sequence[int]], memory: Any | None = None
) -> list[OptionScore]:
    """The log p of each option's tokens after those of ``prompt``. ``memory``: an encoder's output for one row.

    Where positions are bounded and the prompt does not fit in front of the longest option, its beginning is not read, the same for all
    options, and a ``UserWarning`` says so. Raises ``UserError`` for what cannot be read.
    """
    _check(model, prompt, options)
    prompt = prompt[_first_read(len(prompt), max(map(len, options)), model.frontend.limit) :]
    with evaluating(model), torch.inference_mode():
        logits, state = read(model, [prompt], memory=memory)
        firsts = _picked(logits.expand(len(options), -1), torch.tensor([option[0] for option in options], device=logits.device))
        totals = [[float(first)] for first in firsts]
        longer = [place for place, option in enumerate(options) if len(option) > 1]
        for place, found in zip(longer, _following(model, state, [options[place] for place in longer]), strict=True):
            totals[place] += found
    return [OptionScore(math.fsum(found), math.fsum(found) / len(found)) for found in totals]


def _following(model: Transformer, state: State, options: list[Sequence[int]]) -> list[list[float]]:
    """log p of the second and all later tokens of each option, whose first comes right after ``state`` of one row."""
    if not options:
        return []
    ids, lengths = padded([option[:-1] for option in options], model.frontend.table.device)
    vectors, _ = model.features(ids, rows(state, [0] * len(options)), lengths)
    found = []
    for i, option in enumerate(options):  # one by one, as the logits of all would be tokens times vocabulary
        logits = model.head(vectors[i : i + 1, : len(option) - 1])[0]
        found.append(_picked(logits, torch.tensor(option[1:], device=logits.device)).tolist())
    return found


def _picked(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax(logits) (N, V) at ``tokens`` (N), in float64."""
    logits = at_least_single(logits)
    if not bool(logits.isfinite().all()):
        raise UserError("the model's logits are not finite, so no option is more probable than another; its weights are damaged")
    return (logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1)).double()


def _check(model: Transformer, prompt: Sequence[int], options: Sequence[Sequence[int]]) -> None:
    context.check(model, [prompt], Generation(max_new_tokens=0))
    if not options:
        raise UserError("there is no option to choose from; give at least one")
    known = model.frontend.table.shape[0]
    for place, option in enumerate(options, 1):
        if not option:
            raise UserError(f"option {place} of {len(options)} holds no token; an option is at least one")
        outside = [token for token in option if not 0 <= token < known]
        if outside:
            raise UserError(
                f"option {place} of {len(options)} holds the token {outside[0]}, but the model knows the tokens 0 to {known - 1}"
            )


def _first_read(length: int, longest: int, limit: int | None) -> int:
    """How many of the prompt's first tokens are left out; the last token of an option is asked for and not read."""
    if limit is None or length + longest - 1 <= limit:
        return 0
    if longest > limit:
        raise UserError(
            f"the longest option has {longest} tokens, which do not fit the model's {limit} positions after a prompt; shorten it"
        )
    first = length + longest - 1 - limit
    warnings.warn(
        f"the prompt has {length} tokens, the longest option {longest}, and the model sees {limit} at once; the first {first} are not seen",
        stacklevel=3,
    )
    return first
