"""What a model learns of a conversation, by its chat template: ids and targets."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tokenizers.chat_styles import CALLS, STYLES, TOOLS, TURNS, Style
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from qkv.system.errors import UserError
from qkv.tokenizers.chat_targets import EncodedChat, encode_chat, end_of_answer, find_answer, pieces
from qkv.tokenizers.chat_template import ChatTemplate
from qkv.tokenizers.tokenizer import Tokenizer

_TEXTS = ["one ONE two TWO three THREE Be kind. It is 3. Bye.\n\nassistant\n user system <think>\n\n</think>\n" * 3]
_CALLING = [name for name, style in STYLES.items() if style.calls]


@cache
def core_of(name: str) -> tokenizers.Tokenizer:
    """Byte-level BPE with the special tokens of a style."""
    style = STYLES[name]
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        _TEXTS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    )
    core.add_special_tokens([each for each in dict.fromkeys((*style.tokens, style.bos, style.eos)) if each])
    return core


def template_of(name: str, marks: bool = False, text: str | None = None, **roles: str) -> ChatTemplate:
    style, core = STYLES[name], tokenizers.Tokenizer.from_str(core_of(name).to_str())
    found = {role: each for role, each in (("bos", style.bos), ("eos", style.eos)) if each} | roles
    text = style.text(marks) if text is None else text
    return ChatTemplate(text, Tokenizer(core, found, text))


def reference(name: str, marks: bool = False) -> Any:
    """The same tokenizer and template in the transformers library; its tokenizer adds a start of its own."""
    import transformers

    style, core = STYLES[name], tokenizers.Tokenizer.from_str(core_of(name).to_str())
    if style.bos:
        special = [(style.bos, core.token_to_id(style.bos))]
        core.post_processor = processors.TemplateProcessing(single=f"{style.bos} $A", special_tokens=special)
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=core, bos_token=style.bos, eos_token=style.eos)
    found.chat_template = style.text(marks)
    return found


def coloured(template: ChatTemplate, text: EncodedChat) -> str:
    """Text of ids, with targets in brackets."""
    parts = ((wanted, template._tokenizer.decode(text.ids[begin:end])) for wanted, begin, end in pieces(text))
    return "".join(f"⟦{part}⟧" if wanted else part for wanted, part in parts)


def _cases(style: Style) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]:
    return [(style.chat(), None), *([(CALLS, TOOLS)] if style.calls else [])]


@pytest.mark.parametrize("name", STYLES)
def test_renderings_and_ids_equal_those_of_the_transformers_library(name: str) -> None:
    template, library = template_of(name), reference(name)
    for chat, tools in _cases(STYLES[name]):
        for stop in range(1, len(chat) + 1):
            asks = chat[stop - 1]["role"] in ("user", "tool")
            variables = {"tools": tools, "add_generation_prompt": asks}
            wanted = library.apply_chat_template(chat[:stop], tokenize=False, **variables)
            assert template.text(chat[:stop], **variables) == wanted
            ids = library.apply_chat_template(chat[:stop], tokenize=True, return_dict=True, **variables)
            assert template.ids(chat[:stop], **variables) == ids["input_ids"]


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("name", STYLES)
def test_targets_of_three_turns_are_the_answers_with_their_ends(name: str, marks: bool) -> None:
    style, template = STYLES[name], template_of(name, marks)
    texts = encode_chat(template, style.chat())
    assert [coloured(template, each) for each in texts] == style.turns
    assert sum(each.ends for each in texts) == sum(each.answers for each in texts) == 3


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("name", _CALLING)
def test_calls_and_reasoning_are_learned_in_the_form_that_the_model_sees(name: str, marks: bool) -> None:
    template = template_of(name, marks)
    texts = encode_chat(template, CALLS, tools=TOOLS)
    assert [coloured(template, each) for each in texts] == STYLES[name].calls


@pytest.mark.parametrize("name", [name for name, style in STYLES.items() if len(style.turns) == 1])
def test_generation_marks_give_the_mask_of_the_transformers_library(name: str) -> None:
    """The library's mask holds what the block holds: also white space behind the end, which is no target here."""
    template = template_of(name, marks=True)
    (text,) = encode_chat(template, STYLES[name].chat())
    found = reference(name, marks=True).apply_chat_template(
        STYLES[name].chat(), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    assert list(text.ids) == found["input_ids"][: len(text.ids)]
    mask, decode = found["assistant_masks"][: len(text.ids)], template._tokenizer.decode
    assert sum(mask) > 3
    for index, wanted, ours in zip(text.ids, mask, text.targets, strict=True):
        assert wanted == ours or (wanted and not decode([index]).strip())


def test_item_1_a_template_without_generation_marks_has_targets_and_a_run_on_nothing_is_refused() -> None:
    assert all(sum(text.targets) for name in STYLES for text in encode_chat(template_of(name), STYLES[name].chat()))
    silent = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(UserError, match="does not write the answer"):
        encode_chat(template_of("chatml", text=silent), TURNS)


def test_item_2_an_end_token_that_also_pads_is_a_target() -> None:
    template = template_of("zephyr", pad="</s>")
    (text,) = encode_chat(template, TURNS)
    end = template._tokenizer.special("pad")
    assert end == template._tokenizer.special("eos")
    ends = [text.targets[i] for i, index in enumerate(text.ids) if index == end]
    assert ends == [False, False, True, False, True, False, True]  # system, then questions and answers


def test_item_4_an_answer_that_would_merge_with_its_prompt_is_tokenized_on_its_own() -> None:
    core = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "</s>": 3}, [("a", "b")]))
    core.add_special_tokens(["</s>"])
    text = "{% for m in messages %}{{ m.content }}{% if m.role != 'user' %}{{ eos_token }}{% endif %}{% endfor %}"
    template = ChatTemplate(text, Tokenizer(core, {"eos": "</s>"}))
    question, reply = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    assert template.ids([question, reply], add_generation_prompt=False) == [2, 3]
    assert encode_chat(template, [question, reply])[0].ids == (0, 1, 3) == (*template.ids([question]), 1, 3)


