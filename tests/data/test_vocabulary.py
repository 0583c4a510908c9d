"""What turns answers into words: kept, read back, told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from qkv.data.vocabulary import LABELS_FILE, TARGET_FILE, Vocabulary
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train


def tokenizer(text: str) -> Tokenizer:
    return train(Recipe.parse({"data": "x"}).data.tokenizer, [text])


SOURCE, TARGET = tokenizer("abc"), tokenizer("xyz")
ALL = {
    "one tokenizer": Vocabulary(SOURCE, SOURCE),
    "labels": Vocabulary(SOURCE, SOURCE, ("good", "schön", "")),
    "two tokenizers": Vocabulary(SOURCE, TARGET),
    "everything": Vocabulary(SOURCE, TARGET, ("a", "b")),
}


@pytest.mark.parametrize("name", ALL)
def test_what_is_saved_is_read_back(name: str, tmp_path: Path) -> None:
    vocabulary = ALL[name]
    vocabulary.save(tmp_path)
    found = Vocabulary.load(tmp_path)
    assert found.labels == vocabulary.labels
    assert found.shared == vocabulary.shared == (TARGET is not vocabulary.target)
    assert found.digest() == vocabulary.digest()
    assert found.tokenizer.encode("cab") == SOURCE.encode("cab")
    assert found.target.encode("zcx") == vocabulary.target.encode("zcx")
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {
        "tokenizer.json",
        *([TARGET_FILE] if not vocabulary.shared else []),
        *([LABELS_FILE] if vocabulary.labels else []),
    }


def test_digests_tell_all_parts_apart() -> None:
    others = [
        Vocabulary(TARGET, TARGET),
        Vocabulary(TARGET, SOURCE),
        Vocabulary(SOURCE, SOURCE, ("schön", "good", "")),
        Vocabulary(SOURCE, SOURCE, ("good", "schön")),
        Vocabulary(SOURCE.with_specials(("cls",)), SOURCE),
    ]
    digests = [vocabulary.digest() for vocabulary in (*ALL.values(), *others)]
    assert len(set(digests)) == len(digests)


def test_labels_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    ALL["labels"].save(tmp_path)
    path = tmp_path / LABELS_FILE
    path.write_text("{")
    with pytest.raises(UserError, match=r"the labels .*labels\.json cannot be read"):
        Vocabulary.load(tmp_path)
    for content in ('{"a": 1}', "[1, 2]"):
        path.write_text(content)
        with pytest.raises(UserError, match=r"labels\.json is not a list of labels"):
            Vocabulary.load(tmp_path)


def test_a_tokenizer_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer"):
        Vocabulary.load(tmp_path)
