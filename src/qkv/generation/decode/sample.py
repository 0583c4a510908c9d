"""Batched sampling from prompts of different lengths, implemented as a policy of the engine. Each prompt has its own
settings, constraint and proposals.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from qkv.generation import context
from qkv.generation.decode.adjust import adjusted
from qkv.generation.decode.proposals import Proposal, Proposer, Wanted
from qkv.generation.decode.speculate import Speculator
from qkv.generation.decode.verify import RowSpan, Uniforms, laid, verified
from qkv.generation.engine import DecodedRow, Engine, Next, Reading
from qkv.generation.logits.constrain import Constraint, Guide
from qkv.generation.logits.filters import history
from qkv.generation.logits.forbid import LogitLine, forbid
from qkv.generation.logits.speech import LogitRule
from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.models.evaluating import evaluating
from qkv.models.fast.frozen_weights import unchanged
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.generation import Generation
from qkv.system.errors import UserError


class TokenScore(NamedTuple):
    """Natural logarithm of a sampled token's probability, and (id, log probability) of the most probable tokens, best
    first. Both are computed from the model's logits, before temperature and filters; for a row with a rule, from the
    logits that the rule leaves.
    """

    log_probability: float
    alternatives: tuple[tuple[int, float], ...]


class Drawn(NamedTuple):
    """Token that a step has sampled for a row; ``score``: None unless scores were requested for the row."""

    row: int
    token: int
    score: TokenScore | None = None


class End(NamedTuple):
    """Reason why a row has ended.

    "length": after ``max_new_tokens``. "stop": one of ``stop_token_ids`` was sampled, which is not part of the text, or
    the constraint ended the text. "refused": no token meets the constraint, or the constraint is too complex.
    problem: error message if the text does not match its constraint, else empty. token: the stop token that was
    sampled, or None.
    """

    reason: Literal["length", "stop", "refused"]
    problem: str = ""
    token: int | None = None


@dataclass
class _Row:
    """Settings and decoding helpers of a row.

    seed: seed of its random numbers. begin: number of prompt tokens. most: maximum number of tokens, prompt included.
    alternatives, rule: see ``Sampling.admit``. guide: ``Guide`` of its constraint. speculator: proposes tokens for the
    row.
    """

    generation: Generation
    seed: int
    uniforms: Uniforms
    begin: int
    most: int
    alternatives: int | None
    guide: Guide | None
    speculator: Speculator | None
    rule: LogitRule | None = None


class Sampling:
    """Batched sampler; a row gains one token per step, more if proposals are accepted, and ends after its
    ``max_new_tokens`` or where its constraint ends it.

    Prompts of different lengths are read in one pass; after that each row has its own position and there is no padding.
    Row i has its own random numbers, seeded with ``generation.seed + i``, so its text does not depend on the other
    rows (up to rounding of matrix products, which may vary with the batch size). Dropout is active if the model is in
    training mode; see ``evaluating``.
    """

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        generation: Generation,
        capacity: int | None = None,
        drawn: int | None = None,
        constraint: Constraint | None = None,
        speculator: Speculator | None = None,
        pages: bool = False,
    ):
        """Create a sampler and admit ``prompts``. ``capacity``: fixed number of positions; None grows by doubling.

        ``drawn``: only ids below it are sampled; None for all. ``pages``: see ``Engine``. For the other arguments and
        the exceptions see ``admit``.
        """
        self.model, self.generation, self._allowed = model, generation, drawn
        self.texts: dict[int, list[int]] = {}
        """Tokens of each row, prompt included."""
        self.ends: dict[int, End] = {}
        """Reason why each finished row has ended, by row; rows removed by ``drop`` are not included."""
        self.engine = Engine(model, self._chosen, capacity, pages)
        self._rows: dict[int, _Row] = {}
        self._first = _seed(generation)
        self._admitted = 0
        self._proposers: dict[Speculator, Proposer] = {}
        self._proposals: dict[int, Proposal] = {}
        self._drawn: list[Drawn] = []
        self._history: tuple[list[int], Tensor] | None = None
        self.admit(prompts, constraint=constraint, speculator=speculator)

    @property
    def running(self) -> list[int]:
        """Indices of the rows that have not ended."""
        return [row.key for row in self.engine.rows]

    def admit(
        self,
        prompts: Sequence[Sequence[int]],
        generation: Generation | None = None,
        memory: Memory | None = None,
        alternatives: int | None = None,
        constraint: Constraint | None = None,
        speculator: Speculator | None = None,
        inputs: Sequence[Mapping[str, Signal]] | None = None,
        rules: Sequence[LogitRule] | None = None,
    ) -> list[int]:
        """Add prompts, also while other rows decode; return their row indices. The next step reads them.

        generation: settings of these rows, whose seeds are ``generation.seed``, ``generation.seed + 1``, …; None: the
        sampler's settings, whose seeds continue after the rows admitted so far. memory: encoder output, one row per
        prompt. alternatives: None, or the number of most probable tokens to return with the score of each sampled
        token. constraint: regular expression or schema that the new text must match. speculator: proposes tokens for
        speculative decoding, see ``qkv.generation.decode.speculate``. inputs: values of the inputs other than text of
        each prompt, see ``Signal.inputs``. rules: for each prompt, a rule that changes the logits of its new tokens.

        Raises ``UserError`` for invalid prompts, a model that cannot generate, num_beams > 1, and a constraint or a
        draft that does not fit the model and the settings.
        """
        settings = generation or self.generation
        for guard in (constraint, speculator):
            if guard is not None:
                guard.check(self.model, settings)
        if settings.num_beams > 1:
            raise UserError(
                f"num_beams is {settings.num_beams}, but sampling has no beams; "
                "call qkv.generation.decode.beam.beam_search"
            )
        context.check(self.model, prompts, settings, inputs)
        if speculator is not None and speculator not in self._proposers:
            self._proposers[speculator] = speculator.begin()
        added = list(range(self._admitted, self._admitted + len(prompts)))
        self._admitted += len(prompts)
        first = self._first + added[0] if generation is None and added else _seed(settings)
        for i, (row, prompt) in enumerate(zip(added, prompts, strict=True)):
            self.texts[row] = list(prompt)
            begin, guide = len(prompt), constraint and constraint.guide()
            most, uniforms, rule = begin + settings.max_new_tokens, Uniforms(first + i), rules[i] if rules else None
            self._rows[row] = _Row(settings, first + i, uniforms, begin, most, alternatives, guide, speculator, rule)
        going = [row for row in added if not self._has_ended(row)]
        values = None if inputs is None else [inputs[row - added[0]] for row in going]
        self.engine.admit([self.texts[row] for row in going], going, memory, values)
        return added

    def step(self) -> list[Drawn]:
        """Append one or more tokens to each running row; return all new tokens, those of a row in text order.

        A row that a stop token or its constraint ends may gain no token; see ``ends``.
        """
        self._drawn, timed = [], self._timed()
        rereads = bool(timed) and any(len(row.tokens) - row.read > 1 for row in self.engine.rows)
        self._propose()
        self.engine.step()
        for speculator, keys, began in timed:
            gained = sum(drawn.row in keys for drawn in self._drawn) / len(keys)
            speculator.gain.record(gained, speculator.clock() - began, bool(self._proposals) or rereads)
        return self._drawn

    def drop(self, finished: Collection[int]) -> None:
        """Remove the rows with keys ``finished`` from the batch and free their state."""
        self.engine.evict([place for place, row in enumerate(self.engine.rows) if row.key in finished])

    def forget(self, row: int) -> None:
        """Remove the text and settings of a row that has ended."""
        del self.texts[row], self._rows[row]
        self.ends.pop(row, None)

    def check(self) -> None:
        """Raise ``UserError`` if a text has ended without matching its constraint."""
        for end in self.ends.values():
            if end.problem:
                raise UserError(end.problem)

    def is_full(self, row: int) -> bool:
        """Return whether the text of a row has reached its maximum length."""
        return len(self.texts[row]) >= self._rows[row].most

    def _timed(self) -> list[tuple[Speculator, set[int], float]]:
        """Return (speculator, keys of its rows, start time) of each speculator that measures the next step.

        The list is empty if a row is read from the start of its context: such a step takes long with or without
        proposals.
        """
        rows = self.engine.rows
        if not self._proposers or any(self.engine.room(place) == 0 for place in range(len(rows))):
            return []
        keys = {each: {row.key for row in rows if self._rows[row.key].speculator is each} for each in self._proposers}
        return [(each, row_keys, each.clock()) for each, row_keys in keys.items() if row_keys]

    def _propose(self) -> None:
        """Append proposed tokens to the rows that decode speculatively; the next pass verifies them."""
        self._proposals = {}
        for speculator, proposer in self._proposers.items():
            if speculator.gain.proposes:
                requests = self._requests(speculator)
                self._proposals |= proposer.propose(requests) if any(row.count for row in requests.values()) else {}
        for key, proposal in list(self._proposals.items()):
            self._shorten(key, proposal)
        if self._proposals:
            for row in self.engine.rows:
                row.tokens += self._proposed(row.key).tokens
            self.engine.mark()

    def _proposed(self, key: int) -> Proposal:
        return self._proposals.get(key) or Proposal([])

    def _requests(self, speculator: Speculator) -> dict[int, Wanted]:
        """Return the requests for proposals of a speculator's rows, by key, each with the number of tokens to propose.

        The number is limited by the tokens that the row may still gain and by the context, which must not slide within
        a pass. It is 0 if the state lacks more than ``num_tokens`` + 1 tokens of the row. Otherwise a state that cannot
        drop positions, and so reads tokens again after each rejection, would fall behind further and further.
        """
        requests, most = dict[int, Wanted](), speculator.speculation.num_tokens
        for place, row in enumerate(self.engine.rows):
            state, room = self._rows[row.key], self.engine.room(place)
            if state.speculator is speculator:
                count = min(most, state.most - len(row.tokens) - 1, most if room is None else room)
                count = max(0, count) if len(row.tokens) - row.read <= most + 1 else 0
                requests[row.key] = Wanted(self.texts[row.key], count, state.generation, state.seed, self._allowed)
        return requests

    def _shorten(self, key: int, proposal: Proposal) -> None:
        """Truncate the proposal of a row at the first token that its constraint forbids.

        If a draft model sampled the proposal, the first forbidden token stays: the token that replaces it after its
        rejection has another distribution than a token without a proposal.
        """
        guide, (tokens, chances) = self._rows[key].guide, proposal
        if guide is None:
            return
        try:
            count = guide.possible(tokens) + (chances is not None)
        except UserError:  # the row ends where its next token is chosen
            count = 0
        if count:
            self._proposals[key] = Proposal(tokens[:count], None if chances is None else chances[:count])
        else:
            del self._proposals[key]

    def _chosen(self, rows: Sequence[DecodedRow], reading: Reading) -> list[Next]:
        """Sample the new tokens of all rows; return the successors of the rows that continue (engine policy)."""
        spans = laid([self._span(row.key) for row in rows])
        logits = reading.ends([len(span.lines) for span in spans]) if self._proposals else reading.logits()
        logits = at_least_single(logits)
        possible = self._drawable(rows, spans, logits)
        drawable = self._guided(rows, spans, adjusted(possible, spans))
        verified_tokens = verified(spans, drawable, self._seen(rows, spans, logits))
        token_lists = [self._accepted(row.key, tokens) for row, tokens in zip(rows, verified_tokens, strict=True)]
        if self._proposals:
            lengths = [
                len(span.text) + max(0, len(tokens) - 1) for span, tokens in zip(spans, token_lists, strict=True)
            ]
            self.engine.cut(lengths)
        going: list[Next] = []
        for place, (row, span, tokens) in enumerate(zip(rows, spans, token_lists, strict=True)):
            self._append(row.key, span, tokens, logits if self._rows[row.key].rule is None else possible)
            if not self._has_ended(row.key):
                going.append(Next(place, tokens[-1:]))
        return going

    def _drawable(self, rows: Sequence[DecodedRow], spans: Sequence[RowSpan], logits: Tensor) -> Tensor:
        """Restrict logits to the ids that may be sampled: a view of the first columns, with -inf for the ids that the
        settings of a row forbid, and changed by the rule of the row. With a repetition penalty all columns stay and ids
        that may not be sampled get -inf, because the penalty indexes the logits by prompt tokens, which may be any ids.
        """
        if self._allowed is not None and all(span.generation.repetition_penalty == 1.0 for span in spans):
            logits = logits[:, : self._allowed]
        elif self._allowed is not None:
            logits = torch.where(
                torch.arange(logits.shape[-1], device=logits.device) < self._allowed, logits, -torch.inf
            )
        if any(span.generation.forbids for span in spans):
            logits = forbid(
                logits, [LogitLine(text, span.begin, span.generation) for span in spans for text in span.prefixes]
            )
        ruled = [(span, rule) for row, span in zip(rows, spans, strict=True) if (rule := self._rows[row.key].rule)]
        if not ruled:
            return logits
        logits = logits.clone()
        for span, rule in ruled:
            for line, written in zip(span.lines, span.written, strict=True):
                rule(logits[line], written)
        return logits

    def _span(self, key: int) -> RowSpan:
        state = self._rows[key]
        return RowSpan(self.texts[key], self._proposed(key), state.generation, state.uniforms, begin=state.begin)

    def _guided(self, rows: Sequence[DecodedRow], spans: Sequence[RowSpan], logits: Tensor) -> Tensor:
        """Set the logits of tokens that a row's constraint forbids to -inf. If no token is allowed, the row ends."""
        guides = [(row.key, span, guide) for row, span in zip(rows, spans, strict=True) if (guide := self._guide(row))]
        if not guides:
            return logits
        allowed = torch.ones(logits.shape, dtype=torch.bool)
        for key, span, guide in guides:
            try:
                allowed[span.first : span.lines.stop] = guide.allowed(span.proposal.tokens, logits.shape[-1])
            except UserError as error:
                self.ends[key] = End("refused", str(error))
        return logits.masked_fill(~allowed.to(logits.device), -torch.inf)

    def _guide(self, row: DecodedRow) -> Guide | None:
        return self._rows[row.key].guide

    def _accepted(self, key: int, tokens: Sequence[int]) -> list[int]:
        """Return the tokens to append to a text: with a constraint those that it accepts, else those before the first
        stop token. Record the end of the row, and the counts of its speculator.

        With a constraint, ``stop_token_ids`` are not looked for, so that no text is truncated before it matches.
        """
        state, proposal = self._rows[key], self._proposed(key)
        if proposal.tokens and state.speculator is not None:
            state.speculator.count(len(proposal.tokens), len(tokens) - 1)
        if key in self.ends:
            return []
        if state.guide is not None:
            return self._guided_tokens(key, state.guide, tokens)
        accepted_tokens = list(takewhile(lambda token: token not in state.generation.stop_token_ids, tokens))
        if len(accepted_tokens) < len(tokens):
            self.ends[key] = End("stop", token=tokens[len(accepted_tokens)])
        return accepted_tokens

    def _guided_tokens(self, key: int, guide: Guide, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that a constraint accepts; if it raises ``UserError``, the row ends."""
        try:
            return guide.accepted(tokens)
        except UserError as error:
            self.ends[key] = End("refused", str(error))
            return []

    def _append(self, key: int, span: RowSpan, tokens: Sequence[int], logits: Tensor) -> None:
        """Append new tokens to the text of a row and to the result of the step."""
        count = self._rows[key].alternatives
        for line, token in zip(span.lines, tokens, strict=False):
            score = None if count is None else scored(logits[line].log_softmax(-1)[: self._allowed], token, count)
            self._drawn.append(Drawn(key, token, score))
        self.texts[key] += tokens

    def _has_ended(self, key: int) -> bool:
        """Return True if a row has ended, and record the reason in ``ends``."""
        guide = self._rows[key].guide
        if key not in self.ends and guide is not None and guide.done:
            self.ends[key] = End("stop")
        elif key not in self.ends and self.is_full(key):
            self.ends[key] = End("length", "" if guide is None or guide.complete else self._incomplete(key, guide.name))
        return key in self.ends

    def _incomplete(self, key: int, name: str) -> str:
        return (
            f"after {self._rows[key].generation.max_new_tokens} tokens (max_new_tokens) the text does not match the "
            f"{name} yet; raise max_new_tokens, or limit the lengths that the {name} allows"
        )

    def _seen(self, rows: Sequence[DecodedRow], spans: Sequence[RowSpan], logits: Tensor) -> Tensor | None:
        """Return the tokens before each line of the spans, in any order (M, L), for the repetition penalty; None if no
        row has one.

        If the batch has the same rows as in the last step, the latest token is appended to the last result.
        """
        keys, before, self._history = [row.key for row in rows], self._history, None
        if all(span.generation.repetition_penalty == 1.0 for span in spans):
            return None
        if self._proposals:
            return history([text for span in spans for text in span.prefixes], logits)
        if before is not None and before[0] == keys:
            latest = torch.tensor([row.tokens[-1:] for row in rows], device=logits.device)
            seen = torch.cat((before[1], latest), 1)
        else:
            seen = history([row.tokens for row in rows], logits)
        self._history = keys, seen
        return seen


def scored(chances: Tensor, token: int, count: int) -> TokenScore:
    """Score ``token`` by log probabilities ``chances`` (V), with the ``count`` most probable tokens."""
    best, ids = chances.topk(min(count, len(chances)))
    return TokenScore(float(chances[token]), tuple(zip(ids.tolist(), best.tolist(), strict=True)))


def _seed(generation: Generation) -> int:
    return secrets.randbits(32) if generation.seed is None else generation.seed


def stream(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    generation: Generation,
    capacity: int | None = None,
    speculation: Speculator | None = None,
    drawn: int | None = None,
) -> Iterator[list[int]]:
    """Yield one list per step, with the new token of each prompt; see ``Sampling``. ``stream_text`` has stop strings.

    ``speculation``: decode speculatively, see ``qkv.generation.decode.speculate``. ``drawn``: only ids below it are
    sampled.
    Raises ``UserError`` for several prompts with ``stop_token_ids``, whose texts end at different positions.
    """
    if len(prompts) > 1 and generation.stop_token_ids:
        raise UserError(
            "stop_token_ids: texts of several prompts would end at different positions; call generate, not stream"
        )
    sampling = _of_ids(model, prompts, generation, capacity, speculation, drawn)
    done = [len(prompt) for prompt in prompts]
    with evaluating(model):
        while sampling.running:
            sampling.step()
            while done and all(len(text) > place for text, place in zip(sampling.texts.values(), done, strict=True)):
                yield [text[place] for text, place in zip(sampling.texts.values(), done, strict=True)]
                done = [place + 1 for place in done]


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    generation: Generation | None = None,
    capacity: int | None = None,
    speculation: Speculator | None = None,
    drawn: int | None = None,
    inputs: Sequence[Mapping[str, Signal]] | None = None,
) -> list[list[int]]:
    """Generate the new tokens of each prompt; see ``Sampling``. Raises ``UserError`` for invalid prompts or options.

    ``speculation``: decode speculatively, see ``qkv.generation.decode.speculate``. ``drawn``: only ids below it are
    sampled. ``inputs``: values of the inputs other than text of each prompt, see ``Signal.inputs``.
    """
    sampling = _of_ids(model, () if inputs else prompts, generation or Generation(), capacity, speculation, drawn)
    if inputs:
        sampling.admit(prompts, inputs=inputs, speculator=speculation)
    with unchanged(), evaluating(model):
        while sampling.running:
            sampling.step()
    return [text[len(prompt) :] for text, prompt in zip(sampling.texts.values(), prompts, strict=True)]


def _of_ids(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    generation: Generation,
    capacity: int | None,
    speculation: Speculator | None,
    drawn: int | None,
) -> Sampling:
    """Return a sampler for ``prompts`` that needs no tokenizer. Raises ``UserError`` for stop strings."""
    if generation.stop:
        raise UserError(
            "stop: stop strings need a tokenizer, and only token ids are given; "
            "generate with a tokenizer or without 'stop'"
        )
    return Sampling(model, prompts, generation, capacity, drawn, speculator=speculation)
