"""Tokenizers of tables are trained once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qkv.data.corpora import trained as module
from qkv.data.corpora.trained import trained_on
from qkv.spec import tokenizers as schemes
from qkv.tokenizers.train import train

TEXTS = ["the cat sat", "on the mat", "\ud800 alone"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A cache of its own, and how often a tokenizer was trained."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    times: list[int] = []

    def counted(*args: Any) -> Any:
        times.append(1)
        return train(*args)

    monkeypatch.setattr(module, "train", counted)
    return times


def test_the_second_time_nothing_is_trained(own_cache: list[int]) -> None:
    first, again = (trained_on(schemes.Words(vocab_size=20), TEXTS[:2]) for _ in range(2))
    assert own_cache == [1]
    assert (
        first.encode("the mat sat")
        == again.encode("the mat sat")
        == train(schemes.Words(vocab_size=20), TEXTS[:2]).encode("the mat sat")
    )


@pytest.mark.parametrize(
    ("scheme", "texts"),
    [
        (schemes.Words(vocab_size=21), TEXTS),
        (schemes.WordList(vocab_size=20), TEXTS),
        (schemes.Words(vocab_size=20), TEXTS[::-1]),
        (schemes.Words(vocab_size=20), ["the cat saton", "the mat", TEXTS[2]]),
    ],
    ids=["size", "kind", "order", "border"],
)
def test_whatever_decides_it_trains_another(own_cache: list[int], scheme: schemes.Tokenizer, texts: list[str]) -> None:
    trained_on(schemes.Words(vocab_size=20), TEXTS)
    trained_on(scheme, texts)
    assert own_cache == [1, 1]


def test_a_damaged_one_is_trained_anew(own_cache: list[int], tmp_path: Path) -> None:
    wanted = trained_on(schemes.Words(vocab_size=20), TEXTS).encode("the cat")
    (file,) = tmp_path.rglob("tokenizer.json")
    file.write_text(file.read_text()[:50])
    assert trained_on(schemes.Words(vocab_size=20), TEXTS).encode("the cat") == wanted
    assert own_cache == [1, 1]


def test_one_that_needs_no_text_is_not_kept(own_cache: list[int], tmp_path: Path) -> None:
    assert trained_on(schemes.Bytes(), TEXTS).encode("a") == [97]
    assert not list(tmp_path.rglob("tokenizer.json"))
