"""What stands round a text, by template or by the marks that a tokenizer has."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Core
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import BertProcessing, TemplateProcessing

from qkv.spec.tokenizers import BPE
from qkv.tokenizers.framing import Frame, framed
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train


def core(*specials: str) -> Core:
    found = Core(WordPiece({word: i for i, word in enumerate([*specials, "[UNK]", "a", "cat"])}, unk_token="[UNK]"))
    found.pre_tokenizer = Whitespace()
    found.add_special_tokens(list(specials))
    return found


def test_the_frame_is_that_of_the_template() -> None:
    made = core("<s>", "</s>", "[CLS]")
    made.post_processor = TemplateProcessing(single="<s> <s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer = Tokenizer(made)
    assert tokenizer.frame == Frame((0, 0), (1,))
    assert tokenizer.encode("a cat") == [4, 5]
    assert tokenizer.encode_framed("a cat").ids == made.encode("a cat").ids == [0, 0, 4, 5, 1]


def test_a_processor_of_its_own_kind() -> None:
    made = core("[CLS]", "[SEP]")
    made.post_processor = BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    assert Tokenizer(made).frame == Frame((0,), (1,))


@pytest.mark.parametrize(
    ("specials", "frame"),
    [(("[CLS]", "[SEP]"), Frame((0,), (1,))), (("[CLS]",), Frame((0,))), (("[PAD]",), Frame())],
    ids=["both", "one", "none"],
)
def test_without_a_template_it_is_the_marks(specials: tuple[str, ...], frame: Frame) -> None:
    assert Tokenizer(core(*specials)).frame == frame


def test_a_trained_tokenizer_has_the_marks_that_were_added() -> None:
    tokenizer = train(BPE(vocab_size=270), ["a cat sat"])
    assert tokenizer.frame == Frame()
    marked = tokenizer.with_specials(("cls",))
    assert marked.encode_framed("a cat").ids == [marked.special("cls"), *tokenizer.encode("a cat")]


def test_what_is_too_long_is_cut_within_the_frame() -> None:
    frame = Frame((7,), (8, 9))
    assert framed(frame, [1, 2, 3], 6) == ([7, 1, 2, 3, 8, 9], 6)
    assert framed(frame, [1, 2, 3], 5) == ([7, 1, 2, 8, 9], 6)
    assert framed(frame, [1, 2, 3], 1) == ([7, 8, 9], 6)
    assert framed(frame, []) == ([7, 8, 9], 3)
