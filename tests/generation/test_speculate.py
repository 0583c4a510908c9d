"""Speculative decoding against plain decoding: equal tokens where they must be equal, else an equal distribution."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Collection, Mapping, Sequence
from functools import cache

import pytest
import torch
from tests.contracts.samples import FORMS, SAMPLES, SEGMENTED, describe, positions, stack
from tests.contracts.samples import STACKS as CONTRACT_STACKS
from tests.contracts.subjects import scrambled
from tests.generation.models import STACKS, model
from tests.generation.reads import tell_reads
from tests.generation.test_filters import chi_square_p
from tests.generation.test_text import SCHEMES, system

from qkv.generation.decode.proposals import Proposal, Proposer, Wanted
from qkv.generation.decode.sample import Sampling, generate, stream
from qkv.generation.decode.speculate import Speculator, check_vocabularies
from qkv.generation.decode.verify import remainder
from qkv.generation.logits.constrain import Constraint
from qkv.generation.text import generate_text, generate_texts
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import Branch, FeedForward
from qkv.spec.generation import Generation, Speculation
from qkv.spec.models.blocks import Block
from qkv.spec.parts import NoPositions
from qkv.spec.tokenizers import Characters
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

PROMPTS = [[5, 1, 7, 2, 9, 4, 10, 3, 8], [6], [2, 2, 1, 2, 2]]
GREEDY = Generation(max_new_tokens=24, temperature=0)
SHORT = GREEDY.changed(max_new_tokens=14)
DRAWN = Generation(max_new_tokens=24, temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=7)
ALWAYS = Speculation(num_tokens=4, adaptive=False)
DRAFTED = ALWAYS.changed(kind="draft")

PARTS = {describe(part): part for parts in SAMPLES.values() for part in parts if part.causal and not part.reads_memory}
WHOLE = {**CONTRACT_STACKS, **SEGMENTED, **{name: spec for name, spec in FORMS.items() if spec.encoder is None}}


class Oracle(Proposer):
    """Proposes what plain decoding writes, each token wrong with one chance in four."""

    def __init__(self, texts: Sequence[Sequence[int]], vocabulary: int):
        self.texts, self.vocabulary, self.random = texts, vocabulary, random.Random(4)

    def propose(self, rows: Mapping[int, Wanted]) -> dict[int, Proposal]:
        return {key: Proposal(self._next(key, len(row.text), row.count)) for key, row in rows.items() if row.count}

    def _next(self, key: int, place: int, count: int) -> list[int]:
        right = self.texts[key][place : place + count]
        return [(token + (self.random.random() < 0.25)) % self.vocabulary for token in right]


class WithOracle(Speculator):
    """Speculation whose proposals come from an ``Oracle``."""

    def __init__(self, texts: Sequence[Sequence[int]], vocabulary: int):
        super().__init__(ALWAYS)
        self.oracle = Oracle(texts, vocabulary)

    def begin(self) -> Proposer:
        super().begin()
        return self.oracle


def checked_with_oracle(m: Transformer, generation: Generation) -> Speculator:
    """The speculator of a generation that was compared with plain decoding."""
    plain = generate(m, PROMPTS, generation)
    texts = [prompt + new for prompt, new in zip(PROMPTS, plain, strict=True)]
    speculator = WithOracle(texts, m.vocab_size or 0)
    assert generate(m, PROMPTS, generation, speculation=speculator) == plain
    return speculator


def one_mixer(part: Branch) -> Transformer:
    spec = stack((Block(branches=(part, FeedForward())),), positions(NoPositions()))
    return scrambled(build(spec), torch.float64)


@pytest.mark.filterwarnings("ignore:.*outputs differ from those of training")
@pytest.mark.parametrize("name", PARTS)
def test_every_causal_mixer_takes_back_what_was_rejected(name: str) -> None:
    speculator = checked_with_oracle(one_mixer(PARTS[name]), SHORT)
    passes, proposed, accepted = speculator.counts
    assert 0 < accepted < proposed
    assert passes < 3 * 13, "the prompts' last tokens and then all others one by one"


@pytest.mark.filterwarnings("ignore:.*outputs differ from those of training")
@pytest.mark.parametrize("name", WHOLE)
def test_every_form_of_decoder_takes_back_what_was_rejected(name: str) -> None:
    speculator = checked_with_oracle(scrambled(build(WHOLE[name]), torch.float64), SHORT)
    assert 0 < speculator.counts.accepted < speculator.counts.proposed


@cache
def exact(name: str, seed: int = 0, **changes: int) -> Transformer:
    """A model of ``STACKS`` in float64, moved a little away for each other seed."""
    m = copy.deepcopy(model(name, **changes)).double()
    for p in m.parameters() if seed else ():
        p.data += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
    return m


@pytest.mark.parametrize("name", STACKS)
def test_drawn_tokens_with_certain_proposals_are_those_of_plain_decoding(name: str) -> None:
    """The same random number for the same token: wherever proposals are accepted or rejected."""
    assert checked_with_oracle(exact(name), DRAWN).counts.accepted > 10


@pytest.mark.parametrize("name", ["rope", "window", "learned"])
@pytest.mark.parametrize("generation", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_look_up_writes_the_tokens_of_plain_decoding(name: str, generation: Generation) -> None:
    m = exact(name)
    plain = generate(m, PROMPTS, generation)
    for speculation in (Speculation(num_tokens=1), Speculation(num_tokens=7, ngram=1, adaptive=False)):
        speculator = Speculator(speculation)
        assert generate(m, PROMPTS, generation, speculation=speculator) == plain
        assert speculator.counts.proposed


@pytest.mark.parametrize("limit", [1, 2, 7, 8])
@pytest.mark.parametrize("kind", ["learned", "all"])
def test_a_context_that_slides_stays_exact(kind: str, limit: int) -> None:
    """Also of mixers whose state cannot be cut."""
    speculator = checked_with_oracle(exact(kind, context_length=limit), DRAWN)
    assert (speculator.counts.accepted > 5) == (limit > 2)


def test_a_fixed_capacity_is_never_exceeded_by_proposals() -> None:
    m = exact("rope")
    texts = [prompt + new for prompt, new in zip(PROMPTS, generate(m, PROMPTS, GREEDY), strict=True)]
    speculator = WithOracle(texts, 23)
    found = list(itertools.islice(stream(m, PROMPTS, GREEDY, len(PROMPTS[0]) + 11, speculator), 12))
    assert [list(row) for row in zip(*found, strict=True)] == [
        text[len(prompt) :][:12] for text, prompt in zip(texts, PROMPTS, strict=True)
    ]


def test_rows_come_and_go_while_others_speculate() -> None:
    m = exact("all")
    alone = [generate(m, [prompt], DRAWN.changed(seed=7 + row))[0] for row, prompt in enumerate(PROMPTS)]
    texts = [prompt + new for prompt, new in zip(PROMPTS, alone, strict=True)]
    for other in (None, 1):
        speculator = WithOracle(texts, 23)
        sampling = Sampling(m, PROMPTS[:2], DRAWN, speculator=speculator)
        pairs = [pair for _ in range(2) for pair in sampling.step()]
        sampling.admit(PROMPTS[2:], speculator=speculator)
        sampling.drop(set() if other is None else {other})
        while sampling.running:
            pairs += sampling.step()
        assert [text for row, text in sampling.texts.items() if row != other] == [
            text for row, text in enumerate(texts) if row != other
        ]
        for row, text in sampling.texts.items():
            assert [token for at, token, _ in pairs if at == row] == text[len(PROMPTS[row]) :]


@pytest.mark.parametrize("name", ["rope", "gru", "window", "learned"])
@pytest.mark.parametrize("drafted", ["rope", "gru", "learned"])
def test_a_draft_of_any_kind_changes_no_greedy_token(name: str, drafted: str) -> None:
    m, draft = exact(name, context_length=8), exact(drafted, 5, context_length=6)
    speculator = Speculator(DRAFTED, draft)
    assert generate(m, PROMPTS, GREEDY, speculation=speculator) == generate(m, PROMPTS, GREEDY)
    assert speculator.counts.proposed


@pytest.mark.parametrize("name", ["rope", "gru", "window"])
@pytest.mark.parametrize("temperature", [0.0, 1.1])
def test_of_the_same_draft_everything_is_accepted(name: str, temperature: float) -> None:
    m, generation = exact(name), DRAWN.changed(temperature=temperature)
    speculator = Speculator(DRAFTED, copy.deepcopy(m))
    assert len(generate(m, PROMPTS, generation, speculation=speculator)[0]) == 24
    passes, proposed, accepted = speculator.counts
    assert accepted == proposed == 3 * (4 * 4 + 2)  # 1 token by the prompt, 4 times 4 + 1, the last 3 by 2 + 1
    assert passes == 3 * 5
    assert speculator.counts.mean_accepted == 18 / 5


def test_a_draft_that_is_always_wrong_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    m = copy.deepcopy(exact("gru"))
    plain = generate(m, PROMPTS, GREEDY)
    wrong = copy.deepcopy(m)
    wrong.head.weight.data *= -1  # type: ignore[operator]
    read = widths_read(m, monkeypatch)
    speculator = Speculator(DRAFTED, wrong)
    assert generate(m, PROMPTS, GREEDY, speculation=speculator) == plain
    assert speculator.counts.accepted == 0
    assert speculator.counts.proposed > 100
    assert max(read[1:]) <= 5 + 4, "tokens that are read again since a rejection are limited, though none can be cut"


def widths_read(m: Transformer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of positions of all forward passes that follow."""
    widths: list[int] = []
    tell_reads(m, monkeypatch, lambda shape: widths.append(shape[1]))
    return widths


