"""Masked tokens: loss of the targets alone, whole words, gaps in a text, pseudo-perplexity token by token."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from tests.tasks.running import SEES_ALL, TEXT, opened, recipe_of

from qkv.data.batching.batch import IGNORED
from qkv.spec.data import Data
from qkv.spec.errors import SpecError
from qkv.spec.tokenizers import Tokenizer as TokenizerSpec
from qkv.system.errors import UserError
from qkv.tasks.task import Totals
from qkv.tasks.text.fill_in import read_gaps
from qkv.tasks.text.masked_tokens import pseudo_log_likelihood, sentences
from qkv.tasks.text.words import WordNumbers
from qkv.tokenizers.train import train

KINDS = (
    "characters",
    "bytes",
    "words",
    "word_list(100, lowercase=false)",
    "bpe(300)",
    "wordpiece(60)",
    "unigram(300)",
    "code(300)",
)


def test_the_loss_is_that_of_the_hidden_tokens_alone(tmp_path: Path) -> None:
    task, dataset, model = opened(recipe_of("masked_tokens", SEES_ALL, tmp_path))
    batch = dataset.batch(0)
    logits = model(batch.input.values)[0].log_softmax(-1)
    nats = [-logits[i, j, t] for i, row in enumerate(batch.targets.tolist()) for j, t in enumerate(row) if t != IGNORED]
    right = [
        int(logits[i, j].argmax() == t)
        for i, row in enumerate(batch.targets.tolist())
        for j, t in enumerate(row)
        if t != IGNORED
    ]
    assert 0 < len(nats) < batch.targets.numel() / 3
    torch.testing.assert_close(task.summed_loss(model, batch).double(), torch.stack(nats).sum(), rtol=1e-6, atol=0)
    seen = Totals()
    seen.add(task.observe(model, batch))
    figures = task.figures(seen, dataset.scale())
    assert figures["loss"] == pytest.approx(torch.stack(nats).mean().item(), rel=1e-6)
    assert figures["masked_accuracy"] == sum(right) / len(nats)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))


def test_the_head_is_asked_of_the_targets_alone(tmp_path: Path) -> None:
    task, dataset, model = opened(recipe_of("masked_tokens", SEES_ALL, tmp_path))
    rows: list[int] = []
    model.head.register_forward_hook(lambda module, given, logits: rows.append(logits.shape[0]))
    batch = dataset.batch(0)
    task.summed_loss(model, batch).backward()
    assert rows == [batch.num_targets]


def test_steps_differ_and_repeat(tmp_path: Path) -> None:
    _, dataset, _ = opened(recipe_of("masked_tokens", SEES_ALL, tmp_path))
    assert dataset.batch(3).input.values.equal(dataset.batch(3).input.values)
    assert not dataset.batch(3).input.values.equal(dataset.batch(4).input.values)
    held_out = [[batch.input.values for batch in dataset.rows("validation", 2)] for _ in range(2)]
    assert all(one.equal(other) for one, other in zip(*held_out, strict=True))
    mask = dataset.vocabulary.tokenizer.special("mask")
    assert mask == dataset.recipe.model.vocab_size - 1
    assert (held_out[0][0] == mask).any()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.partition("(")[0])
def test_tokens_of_a_word_are_numbered_alike(kind: str) -> None:
    # The truth is from the text: two tokens are of one word if a run of letters and digits covers both.
    text = "The red dogs ran, and it slept after the house!"
    tokenizer = train(tokenizer_spec(kind), [TEXT])
    ids, spans = tokenizer.encode_offsets(text)
    runs = [match.span() for match in re.finditer(r"\w+", text)]
    own = [
        next((r for r, (begin, end) in enumerate(runs) if begin <= _letter(text, span) < end), None) for span in spans
    ]
    numbers = WordNumbers(tokenizer).of(torch.tensor([ids]).numpy())[0].tolist()
    for i in range(len(ids) - 1):
        assert (numbers[i] == numbers[i + 1]) == (own[i] is not None and own[i] == own[i + 1]), (
            text[slice(*spans[i])],
            kind,
        )


def tokenizer_spec(kind: str) -> TokenizerSpec:
    return Data.parse({"source": "x", "tokenizer": kind}).tokenizer


def _letter(text: str, span: tuple[int, int]) -> int:
    """The first place of a token that is no space."""
    begin, end = span
    return begin + len(text[begin:end]) - len(text[begin:end].lstrip()) if text[begin:end].strip() else -1


def test_whole_words_are_hidden_together(tmp_path: Path) -> None:
    _, dataset, _ = opened(recipe_of("masked_tokens(rate=0.3, whole_words=true)", SEES_ALL, tmp_path))
    words = WordNumbers(dataset.vocabulary.tokenizer)
    mixed = 0
    for step in range(5):
        batch = dataset.batch(step)
        targets = batch.targets != IGNORED
        text = torch.where(targets, batch.targets, batch.input.values)
        for row, numbers in zip(targets.tolist(), words.of(text.numpy()).tolist(), strict=True):
            for number in set(numbers):
                hidden = {chosen for chosen, own in zip(row, numbers, strict=True) if own == number}
                assert len(hidden) == 1
                mixed += numbers.count(number) > 1
    assert mixed > 10


def test_the_pseudo_perplexity_hides_one_token_at_a_time(tmp_path: Path) -> None:
    task, dataset, model = opened(recipe_of("masked_tokens", SEES_ALL, tmp_path))
    tokenizer = dataset.vocabulary.tokenizer
    chosen = sentences(dataset, "validation", 32)  # type: ignore[arg-type]
    assert chosen
    total = 0.0
    for ids in chosen:
        assert tokenizer.decode(ids) in TEXT
        for place, token in enumerate(ids):
            hidden = [*ids[:place], tokenizer.special("mask"), *ids[place + 1 :]]
            with torch.no_grad():
                total += model(torch.tensor([hidden]))[0][0, place].log_softmax(-1)[token].item()
    assert sum(pseudo_log_likelihood(model, ids, tokenizer) for ids in chosen) == pytest.approx(total, rel=1e-5)
    evaluation = task.evaluate(model, dataset, "validation", Totals(1.0, 1, [1]), dataset.recipe)
    assert evaluation.figures["pseudo_perplexity"] == pytest.approx(math.exp(-total / sum(map(len, chosen))), rel=1e-5)
    assert evaluation.sections[0]["rows"]


def test_a_gap_stands_for_one_token_with_the_space_that_belongs_to_it() -> None:
    byte_pairs, characters = train(tokenizer_spec("bpe(300)"), [TEXT]), train(tokenizer_spec("characters"), [TEXT])
    mask = 999
    found = read_gaps("The cat <mask> on [MASK] mat", byte_pairs, [mask])
    assert found.ids == [
        *byte_pairs.encode("The cat"),
        mask,
        *byte_pairs.encode(" on"),
        mask,
        *byte_pairs.encode(" mat"),
    ]
    assert [found.ids[place] for place in found.places] == [mask, mask]
    assert read_gaps("The c<mask>t", characters, [mask]).ids == [
        *characters.encode("The c"),
        mask,
        *characters.encode("t"),
    ]
    assert read_gaps("a <mask> b", characters, [mask]).ids == [*characters.encode("a "), mask, *characters.encode(" b")]


def test_gaps_are_filled_with_the_most_probable_words(tmp_path: Path) -> None:
    task, dataset, model = opened(
        recipe_of("masked_tokens", {**SEES_ALL, "head": "language_model(bias=true)"}, tmp_path, "bpe(400)")
    )
    tokenizer = dataset.vocabulary.tokenizer
    with torch.no_grad():
        for rank, word in enumerate((" cat", " ran", " the")):
            (index,) = tokenizer.encode(word)
            model.head.bias[index] = 90.0 - 20 * rank  # type: ignore[index]
        model.head.bias[tokenizer.special("mask")] = 200.0  # type: ignore[index]
    (answer,) = task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": "The <mask> sat on <mask>."}])
    assert answer["answer"] == "The cat sat on cat."
    assert [[entry["word"] for entry in gap][:3] for gap in answer["best"]] == [["cat", "ran", "the"]] * 2
    assert len(answer["best"][0]) == 5


@pytest.mark.parametrize(
    ("text", "sentence"), [("no gap", "has no gap to fill; write <mask>"), ("<mask>" * 40, "and the model reads 32")]
)
def test_what_cannot_be_filled_is_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    task, dataset, model = opened(recipe_of("masked_tokens", SEES_ALL, tmp_path))
    with pytest.raises(UserError, match=sentence):
        task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": text}])


def test_shares_that_are_more_than_a_whole_are_refused() -> None:
    with pytest.raises(
        SpecError, match=r"random: 0\.3 and replaced 0\.8 are fractions of the targets, but their sum is above 1"
    ):
        recipe_of("masked_tokens(random=0.3)", SEES_ALL)
