"""Speculative decoding against plain decoding: equal tokens where they must be equal, else an equal distribution."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.samples import FORMS, SAMPLES, SEGMENTED, WIDTH, describe, positions, stack
from tests.contracts.samples import STACKS as CONTRACT_STACKS
from tests.contracts.subjects import scrambled
from tests.generation.models import STACKS, VOCABULARY, model
from tests.generation.test_filters import chi_square_p

from qkv.generation.proposals import LookUp, Proposal, Proposer, Texts
from qkv.generation.sample import generate
from qkv.generation.speculate import Speculator, remainder
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.blocks import Block
from qkv.spec.branches import Branch, FeedForward
from qkv.spec.errors import UserError
from qkv.spec.generation import Generation, Speculation
from qkv.spec.model import Model
from qkv.spec.parts import NoPositions

PROMPTS = [[5, 1, 7, 2, 9, 4, 10, 3, 8], [6], [2, 2, 1, 2, 2]]
GREEDY = Generation(max_new_tokens=24, temperature=0)
DRAWN = Generation(max_new_tokens=24, temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=7)
ALWAYS = Speculation(num_tokens=4, adaptive=False)

PARTS = {
    describe(part): part for parts in SAMPLES.values() for part in parts if part.causal and not part.reads_memory
}
WHOLE = {**CONTRACT_STACKS, **SEGMENTED, **{name: spec for name, spec in FORMS.items() if spec.encoder is None}}


class Oracle(Proposer):
    """Proposes what plain decoding writes, each token wrong with one chance in four."""

    def __init__(self, texts: Sequence[Sequence[int]], vocabulary: int):
        self.texts, self.vocabulary, self.random = texts, vocabulary, random.Random(4)

    def propose(self, texts: Texts, counts: Mapping[int, int]) -> dict[int, Proposal]:
        return {key: Proposal(self._next(key, len(texts[key]), count)) for key, count in counts.items()}

    def _next(self, key: int, place: int, count: int) -> list[int]:
        right = self.texts[key][place : place + count]
        return [(token + (self.random.random() < 0.25)) % self.vocabulary for token in right]


class WithOracle(Speculator):
    """Speculation whose proposals come from an ``Oracle``."""

    def __init__(self, texts: Sequence[Sequence[int]], vocabulary: int):
        super().__init__(ALWAYS)
        self.oracle = Oracle(texts, vocabulary)

    def proposer(self, generation: Generation, seed: int) -> Proposer:
        return self.oracle


def checked_with_oracle(m: Transformer, generation: Generation) -> Speculator:
    """The speculator of a generation that was compared with plain decoding."""
    plain = generate(m, PROMPTS, generation)
    texts = [prompt + new for prompt, new in zip(PROMPTS, plain, strict=True)]
    speculator = WithOracle(texts, m.vocab_size or 0)
    assert generate(m, PROMPTS, generation, speculation=speculator) == plain
    return speculator


def one_mixer(part: Branch) -> Transformer:
    spec = stack((Block(branches=(part, FeedForward())),), positions(NoPositions()), num_layers=2)
    return scrambled(build(spec), torch.float64)


@pytest.mark.filterwarnings("ignore:.*differs from training")
@pytest.mark.parametrize("name", PARTS)
def test_every_causal_mixer_takes_back_what_was_rejected(name: str) -> None:
    speculator = checked_with_oracle(one_mixer(PARTS[name]), GREEDY)
    passes, proposed, accepted = speculator.counts
    assert 0 < accepted < proposed
    assert passes < 3 * 24


@pytest.mark.filterwarnings("ignore:.*differs from training")
@pytest.mark.parametrize("name", WHOLE)
def test_every_form_of_decoder_takes_back_what_was_rejected(name: str) -> None:
    speculator = checked_with_oracle(scrambled(build(WHOLE[name]), torch.float64), GREEDY)
    assert 0 < speculator.counts.accepted < speculator.counts.proposed


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("generation", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_look_up_writes_the_tokens_of_plain_decoding(name: str, generation: Generation) -> None:
    m = copy.deepcopy(model(name)).double()
    checked_with_oracle(m, generation)
    for num_tokens in (1, 7):
        speculator = Speculator(Speculation(num_tokens=num_tokens, ngram=2))
        assert generate(m, PROMPTS, generation, speculation=speculator) == generate(m, PROMPTS, generation)
        assert speculator.counts.proposed