VOCAB = 4
CHANCES = Generation(max_new_tokens=4, temperature=0.8, top_k=3, repetition_penalty=1.5, seed=3)


@cache
def tiny(seed: int) -> Transformer:
    spec = stack((Block(),), positions(NoPositions()).changed(vocab_size=VOCAB), init_std=1.0)
    return build(spec, seed=seed).double().eval()


@torch.no_grad()
def chances_after(
    text: tuple[int, ...], allowed: Collection[int] = range(VOCAB), temperature: float = 0.8
) -> list[float]:
    """The distribution of the next token, by loops: those allowed, repetition penalty, temperature, the best three,
    softmax.
    """
    logits = tiny(1)(torch.tensor([text]))[0][0, -1].tolist()
    logits = [x if token in allowed else -math.inf for token, x in enumerate(logits)]
    for token in set(text):
        logits[token] = logits[token] / 1.5 if logits[token] > 0 else logits[token] * 1.5
    least = sorted(logits)[-3]
    weights = [math.exp(x / temperature) if x >= least else 0.0 for x in logits]
    return [weight / sum(weights) for weight in weights]


def chances_of(
    prompt: tuple[int, ...], allowed: Sequence[Collection[int]], temperature: float = 0.8
) -> dict[tuple[int, ...], float]:
    """The chance of every continuation by tokens that are allowed at each place."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for own in allowed:
        found = {
            (*new, token): chance * each
            for new, chance in found.items()
            for token, each in enumerate(chances_after(prompt + new, own, temperature))
        }
    return found


@cache
def four_letters() -> Tokenizer:
    """The ids 0 to 2 are the letters a to c; 3 is none."""
    tokenizer = train(Characters(), ["abc"])
    assert tokenizer.decode([0, 1, 2]) == "abc"
    return tokenizer


def check_distribution(drawn: Sequence[Sequence[int]], expected: Mapping[tuple[int, ...], float]) -> None:
    """Pearson's test of texts against their chances; those that are rare are counted together."""
    rows = len(drawn)
    counts = {text: 0 for text in expected}
    for text in drawn:
        counts[tuple(text)] += 1
    assert all(counts[text] == 0 for text, chance in expected.items() if chance == 0)
    usual = [text for text, chance in expected.items() if chance * rows >= 5]
    table = torch.tensor([[counts[text], expected[text]] for text in usual], dtype=torch.float64)
    rest = torch.tensor([[rows, 1.0]], dtype=torch.float64) - table.sum(0)
    if rest[0, 1] * rows >= 5:
        table = torch.cat((table, rest))
    else:
        table[0] += rest[0]
    seen, chances = table.T
    assert chi_square_p(seen, chances) > 0.01


