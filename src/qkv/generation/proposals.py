"""Proposals of speculative decoding: by looking up n-grams in the text, or by a draft model."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.generation.engine import DecodedRow, Engine, Next, Reading
from qkv.generation.filters import alike, draw_by, filtered, history, probabilities
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.spec.errors import UserError
from qkv.spec.generation import Generation


class Wanted(NamedTuple):
    """Text for which tokens are proposed.

    text: its tokens so far; it only ever grows. count: number of tokens to propose at most; 0 for none now.
    generation, seed: its settings. drawn: only ids below it may be proposed; None for all.
    """

    text: Sequence[int]
    count: int
    generation: Generation
    seed: int
    drawn: int | None = None


class Proposal(NamedTuple):
    """Tokens proposed for a row.

    tokens: k ids.   chances (k, V): probabilities q with which they were drawn; None: each is certain.
    """

    tokens: list[int]
    chances: Tensor | None = None


class Proposer(ABC):
    """Source of proposals."""

    @abstractmethod
    def propose(self, rows: Mapping[int, Wanted]) -> dict[int, Proposal]:
        """Proposals of at least one token for some of the rows, by key. ``rows``: all that are decoded, at least one
        of which wants tokens; the proposer forgets what it knows of others.
        """


class LookUp(Proposer):
    """N-gram look-up: the tokens that followed the latest earlier occurrence of the last tokens of the text.

    The longest n-gram that occurred is used, from ``ngram`` tokens down to one. Where the occurrence overlaps the end
    of the text, the proposal repeats it. Prompt look-up, Saxena 2023.
    """

    def __init__(self, ngram: int):
        self.ngram = ngram
        self._seen: dict[int, tuple[int, dict[tuple[int, ...], int]]] = {}
        """Key -> (number of tokens in the index, index: n-gram -> position after its latest occurrence)."""

    def propose(self, rows: Mapping[int, Wanted]) -> dict[int, Proposal]:
        self._seen = {key: seen for key, seen in self._seen.items() if key in rows}
        found = {key: self._continued(key, row.text, row.count) for key, row in rows.items() if row.count}
        return {key: Proposal(tokens) for key, tokens in found.items() if tokens}

    def _continued(self, key: int, text: Sequence[int], count: int) -> list[int]:
        """Up to ``count`` tokens that followed the end of ``text`` before; none if it is new."""
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
        return [text[place + i % period] for i in range(count)]


class Draft(Proposer):
    """Draft model: the tokens that it draws, one by one, after each text, with their probabilities.

    It draws with the settings of the text, and reads a text whose proposals were rejected again from there.
    """

    def __init__(self, model: Transformer):
        self.model = model
        self._engine = Engine(model, self._drawn)
        self._agreed: dict[int, int] = {}
        """Number of first tokens of a row that are those of its text."""
        self._random: dict[int, random.Random] = {}
        self._rows: Mapping[int, Wanted] = {}
        self._found: dict[int, tuple[list[int], list[Tensor]]] = {}

    def propose(self, rows: Mapping[int, Wanted]) -> dict[int, Proposal]:
        self._rows, self._found = rows, {key: ([], []) for key in rows}
        self._follow(rows)
        with evaluating(self.model):
            for step in range(max(row.count for row in rows.values())):
                self._engine.step()
                if not step:  # the state has read nothing but the text
                    self._engine.mark()
        return {key: self._proposal(*self._found[key], row.count) for key, row in rows.items() if row.count}

    def _proposal(self, tokens: list[int], chances: list[Tensor], count: int) -> Proposal:
        return Proposal(tokens[:count], torch.stack(chances[:count]) if chances else None)

    def _follow(self, rows: Mapping[int, Wanted]) -> None:
        """Let the engine's rows be those of ``rows``: rejected proposals are cut, rows that have ended are evicted."""
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
        """Successors of all rows, as a policy of the engine: each with one token of the draft."""
        logits = reading.logits()
        for generation, places in alike([self._rows[row.key].generation for row in rows]):
            own = [rows[place] for place in places]
            self._draw(own, logits[places, : self._rows[own[0].key].drawn], generation)
        return [Next(place, self._found[row.key][0][-1:]) for place, row in enumerate(rows)]

    def _draw(self, rows: Sequence[DecodedRow], logits: Tensor, generation: Generation) -> None:
        """Draw one token for each row; all have the same settings."""
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
            found = self._found[row.key]
            found[0].append(token)
            found[1].extend([] if chances is None else [chances[place]])


def _common(row: Sequence[int], text: Sequence[int], known: int) -> int:
    """Length of the common prefix of both texts, at most one less than the length of ``text``.

    ``known``: number of first tokens that are known to be equal. The last token of the text is left out, because the
    next one is predicted from it.
    """
    length, most = min(known, len(text)), min(len(row), len(text) - 1)
    while length < most and row[length] == text[length]:
        length += 1
    return max(0, min(length, most))