@pytest.mark.parametrize("name", [name for name, style in STYLES.items() if style.bos])
def test_item_5_there_is_one_start_of_text(name: str) -> None:
    library = reference(name)
    assert library("one")["input_ids"][0] == library.bos_token_id  # which another text would have twice
    template = template_of(name)
    written = sum(each.count(STYLES[name].bos or "") for each in STYLES[name].turns)
    texts = encode_chat(template, STYLES[name].chat())
    assert sum(each.ids.count(library.bos_token_id) for each in texts) == written


def test_item_6_the_first_of_several_ends_is_learned_and_that_of_a_call_is_its_own() -> None:
    template = template_of("phi-3")
    eos, end = map(template._tokenizer.core.get_vocab().__getitem__, ("<eos>", "<|end|>"))
    for end_ids in ([], [end], [eos, end], [eos]):
        assert end_of_answer(template, end_ids) == end
    call = find_answer(template_of("llama-3"), CALLS[:1], CALLS[1:2])
    assert call.ids[-1] == core_of("llama-3").token_to_id("<|eom_id|>") != end_of_answer(template_of("llama-3"))


def test_item_6_an_end_token_that_is_not_special_ends_an_answer() -> None:
    core = tokenizers.Tokenizer.from_str(core_of("alpaca").to_str())
    core.add_tokens(["<|im_end|>"])
    template = ChatTemplate(STYLES["chatml"].text(), Tokenizer(core, {"eos": "<eos>"}))
    end = core.token_to_id("<|im_end|>")
    assert end is not None
    (text,) = encode_chat(template, TURNS, end_ids=[end])
    assert coloured(template, text) == STYLES["chatml"].turns[0]


def test_item_7_reasoning_that_is_dropped_later_is_learned_where_the_model_writes_it() -> None:
    template = template_of("qwen-3")
    first, last = encode_chat(template, CALLS, tools=TOOLS)
    for place, text in ((1, first), (3, first), (5, last)):
        ids = template.ids(CALLS[:place], tools=TOOLS)
        assert list(text.ids[: len(ids)]) == ids
    assert "add" in coloured(template, first).partition("⟦")[2]
    assert "done" not in coloured(template, last)
    switched = encode_chat(template, TURNS, "last", enable_thinking=False)
    assert coloured(template, switched[0]).endswith("assistant\n<think>\n\n</think>\n\n⟦THREE<|im_end|>⟧")


def test_the_last_answer_or_every_token_is_learned_on_request() -> None:
    template = template_of("chatml")
    (last,) = encode_chat(template, TURNS, "last")
    (every,) = encode_chat(template, TURNS, "everything")
    (answers,) = encode_chat(template, TURNS)
    assert coloured(template, last) == _wanted_last()
    assert every.ids == last.ids == answers.ids
    assert every.targets == (False, *[True] * (len(every.ids) - 1))
    assert (last.answers, answers.answers, every.answers) == (1, 3, 3)
    with pytest.raises(UserError, match="learn: 'lst' is unknown"):
        encode_chat(template, TURNS, "lst")  # pyright: ignore[reportArgumentType]


