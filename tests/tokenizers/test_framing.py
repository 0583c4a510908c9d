"""What stands round a text or two, by template or by the marks that a tokenizer has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Encoding
from tokenizers import Tokenizer as Core
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import BertProcessing, PostProcessor, RobertaProcessing, TemplateProcessing

from qkv.spec.tokenizers import BPE
from qkv.tokenizers.framing import Frame, Mark, framed, shortened
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train


def core(*specials: str, template: PostProcessor | None = None) -> Core:
    found = Core(
        WordPiece({word: i for i, word in enumerate([*specials, "[UNK]", "a", "cat", "the"])}, unk_token="[UNK]")
    )
    found.pre_tokenizer = Whitespace()
    found.add_special_tokens(list(specials))
    if template is not None:
        found.post_processor = template
    return found


def templated(**forms: str) -> TemplateProcessing:
    return TemplateProcessing(**forms, special_tokens=[("<s>", 0), ("</s>", 1)])


def test_the_frame_is_that_of_the_template() -> None:
    made = core("<s>", "</s>", "[CLS]", template=templated(single="<s> <s> $A </s>"))
    tokenizer = Tokenizer(made)
    assert tokenizer.frame == Frame(((Mark(0), Mark(0)), (Mark(1),)))
    assert tokenizer.encode("a cat") == [4, 5]
    assert tokenizer.encode_framed("a cat").ids == made.encode("a cat").ids == [0, 0, 4, 5, 1]


@pytest.mark.parametrize(
    "template",
    [
        BertProcessing(("</s>", 1), ("<s>", 0)),
        RobertaProcessing(("</s>", 1), ("<s>", 0)),
        templated(single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1"),
        templated(single="$A </s> <s>:2", pair="$A </s> $B:1 </s>:1 <s>:2"),
        templated(single="$A </s>", pair="$A </s> $B </s>"),
        templated(single="<s> $A", pair="<s> $A <s>:1 $B:1"),
    ],
    ids=["bert", "roberta", "template", "mark of its own type behind", "behind alone", "before alone"],
)
def test_one_text_and_two_are_framed_as_the_library_does(template: PostProcessor) -> None:
    made = core("<s>", "</s>", template=template)
    tokenizer = Tokenizer(made)

    def like(encoding: Encoding) -> tuple[list[int], list[int]]:
        return encoding.ids, encoding.type_ids

    first, second = tokenizer.encode("a cat a"), tokenizer.encode("the cat")
    one, two = tokenizer.frame.around(first), tokenizer.pair_frame.around(first, second)
    assert (one.ids, one.types) == like(made.encode("a cat a"))
    assert (two.ids, two.types) == like(made.encode("a cat a", "the cat"))
    assert [two.ids[begin : begin + 2] for begin in two.begins] == [first[:2], second]
    assert two.whole == len(two.ids)


@pytest.mark.parametrize(
    ("specials", "one", "two"),
    [
        (("[CLS]", "[SEP]"), ([0, 7, 1], [0, 0, 0]), ([0, 7, 1, 8, 1], [0, 0, 0, 1, 1])),
        (("[CLS]",), ([0, 7], [0, 0]), ([0, 7, 8], [0, 0, 1])),
        (("[PAD]",), ([7], [0]), ([7, 8], [0, 1])),
    ],
    ids=["both", "one", "none"],
)
def test_without_a_template_it_is_the_marks(
    specials: tuple[str, ...], one: tuple[list[int], list[int]], two: tuple[list[int], list[int]]
) -> None:
    tokenizer = Tokenizer(core(*specials))
    assert tokenizer.frame.around([7])[:2] == one
    assert tokenizer.pair_frame.around([7], [8])[:2] == two


def test_a_template_for_one_text_alone_is_that_of_two() -> None:
    made = core("<s>", "</s>", template=templated(single="<s> $A </s>", pair="$A $B"))
    assert Tokenizer(made).pair_frame.around([7], [8])[:2] == ([0, 7, 1, 8, 1], [0, 0, 0, 1, 1])


def test_a_trained_tokenizer_has_the_marks_that_were_added() -> None:
    tokenizer = train(BPE(vocab_size=270), ["a cat sat"])
    assert tokenizer.frame == Frame()
    marked = tokenizer.with_specials(("cls",))
    assert marked.encode_framed("a cat").ids == [marked.special("cls"), *tokenizer.encode("a cat")]


def test_what_is_too_long_is_cut_within_the_frame() -> None:
    frame = Frame(((Mark(7),), (Mark(8), Mark(9, 2))))
    assert framed(frame, [1, 2, 3], 6) == ([7, 1, 2, 3, 8, 9], [0, 0, 0, 0, 0, 2], [1], 6)
    assert framed(frame, [1, 2, 3], 5)[::3] == ([7, 1, 2, 8, 9], 6)
    assert framed(frame, [1, 2, 3], 1)[::3] == ([7, 8, 9], 6)
    assert framed(frame, [])[::3] == ([7, 8, 9], 3)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(2, 40))
def test_two_texts_are_shortened_as_the_library_does(first: int, second: int, room: int) -> None:
    made = core("<s>", "</s>")
    made.enable_truncation(room, strategy="longest_first")
    found = made.encode("a " * first, "cat " * second)
    assert shortened((first, second), room) == (found.sequence_ids.count(0), found.sequence_ids.count(1))


def test_no_room_is_left_for_two_texts() -> None:
    assert shortened((3, 2), 0) == shortened((2, 3), -1) == (0, 0)
    assert shortened((4, 4), 5) == (2, 3)