GUIDED = "[abc][bc][abc][bc]"


@pytest.mark.parametrize(("draft", "regex"), [(None, None), (2, None), (None, GUIDED), (4, GUIDED)])
def test_drawn_texts_follow_the_distribution_of_the_model(draft: int | None, regex: str | None) -> None:
    prompt, rows = (1, 2, 1), 2000
    speculation = Speculation(kind="draft" if draft else "lookup", num_tokens=2, ngram=1, adaptive=False)
    speculator = Speculator(speculation, tiny(draft) if draft else None)
    constraint = Constraint(four_letters(), regex) if regex else None
    sampling = Sampling(tiny(1), [list(prompt)] * rows, CHANCES, constraint=constraint, speculator=speculator)
    while sampling.running:
        sampling.step()
    drawn = [text[len(prompt) :] for text in sampling.texts.values()]
    expected = chances_of(prompt, [{0, 1, 2}, {1, 2}] * 2 if regex else [range(VOCAB)] * 4)
    check_distribution(drawn, expected)
    passes, proposed, accepted = speculator.counts
    assert passes > rows / 2
    assert 0.1 * proposed < accepted < 0.98 * proposed, "both accepted and rejected tokens should have been tested"


class Drawing(Proposer):
    """Proposes tokens drawn from fixed chances, of which the constraint ``GUIDED`` forbids the last."""

    def __init__(self) -> None:
        self.chances, self.random = torch.tensor([0.1, 0.3, 0.1, 0.5], dtype=torch.float64), random.Random(6)

    def propose(self, rows: Mapping[int, Wanted]) -> dict[int, Proposal]:
        return {key: self._drawn(row.count) for key, row in rows.items() if row.count}

    def _drawn(self, count: int) -> Proposal:
        return Proposal(
            self.random.choices(range(VOCAB), self.chances.tolist(), k=count), self.chances.repeat(count, 1)
        )