def _wanted_last() -> str:
    before, behind = STYLES["chatml"].turns[0].rsplit("⟦", 1)
    return before.replace("⟦", "").replace("⟧", "") + "⟦" + behind


def test_an_answer_of_weight_0_is_context() -> None:
    template = template_of("chatml")
    chat: list[dict[str, Any]] = [dict(each) for each in TURNS]
    chat[2]["weight"], chat[4]["weight"] = 0, 1
    chat[6]["weight"] = None
    (text,) = encode_chat(template, chat)
    assert coloured(template, text) == STYLES["chatml"].turns[0].replace("⟦ONE<|im_end|>⟧", "ONE<|im_end|>")
    assert text.answers == 2
    for each in chat:
        each["weight"] = 0
    assert encode_chat(template, chat) == encode_chat(template, TURNS[:2]) == []


def test_answers_that_follow_each_other_are_learned_each() -> None:
    template = template_of("chatml")
    (text,) = encode_chat(template, [*TURNS[:3], {"role": "assistant", "content": "More"}])
    wanted = "⟦ONE<|im_end|>⟧\n<|im_start|>assistant\n⟦More<|im_end|>⟧"
    assert coloured(template, text).endswith(wanted)


def test_a_prompt_that_contradicts_the_answer_is_refused() -> None:
    text = (
        STYLES["chatml"].text().replace("{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\n<think>' }}")
    )
    with pytest.raises(UserError, match=r"another form than it asks for: its prompt ends in '<think>'"):
        encode_chat(template_of("chatml", text=text), TURNS)


def test_the_refusal_of_a_file_that_is_no_template_is_short() -> None:
    text = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        + "x = 1\n" * 200
        + "{% if add_generation_prompt %}?{% endif %}"
    )
    core = tokenizers.Tokenizer(models.BPE({chr(i): i for i in range(128)}, []))
    with pytest.raises(UserError, match="in another form than it asks for") as refusal:
        encode_chat(ChatTemplate(text, Tokenizer(core)), TURNS)
    assert len(str(refusal.value)) < 300


def test_a_tokenizer_without_an_end_token_is_refused_where_the_template_writes_none() -> None:
    core = tokenizers.Tokenizer(models.BPE({chr(i): i for i in range(128)}, []))
    template = ChatTemplate(STYLES["alpaca"].text(), Tokenizer(core))
    with pytest.raises(UserError, match=r"writes no end token after an answer, .* never learn to end"):
        encode_chat(template, TURNS)
    words = ChatTemplate("{% for m in messages %}{{ m.content }}<end>\n{% endfor %}", Tokenizer(core))
    with pytest.raises(UserError, match="writes '<end>', which is no special token of the model, after an answer"):
        encode_chat(words, TURNS)


_CONTENT = st.lists(st.sampled_from(["one", " two", "\n", "<|im_end|>", "</s>", "<eos>", "é", "⟧", "<"]), max_size=5)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["chatml", "llama-3", "qwen-3", "zephyr", "harmony", "deepseek", "alpaca", "command-r"]),
    system=st.none() | _CONTENT,
    turns=st.lists(st.tuples(_CONTENT, _CONTENT), min_size=1, max_size=4),
    marks=st.booleans(),
)
def test_the_ids_before_each_answer_are_those_of_its_prompt(
    name: str, system: list[str] | None, turns: list[tuple[list[str], list[str]]], marks: bool
) -> None:
    template = template_of(name, marks)
    chat = [] if system is None else [{"role": "system", "content": "".join(system)}]
    for question, reply in turns:
        chat += [{"role": "user", "content": "".join(question)}, {"role": "assistant", "content": "".join(reply) + "x"}]
    texts = encode_chat(template, chat)
    begins = [template.ids(chat[:i]) for i, each in enumerate(chat) if each["role"] == "assistant"]
    assert sum(each.answers for each in texts) == len(begins)
    starts = {(each.ids[:begin], begin) for each in texts for wanted, begin, _ in pieces(each) if wanted}
    assert starts >= {(tuple(ids), len(ids)) for ids in begins}
    assert all(each.targets[-1] and not each.targets[0] for each in texts)


def test_a_template_that_leaves_out_tool_calls_is_refused() -> None:
    """Else the answer would be its end alone, and the model would learn to say nothing."""
    template = template_of("chatml")
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    messages = [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    with pytest.raises(UserError, match="calls the tool 'weather', but the chat template does not write tool calls"):
        encode_chat(template, messages, tools=TOOLS)
