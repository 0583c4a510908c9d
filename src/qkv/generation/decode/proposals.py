"""Sources of proposed tokens for speculative decoding: n-gram look-up in the text, or a draft model."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.generation.engine import DecodedRow, Engine, Next, Reading
from qkv.generation.logits.filters import alike, draw_by, filtered, history, probabilities
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.system.errors import UserError


class Wanted(NamedTuple):
    """Request for a proposal.

    text: tokens so far; they are only ever appended to. count: maximum number of tokens to propose; 0 for none now.
    generation, seed: settings of the text. drawn: only ids below it may be proposed; None for all.
    """

    text: Sequence[int]
    count: int
    generation: Generation
    seed: int
    drawn: int | None = None


class Proposal(NamedTuple):
    """Tokens proposed for a row.

    tokens: k ids.   chances (k, V): distributions q from which they were sampled; None: they were not sampled (q = 1).
    """

    tokens: list[int]
    chances: Tensor | None = None


class Proposer(ABC):
    """Base class of sources of proposed tokens."""

    @abstractmethod
    def propose(self, rows: Mapping[int, Wanted]) -> dict[int, Proposal]:
        """Return proposals of at least one token for some of the rows, by key.

        ``rows``: requests of all rows that are being decoded, by key; at least one has ``count`` > 0. The proposer
        discards its state of all other rows.
        """


class LookUp(Proposer):
    """N-gram look-up: propose the tokens that followed the latest earlier occurrence of the last n tokens of the text.

    n is as large as possible, from ``ngram`` down to 1. If fewer tokens follow that occurrence than are requested, the
    proposal repeats them periodically. Prompt look-up, Saxena 2023.
    """

    def __init__(self, ngram: int):
        self.ngram = ngram
        self._seen: dict[int, tuple[int, dict[tuple[int, ...], int]]] = {}
        """Key -> (number of tokens in the index, index: n-gram -> position after its latest occurrence)."""

    def propose(self, rows: Mapping[int, Wanted]) -> dict[int, Proposal]:
        self._seen = {key: seen for key, seen in self._seen.items() if key in rows}
        continuations = {key: self._continued(key, row.text, row.count) for key, row in rows.items() if row.count}
        return {key: Proposal(tokens) for key, tokens in continuations.items() if tokens}

    def _continued(self, key: int, text: Sequence[int], count: int) -> list[int]:
        """Return ``count`` tokens that follow an earlier occurrence of the end of ``text``; [] if there is none."""
        done, index = self._seen.get(key, (0, {}))
        for end in range(max(1, done), len(text)):  # n-grams that a token follows
            for n in range(1, min(self.ngram, end) + 1):
                index[tuple(text[end - n : end])] = end
        self._seen[key] = len(text), index
        lengths = range(min(self.ngram, len(text)), 0, -1)
        place = next((index[gram] for n in lengths if (gram := tuple(text[len(text) - n :])) in index), None)
        if place is None:
            return []
        period = len(text) - place
        follow = (text[place + i % period] for i in range(count))
        return list(takewhile(lambda token: token >= 0, follow))  # a negative id is a placeholder, such as for an image


class Draft(Proposer):
    """Draft model: proposes the tokens that it samples after each text, one by one, with their distributions.

    It samples with the settings of the text. After a rejection it reads the text again from the first rejected token.
    """

    def __init__(self, model: Transformer):
        self.model = model
        self._engine = Engine(model, self._drawn)
        self._agreed: dict[int, int] = {}
        """Key of each row -> number of its first tokens that are known to equal those of its text."""
        self._random: dict[int, random.Random] = {}
        self._rows: Mapping[int, Wanted] = {}
        self._found: dict[int, tuple[list[int], list[Tensor]]] = {}

    def propose(self, rows: Mapping[int, Wanted]) -> dict[int, Proposal]:
        # A draft reads tokens only: no proposals for a text with placeholders (negative ids), such as for an image.
        rows = {key: row for key, row in rows.items() if min(row.text, default=0) >= 0}
        self._rows, self._found = rows, {key: ([], []) for key in rows}
        self._follow(rows)
        with evaluating(self.model):
            for step in range(max((row.count for row in rows.values()), default=0)):
                self._engine.step()
                if not step:  # before the state contains proposed tokens
                    self._engine.mark()
        return {key: self._proposal(*self._found[key], row.count) for key, row in rows.items() if row.count}

    def _proposal(self, tokens: list[int], chances: list[Tensor], count: int) -> Proposal:
        return Proposal(tokens[:count], torch.stack(chances[:count]) if chances else None)

    def _follow(self, rows: Mapping[int, Wanted]) -> None:
        """Synchronise the engine with ``rows``: truncate rejected proposals, evict rows that have ended, append the new
        tokens of each text, admit new rows.
        """
        engine, texts = self._engine, {key: row.text for key, row in rows.items()}
        engine.cut([_common(row.tokens, texts.get(row.key, ()), self._agreed[row.key]) for row in engine.rows])
        engine.evict([place for place, row in enumerate(engine.rows) if row.key not in texts])
        for row in engine.rows:
            row.tokens += texts[row.key][len(row.tokens) :]
        new = [key for key in texts if key not in self._agreed]
        engine.admit([texts[key] for key in new], new)
        engine.read_waiting()
        self._random = {key: self._random.get(key) or random.Random(f"draft {row.seed}") for key, row in rows.items()}
        self._agreed = {key: len(text) for key, text in texts.items()}

    def _drawn(self, rows: Sequence[DecodedRow], reading: Reading) -> list[Next]:
        """Sample one token of the draft for each row; return the rows' successors (engine policy)."""
        logits = reading.logits()
        for generation, places in alike([self._rows[row.key].generation for row in rows]):
            group = [rows[place] for place in places]
            self._draw(group, logits[places, : self._rows[group[0].key].drawn], generation)
        return [Next(place, self._found[row.key][0][-1:]) for place, row in enumerate(rows)]

    def _draw(self, rows: Sequence[DecodedRow], logits: Tensor, generation: Generation) -> None:
        """Sample one token for each row; all rows have the same settings."""
        text = history([row.tokens for row in rows], logits) if generation.repetition_penalty != 1.0 else None
        if generation.temperature == 0.0:
            chances, drawn = None, filtered(logits, generation, text).argmax(-1)
        else:
            chances = probabilities(logits, generation, text)
            uniforms = [self._random[row.key].random() for row in rows]
            drawn = draw_by(chances, torch.tensor(uniforms, dtype=torch.float64, device=logits.device))
        tokens: list[int] = drawn.tolist()
        if max(tokens) >= logits.shape[-1]:
            raise UserError(
                "the draft model's logits are not finite, so it can propose no token; its weights are damaged"
            )
        for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            draft = self._found[row.key]
            draft[0].append(token)
            draft[1].extend([] if chances is None else [chances[place]])


def _common(row: Sequence[int], text: Sequence[int], shared: int) -> int:
    """Return the length of the common prefix of ``row`` and ``text``, at most one less than the length of ``text``.

    ``shared``: number of first tokens that need no comparison. The last token of ``text`` never counts, because the
    draft must read it to predict the next token.
    """
    length, most = min(shared, len(text)), min(len(row), len(text) - 1)
    while length < most and row[length] == text[length]:
        length += 1
    return max(0, min(length, most))