class WithDrawing(Speculator):
    def begin(self) -> Proposer:
        super().begin()
        return Drawing()


def test_drawn_proposals_that_a_constraint_forbids_change_no_distribution() -> None:
    """The token in their place is drawn from what is left of the distribution, not from all of it."""
    prompt, speculator = [1, 2, 1], WithDrawing(ALWAYS)
    warm = CHANCES.changed(temperature=3.0)
    sampling = Sampling(
        tiny(1), [prompt] * 2000, warm, constraint=Constraint(four_letters(), GUIDED), speculator=speculator
    )
    while sampling.running:
        sampling.step()
    drawn = [text[3:] for text in sampling.texts.values()]
    check_distribution(drawn, chances_of((1, 2, 1), [{0, 1, 2}, {1, 2}] * 2, 3.0))


def test_what_is_left_after_a_rejection() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.2, 0.3, 0.1, 0.4]], dtype=torch.float64)
    assert remainder(p, q).tolist() == pytest.approx([0.3, 0.0, 0.1, 0.0])
    assert remainder(p, p.clone()).tolist() == p.tolist()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_stop_strings_end_the_same_text(scheme: str) -> None:
    m, tokenizer = system(scheme)
    generation = Generation(max_new_tokens=60, temperature=0.5, seed=1)
    whole = generate_texts(m, tokenizer, ["the cat", "the"], generation)
    stop = generation.changed(stop=(whole[0][20:22], whole[1][-3:]))
    plain = generate_texts(m, tokenizer, ["the cat", "the"], stop)
    assert plain != whole
    speculator = Speculator(Speculation(num_tokens=5, ngram=1, adaptive=False))
    assert generate_texts(m, tokenizer, ["the cat", "the"], stop, speculation=speculator) == plain
    assert speculator.counts.accepted
    assert generate_text(m, tokenizer, "the cat", stop, speculation=speculator) == plain[0]


def test_figures_are_of_the_latest_generation() -> None:
    m, speculator = exact("rope"), Speculator(ALWAYS)
    assert speculator.summary() == "speculation: no tokens were proposed"
    for _ in range(2):
        generate(m, [[1, 2] * 6], GREEDY, speculation=speculator)
        passes, proposed, accepted = speculator.counts
        assert 0 < passes < 24
        assert 0 <= accepted <= proposed <= 4 * passes
        assert speculator.summary().startswith(f"speculation: {accepted} of {proposed} proposed tokens accepted, ")


