"""Text in, text out: stop strings wherever the tokens are cut, streaming, prompts that cannot be read."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.generation.decode.beam import beam_search
from qkv.generation.stop import StopStrings
from qkv.generation.text import best_texts, generate_text, generate_texts, prompt_ids, stream_text
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.spec.tokenizers import BPE, Bytes, Characters, Words
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

TEXT = (
    "the cat sat on the mat.\nthe dog, größer und älter, sat too; 猫は座った。 and the cat left the mat to the dog.\n"
    * 4
)
SCHEMES = {"characters": Characters(), "bytes": Bytes(), "words": Words(vocab_size=300), "bpe": BPE(vocab_size=300)}
DRAWN = Generation(max_new_tokens=120, temperature=1.0, seed=5)


@cache
def system(scheme: str) -> tuple[Transformer, Tokenizer]:
    tokenizer = train(SCHEMES[scheme], [TEXT])
    spec = {
        "width": 16,
        "init_std": 0.4,
        "frontend": {"kind": "text", "vocab_size": tokenizer.vocab_size, "positions": "none"},
    }
    return build(Model.parse({**spec, "blocks": [{"branches": ["gru"]}]}), seed=1).eval(), tokenizer


def first_end(text: str, stop: tuple[str, ...]) -> str:
    """The text up to the stop string that is complete first, found by growing the text a character at a time."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30)),
)
def test_stop_strings_are_found_wherever_the_pieces_are_cut(text: str, stop: list[str], cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(text)]
    finder, got = StopStrings(stop), ""
    for start, end in itertools.pairwise(borders):
        piece = finder.feed(text[start:end])
        got += piece
        assert first_end(text, tuple(stop)).startswith(got), "something was given out that may belong to a stop string"
    assert got + finder.flush() == first_end(text, tuple(stop))
    assert finder.ended == any(s in text for s in stop)


def test_nothing_waits_longer_than_it_must() -> None:
    finder = StopStrings(["END"])
    assert [finder.feed(c) for c in "aE bENxENDy"] == ["a", "", "E ", "b", "", "", "ENx", "", "", "", ""]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pieces_of_a_stream_are_the_text(scheme: str) -> None:
    m, tokenizer = system(scheme)
    pieces = list(stream_text(m, tokenizer, "the cat", DRAWN))
    assert len(pieces) > 40
    assert "".join(pieces) == generate_text(m, tokenizer, "the cat", DRAWN)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_text_is_that_of_all_tokens_decoded_at_once(scheme: str) -> None:
    from qkv.generation.decode.sample import generate

    m, tokenizer = system(scheme)
    ids = tokenizer.encode("the cat")
    whole = tokenizer.decode(ids + generate(m, [ids], DRAWN)[0])
    assert "the cat" + generate_text(m, tokenizer, "the cat", DRAWN) == whole


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_text_ends_before_its_stop_string(scheme: str) -> None:
    m, tokenizer = system(scheme)
    free = generate_text(m, tokenizer, "the", DRAWN)
    stop = free[30:34]
    text = generate_text(m, tokenizer, "the", DRAWN.changed(stop=(stop,)))
    assert text == free[: free.index(stop)]
    assert "".join(stream_text(m, tokenizer, "the", DRAWN.changed(stop=(stop, "never there")))) == text


def test_a_stop_string_of_the_prompt_does_not_end_the_text() -> None:
    m, tokenizer = system("characters")
    free = generate_text(m, tokenizer, "the cat", DRAWN)
    assert "the cat" not in free
    assert generate_text(m, tokenizer, "the cat", DRAWN.changed(stop=("the cat",))) == free


@pytest.mark.parametrize("scheme", SCHEMES)
def test_texts_of_a_batch_are_those_of_one_by_one_though_they_end_at_different_times(scheme: str) -> None:
    m, tokenizer = system(scheme)
    prompts = ["the", "cat sat on the mat", "", "dog"]
    generation = DRAWN.changed(stop=("a", "o"))
    alone = [generate_text(m, tokenizer, p, generation.changed(seed=5 + row)) for row, p in enumerate(prompts)]
    assert generate_texts(m, tokenizer, prompts, generation) == alone
    assert len({len(text) for text in alone}) > 1


