"""Reasoning and tool calls: the form is found by rendering, and answers are read from pieces of any size."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.tokenizers.answer_styles import STYLES, TOKENS

from qkv.spec import tokenizers as spec
from qkv.tokenizers.answers.calls import CALLS, CallForm, ToolCall
from qkv.tokenizers.answers.form import AnswerForm, History, answer_form, end_texts
from qkv.tokenizers.answers.reader import AnswerPart, AnswerReader
from qkv.tokenizers.answers.thoughts import THOUGHTS
from qkv.tokenizers.chat_template import ChatTemplate
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "places": {"type": "array", "items": {"type": "number"}},
        "fresh": {"type": "boolean"},
        "more": {"type": "object"},
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
VALUES = {"city": "12 <b> Köln,\n\"x\" ']' </tool", "days": 3, "places": [1.5, -2], "fresh": True, "more": {"a": None}}
PLAIN_TEMPLATE = STYLES["plain"]


def tokenizer_of(*specials: str) -> Tokenizer:
    return train(spec.BPE(vocab_size=270), ["the fox " * 3]).with_specials(("bos", "eos"), specials)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of(*(token for token in TOKENS if "THINK" not in token))


def pieces(text: str, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    while text:
        size = rng.randint(1, 9) if seed else len(text)
        yield text[:size]
        text = text[size:]


def read(reader: AnswerReader, text: str, seed: int) -> AnswerPart:
    part = AnswerPart()
    for piece in pieces(text, seed):
        part += reader.feed(piece)
    return part + reader.flush()


def calls_of(part: AnswerPart) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in part.calls]


@pytest.mark.parametrize("name", [form.name for form in CALLS.all()])
def test_calls_are_read_as_they_are_written(name: str) -> None:
    form = CALLS[name]
    thinking = THOUGHTS["harmony"] if name == "harmony" else None
    wanted = [("weather", VALUES), ("now", {}), ("weather", {"city": "Oslo"})]
    for calls in ([wanted[0]], wanted):
        text = form.write(calls)
        if thinking is not None:  # each call is a message
            text = "<|start|>assistant".join(form.write([call]) for call in calls)
        for seed in range(8):
            reader = AnswerForm(thinking, form).reader(tools=TOOLS)
            part = read(reader, text, seed)
            assert (calls_of(part), part.content.strip(), part.reasoning) == (calls, "", "")
            assert len({call.id for call in part.calls}) == len(calls)
            assert all(len(call.id) == (9 if form.short_ids else 29) for call in part.calls)
        first = read(AnswerForm(thinking, form).reader(tools=TOOLS, most=1), text, 3)
        assert calls_of(first) == calls[:1]


@pytest.mark.parametrize("name", [form.name for form in CALLS.all()])
def test_a_call_of_an_unknown_function_is_content(name: str) -> None:
    form, thinking = CALLS[name], THOUGHTS["harmony"] if name == "harmony" else None
    text = form.write([("other", {"a": 1})])
    for seed in range(4):
        part = read(AnswerForm(thinking, form).reader(tools=TOOLS), text, seed)
        assert not part.calls
        assert part.content == ('{"a": 1}' if thinking else text)


FORMS = {
    "plain": (None, None, History()),
    "qwen3": ("think", "hermes", History("reasoning_content")),
    "deepseek": ("think", "deepseek", History("content", True, None)),
    "mistral": (None, "mistral", History()),
    "magistral": ("magistral", "mistral_args", History("parts")),
    "llama3": (None, "llama", History()),
    "coder": (None, "qwen_coder", History()),
    "glm": ("think", "glm", History("reasoning_content")),
    "harmony": ("harmony", "harmony", History("thinking")),
    "granite": ("granite", "granite", History()),
    "pythonic": (None, "python", History()),
    "gemma": (None, None, History()),
    "gemma4": ("gemma", "gemma", History("content")),
}
ENDS = {"glm": (), "llama3": ("<|eot_id|>",), "pythonic": ("<|eot|>",), "gemma": ("<end_of_turn>",)}
ENDS |= {"gemma4": ("<turn|>",)}
ENDS |= {"harmony": ("<|return|>", "<|call|>"), "granite": ("<|end_of_text|>",)}
ENDS |= dict.fromkeys(("plain", "qwen3", "coder"), ("<|im_end|>",))


@pytest.mark.parametrize("style", STYLES)
def test_the_form_is_found_by_rendering(tokenizer: Tokenizer, style: str) -> None:
    template = ChatTemplate(STYLES[style], tokenizer)
    form = answer_form(template)
    names = [part and part.name for part in (form.thinking, form.calls)]
    assert (*names, form.history) == FORMS[style]
    assert end_texts(template, form) == ENDS.get(style, ("<eos>",))


def test_tags_that_no_form_names_are_those_of_the_rendering(tokenizer: Tokenizer) -> None:
    form = answer_form(ChatTemplate(STYLES["glm"].replace("think>", "mind>"), tokenizer))
    assert form.thinking is not None
    assert (form.thinking.begin, form.thinking.end) == ("<mind>", "</mind>")


def test_tags_that_only_the_vocabulary_has_are_read(tokenizer: Tokenizer) -> None:
    assert answer_form(ChatTemplate(PLAIN_TEMPLATE, tokenizer)).thinking is None
    form = answer_form(ChatTemplate(PLAIN_TEMPLATE, tokenizer_of("<think>", "</think>")))
    assert form.thinking == THOUGHTS["think"]


HARMONY_ANSWER = (
    "<|channel|>analysis<|message|>Two, or\nthree?<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see."
    "<|end|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
)
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("thinking", "prompt", "text", "reasoning", "content", "calls"),
    [
        ("think", "", "<think>\nTwo, or\nthree?\n</think>\n\nIt is <b>.\n", "Two, or\nthree?", "It is <b>.\n", 0),
        ("think", "a<think>\n", "Two </thin> or\n\n</think>\n\nIt is.", "Two </thin> or", "It is.", 0),
        ("think", "a<think>\n\n</think>\n\n", "\nIt is.", "", "It is.", 0),
        ("think", "", "It is <think>no</think>", "", "It is <think>no</think>", 0),
        ("think", "", "<think>\n\n</think>\n\nIt is.", "", "It is.", 0),
        ("think", "<think>", "cut off \n", "cut off", "", 0),
        ("think", "", f"<think>a</think>\n\n{CALL}", "a", "", 1),
        ("think", "", f"<think>a</think>\nb\n{CALL}\n{CALL}\n", "a", "b", 2),
        ("magistral", "", "[THINK]a[b][/THINK]c", "a[b]", "c", 0),
        ("granite", "", "<think>a</think><response>b\n</response>\n", "a", "b\n", 0),
        ("granite", "", "<think>a</think>\n<response>\nb", "a", "b", 0),
        ("command", "", "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", "a", "b", 0),
        ("gemma", "", "<|channel>thought\na\n<channel|>b", "a", "b", 0),
        ("sentences", "", "Here is my thought process: a\n\nHere is my response: b", "a", "b", 0),
        ("harmony", "<|start|>assistant", HARMONY_ANSWER, "Two, or\nthree?", "Let me see.", 1),
        ("harmony", "<|start|>assistant", "<|channel|>final<|message|>It is.", "", "It is.", 0),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>", "It is.", "", "It is.", 0),
        ("harmony", "", "It is.", "", "It is.", 0),
    ],
)
def test_an_answer_is_read_from_pieces_of_any_size(
    thinking: str, prompt: str, text: str, reasoning: str, content: str, calls: int
) -> None:
    form = AnswerForm(THOUGHTS.find(thinking), CALLS["harmony" if thinking == "harmony" else "hermes"])
    for seed in range(20):
        part = read(form.reader(prompt, TOOLS), text, seed)
        assert (part.reasoning, part.content, len(part.calls)) == (reasoning, content, calls)


def test_reasoning_is_told_at_once() -> None:
    reader = AnswerForm(THOUGHTS.find("think")).reader()
    parts = [
        reader.feed(piece) for piece in ("<thi", "nk>\n", "one ", "two", "</", "b> ", "</think>", "\n", "\nyes ", "no")
    ]
    assert [part.reasoning for part in parts] == ["", "", "one", " two", "", "</b>", "", "", "", ""]
    assert [part.content for part in parts][-3:] == ["", "yes ", "no"]


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "now", "arguments": {"a": 1}}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "5"},
]


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("qwen3", "<think>\nhm\n</think>\n\n\n<tool_call>\n"),
        ("deepseek", '<｜tool▁sep｜>now\n```json\n{"a": 1}\n```'),
        ("mistral", '[{"name": "now", "arguments": {"a": 1}, "id": "'),
        ("magistral", '[THINK]hm[/THINK][TOOL_CALLS]now[ARGS]{"a": 1}'),
        ("harmony", "<|channel|>analysis<|message|>hm<|end|>"),
        ("glm", "<think>hm</think>\n\n<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"),
        ("granite", '<|tool_call|>[{"name": "now", "arguments": {"a": 1}}]'),
        ("pythonic", "[now(a=1)]"),
    ],
)
def test_earlier_reasoning_and_calls_are_given_as_the_template_reads_them(
    tokenizer: Tokenizer, style: str, text: str
) -> None:
    template = ChatTemplate(STYLES[style], tokenizer)
    messages = answer_form(template).to_template(MESSAGES)
    assert text in template.text(messages, tools=TOOLS)
    assert MESSAGES[1]["reasoning_content"] == "hm", "the messages themselves stay"


def test_a_new_form_needs_one_entry() -> None:
    """A form outside of the package is found like the others."""

    class Angles(CallForm):
        name, begin, end = "angles", "<<", ">>"

        def read(self, text: str, schemas: Any) -> list[Any]:
            name, _, rest = text.partition(" ")
            return [(name, json.loads(rest))]

        def write(self, calls: Any) -> str:
            return "".join(f"<<{name} {json.dumps(values)}>>" for name, values in calls)

        def demand(self, schemas: Any) -> Any:
            raise NotImplementedError

    source = PLAIN_TEMPLATE.replace(
        "{{ m.content }}",
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ '<<' + c.function.name + ' ' }}"
        "{{ c.function.arguments | tojson }}{{ '>>' }}{% endfor %}{% if tools %}{% endif %}",
    )
    template = ChatTemplate(source, tokenizer_of())
    assert answer_form(template).calls is None
    CALLS["angles"] = Angles()
    try:
        form = answer_form(template)
    finally:
        del CALLS["angles"]
    assert isinstance(form.calls, Angles)
    (call,) = read(form.reader(tools=TOOLS), 'now: <<now {"a": 2}>>', 1).calls
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == ("now", '{"a": 2}')