class Clock:
    """Time that passes with every position read: one second, or the time given for passes with proposals."""

    def __init__(self, m: Transformer, pass_seconds: float, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0

        def add(shape: tuple[int, ...]) -> None:
            self.now += 1.0 if shape[1] == 1 else pass_seconds

        tell_reads(m, monkeypatch, add)

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("pass_seconds", "gains"), [(1.5, True), (20.0, False)])
def test_it_stops_where_it_loses_and_goes_on_where_it_gains(
    pass_seconds: float, gains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, generation = build(model("rope").spec, seed=3).double().eval(), GREEDY.changed(max_new_tokens=400)
    plain = generate(m, [[3, 1]], generation)
    speculator = WithOracle([[3, 1, *plain[0]]], 23)
    speculator.speculation = Speculation(num_tokens=8)
    speculator.clock = Clock(m, pass_seconds, monkeypatch)
    assert generate(m, [[3, 1]], generation, speculation=speculator) == plain
    whole, passes = speculator.gain.whole, speculator.counts.passes
    assert whole is not None
    assert whole > 1.5 if gains else whole < 1
    assert passes > 60 if gains else passes <= 4 * 6, "trials of six passes"
    assert f"{whole:.2f} times the speed of plain steps" in speculator.summary()


def refusals() -> list[tuple[str, str]]:
    return [
        ("beams", "num_beams is 2, but beam search cannot decode speculatively"),
        ("vocabulary", "the draft model has a vocabulary of 11 tokens and the model one of 23"),
        ("encoder", "the draft model has an encoder"),
        ("bidirectional", "the draft model has branches that see later positions"),
    ]


@pytest.mark.parametrize(("what", "sentence"), refusals())
def test_what_does_not_go_together_is_refused_with_a_sentence(what: str, sentence: str) -> None:
    m, generation = model("rope"), GREEDY.changed(num_beams=2, temperature=1.0) if what == "beams" else GREEDY
    drafts = {
        "beams": lambda: m,
        "vocabulary": lambda: build(CONTRACT_STACKS["plain"]),
        "encoder": lambda: build(with_tokens(FORMS["cross attention"])),
        "bidirectional": lambda: build(
            with_tokens(stack((Block.parse({"branches": [{"kind": "attention", "mask": "full"}]}),)))
        ),
    }
    with pytest.raises(UserError, match=sentence):
        generate(m, PROMPTS, generation, speculation=Speculator(draft=drafts[what]()))


def with_tokens(spec):  # type: ignore[no-untyped-def]
    """``spec`` with the vocabulary of the models of these tests."""
    return spec.changed(frontend=spec.frontend.changed(vocab_size=23))


def test_kind_and_draft_must_agree() -> None:
    with pytest.raises(UserError, match="'draft' needs a draft model"):
        Speculator(Speculation(kind="draft"))
    with pytest.raises(UserError, match="'lookup' takes no draft model"):
        Speculator(Speculation(), model("rope"))


def test_equal_ids_must_be_equal_tokens() -> None:
    check_vocabularies(system("words")[1], system("words")[1])
    with pytest.raises(UserError, match=r"only one of the two has the token .* with the id 0"):
        check_vocabularies(system("words")[1], system("characters")[1])


def test_a_damaged_model_and_a_damaged_draft_are_told_apart() -> None:
    m = exact("gru")
    damaged = copy.deepcopy(m)
    damaged.head.weight.data[3, 0] = math.nan  # type: ignore[index]
    with pytest.raises(UserError, match="the draft model's logits are not finite"):
        generate(m, PROMPTS, DRAWN, speculation=Speculator(DRAFTED, damaged))
    for draft in (None, m):
        with pytest.raises(UserError, match="the model's logits are not finite"):
            generate(
                damaged,
                PROMPTS,
                DRAWN,
                speculation=Speculator(Speculation(kind="draft" if draft else "lookup", adaptive=False), draft),
            )