def test_no_forward_pass_after_the_last_row_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    m, tokenizer = system("characters")
    free = generate_text(m, tokenizer, "the", DRAWN)
    reads, calls = m._read, []
    monkeypatch.setattr(m, "_read", lambda *a: calls.append(1) or reads(*a))
    text = generate_text(m, tokenizer, "the", DRAWN.changed(stop=(free[20],)))
    assert len(calls) == len(text) + 1


def test_an_empty_prompt_begins_after_a_line_break() -> None:
    m, tokenizer = system("characters")
    assert generate_text(m, tokenizer, "", DRAWN) == generate_text(m, tokenizer, "\n", DRAWN)
    with pytest.raises(UserError, match="the prompt is empty, and the tokenizer has no line break"):
        prompt_ids(train(Characters(), ["no line break"]), "")


def test_unknown_characters_are_named() -> None:
    m, tokenizer = system("characters")
    with pytest.raises(UserError, match="the prompt has 'X', 'Ω', which is not in the tokenizer's vocabulary"):
        generate_text(m, tokenizer, "the XΩX cat", DRAWN)
    with pytest.raises(UserError, match="and 3 more"):
        prompt_ids(tokenizer, "ABCDEFGH")
    assert generate_text(*system("bytes"), "Ω", DRAWN.changed(max_new_tokens=0)) == ""


def test_a_stream_checks_its_input_before_the_first_piece() -> None:
    with pytest.raises(UserError, match="not in the tokenizer's vocabulary"):
        next(stream_text(*system("characters"), "Ω", DRAWN))


BEAMS = Generation(max_new_tokens=14, num_beams=4)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_beams_from_text_are_those_of_tokens_decoded(scheme: str) -> None:
    m, tokenizer = system(scheme)
    prompts = ["the cat", "dog"]
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    found = best_texts(m, tokenizer, prompts, BEAMS.changed(num_return=3))
    for prompt, row, got, wanted in zip(
        prompts, ids, found, beam_search(m, ids, BEAMS.changed(num_return=3)), strict=True
    ):
        assert [prompt + best.text for best in got] == [tokenizer.decode(row + h.tokens) for h in wanted]
        assert [(b.score, b.log_probability) for b in got] == [(h.score, h.log_probability) for h in wanted]
    assert generate_texts(m, tokenizer, prompts, BEAMS) == [row[0].text for row in found]
    assert list(stream_text(m, tokenizer, "dog", BEAMS)) == [generate_text(m, tokenizer, "dog", BEAMS)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_stop_string_ends_hypotheses(scheme: str) -> None:
    """Every text is cut at its first stop string, with no token after it; a text without one is of full length."""
    m, tokenizer = system(scheme)
    prompt = "the cat, the dog"
    free = "".join(best.text[2:] for best in best_texts(m, tokenizer, [prompt], BEAMS.changed(num_return=4))[0])
    # Half a character is U+FFFD in a text that ends there, and waits for its rest in one that goes on.
    stop = next(c for c in free if c != "\ufffd")
    generation = BEAMS.changed(stop=(stop, "never"), num_return=4, early_stopping=True, length_penalty=0.0)
    ids = tokenizer.encode(prompt)

    def ends(_: int, tokens: list[int]) -> bool:
        return stop in tokenizer.decode(ids + tokens)[len(prompt) :]

    wanted = beam_search(m, [ids], generation.changed(stop=()), ends=ends)[0]
    texts = [tokenizer.decode(ids + h.tokens)[len(prompt) :] for h in wanted]
    assert [best.text for best in best_texts(m, tokenizer, [prompt], generation)[0]] == [
        text.partition(stop)[0] for text in texts
    ]
    assert any(stop in text for text in texts)
    assert all(stop in text or len(h.tokens) == 14 for text, h in zip(texts, wanted, strict=True))


def test_an_end_token_is_not_part_of_the_text() -> None:
    m, tokenizer = system("characters")
    end = tokenizer.encode(best_texts(m, tokenizer, ["the"], BEAMS)[0][0].text)[4]
    found = best_texts(m, tokenizer, ["the"], BEAMS.changed(num_return=4, length_penalty=0.0), end_id=end)[0]
    assert any(len(best.text) < 14 for best in found)
    assert not any(tokenizer.decode([end]) in best.text for best in found)


def test_one_text_is_asked_for_where_one_is_given() -> None:
    with pytest.raises(UserError, match="num_return is 2, but this function returns one text per prompt"):
        generate_text(*system("bytes"), "the", BEAMS.changed(num_return=2))
