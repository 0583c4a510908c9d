"""Tools in chats: prompts as the transformers library renders them, calls read from answers, and required ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError
from tests.serving.conftest import Running, serving
from tests.serving.models import text_run
from tests.serving.test_chat import folder_of
from transformers import PreTrainedTokenizerFast

from qkv.serving.requests.structure import Constraints
from qkv.serving.requests.tools import required_call
from qkv.system.errors import UserError
from qkv.tokenizers.answers.calls import CallForm, ToolCall
from qkv.tokenizers.answers.form import AnswerForm, answer_form, calls_of
from qkv.tokenizers.answers.forms.json_calls import HERMES, LLAMA
from qkv.tokenizers.chat_template import find_template

MARKED_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nSignatures of functions:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nReturn a call as\\n<tool_call>\\n{\\"name\\": <function-name>, " }}
    {{- "\\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not (tools and loop.first))
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
BARE_TEMPLATE = """\
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of arguments}.\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- "<|python_tag|>" + tool_call.name + ".call()" }}
        {%- else %}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
TEMPLATES = {"marked": MARKED_TEMPLATE, "bare": BARE_TEMPLATE}
WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Köln", "Oslo"]}},
}
TIME = {
    "type": "object",
    "properties": {"utc": {"$ref": "#/$defs/City"}},
    "required": ["utc"],
    "additionalProperties": False,
    "$defs": {"City": {"type": "boolean"}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of <b>", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "time", "parameters": TIME, "strict": True}},
]
SCHEMAS = {"weather": WEATHER, "time": TIME}


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "call_7", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [
        {"role": "user", "content": "the weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_7", "content": '{"rain": "a<|im_end|>ä"}'},
        {"role": "user", "content": "and now?"},
    ]


@pytest.mark.parametrize("template", TEMPLATES)
def test_tools_calls_and_their_results_are_rendered_as_by_transformers(tmp_path: Path, template: str) -> None:
    """A special token that is spelt in a result stays text; elsewhere the ids are theirs, too."""
    tokenizer = folder_of(tmp_path, TEMPLATES[template], True)
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        bos_token="<bos>",
        eos_token="<eos>",
        chat_template=TEMPLATES[template],
    )
    found = find_template(tokenizer)
    assert found.reads_tools
    messages = called({"city": "Köln", "days": 2})
    for tools in (TOOLS, None):
        text = theirs.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        assert found.text(messages, tools=tools) == text
        assert tokenizer.decode(found.ids(messages, tools=tools)) == text
        safe: Any = theirs.apply_chat_template(messages[:2], tools=tools, tokenize=False)
        assert (
            found.ids(messages[:2], tools=tools, add_generation_prompt=False)
            == (theirs(safe, add_special_tokens=False)["input_ids"])
        )
    ends: Any = tokenizer.core.token_to_id("<|im_end|>")
    plain = [*messages[:2], {**messages[2], "content": "a"}, messages[3]]
    assert found.ids(messages, tools=TOOLS).count(ends) == found.ids(plain, tools=TOOLS).count(ends)


OTHER_FORMS = (
    "{{ tools }} {% for m in messages %}[TOOL_CALLS]{{ m.tool_calls }}{% endfor %}",
    MARKED_TEMPLATE.replace("""'\\n<tool_call>\\n{"name": "'""", """'\\n<tool_call>\\n<call='"""),
    BARE_TEMPLATE.replace("""'"parameters": '""", """'"input": '"""),
)


def test_the_form_of_calls_is_the_one_in_which_the_template_renders_a_call(tmp_path: Path) -> None:
    def form(text: str) -> CallForm:
        template = find_template(folder_of(tmp_path, text, True))
        return calls_of(template, answer_form(template))

    assert form(MARKED_TEMPLATE) == HERMES
    assert form(BARE_TEMPLATE) == LLAMA
    renamed = BARE_TEMPLATE.replace("Environment: ipython", "").replace("<|python_tag|>", "")
    assert form(renamed) == LLAMA, "the sentences around a call do not matter"
    for other in OTHER_FORMS:
        with pytest.raises(UserError, match="writes tool calls in a form that is not supported"):
            form(other)


def pieces(text: str, rng: random.Random) -> Iterator[str]:
    while text:
        size = rng.randint(1, 6)
        yield text[:size]
        text = text[size:]


ONE = '<tool_call>\n{"name": "time", "arguments": {"utc": true}}\n</tool_call>'
TWO = '<tool_call>{"name": "weather", "arguments": {"city": "Köln </tool", "days": 2}}</tool_call>'


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (HERMES, "a < b <tool> c", "a < b <tool> c", []),
        (HERMES, ONE, "", [("time", {"utc": True})]),
        (
            HERMES,
            f"Let me see. \n{ONE}\n{TWO}\n",
            "Let me see.",
            [("time", {"utc": True}), ("weather", {"city": "Köln </tool", "days": 2})],
        ),
        (HERMES, f"{ONE} so", " so", [("time", {"utc": True})]),
        (HERMES, "<tool_call>{no}</tool_call>!", "<tool_call>{no}</tool_call>!", []),
        (HERMES, '<tool_call>{"name": "other"}</tool_call>', '<tool_call>{"name": "other"}</tool_call>', []),
        (HERMES, '<tool_call>{"name": "time"', '<tool_call>{"name": "time"', []),
        (HERMES, '<tool_call>{"name": "time", "arguments": {}}', "", [("time", {})]),
        (HERMES, " a\n", " a\n", []),
        (LLAMA, '{"name": "time", "parameters": {"utc": false}}', "", [("time", {"utc": False})]),
        (LLAMA, ' {"name": "other"} ', ' {"name": "other"} ', []),
        (LLAMA, 'It is {"name": "time"}', 'It is {"name": "time"}', []),
        (LLAMA, " \n", " \n", []),
    ],
)
def test_calls_are_read_from_pieces_of_any_size(form: Any, text: str, content: str, calls: list[Any]) -> None:
    for seed in range(20):
        reader, found, read = AnswerForm(calls=form).reader(tools=TOOLS), "", list[ToolCall]()
        for piece in pieces(text, random.Random(seed)):
            part = reader.feed(piece)
            found, read = found + part.content, [*read, *part.calls]
        part = reader.flush()
        read += part.calls
        assert found + part.content == content
        assert [(call.name, json.loads(call.arguments)) for call in read] == calls
        assert len({call.id for call in read}) == len(read)


def test_text_outside_of_calls_is_told_at_once() -> None:
    reader = AnswerForm(calls=HERMES).reader(tools=TOOLS)
    assert [reader.feed(piece).content for piece in ("The ", "sky <", "b> ", "<tool", "_x")] == [
        "The",
        " sky",
        " <b>",
        "",
        " <tool_x",
    ]


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a model for each template."""
    runs = {}
    for name, template in TEMPLATES.items():
        folder = tmp_path_factory.mktemp(name)
        runs[name] = text_run(folder, "linear", folder_of(folder, template, True))
    with serving(runs) as running:
        yield running


def asked(server: Running, **options: Any) -> Any:
    messages = called('{"city": "Köln", "days": 2}')
    given = {"model": "marked", "messages": messages, "tools": TOOLS, "max_tokens": 150, **options}
    return server.client().chat.completions.create(**given)


@pytest.mark.parametrize("model", TEMPLATES)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_call_has_the_arguments_of_its_schema(chatting: Running, model: str, choice: Any) -> None:
    names = set[str]()
    for seed in range(4):
        options: dict[str, Any] = {"model": model, "tool_choice": choice, "seed": seed, "temperature": 1.3}
        made = asked(chatting, **options)
        message = made.choices[0].message
        assert (made.choices[0].finish_reason, message.content) == ("tool_calls", None)
        (call,) = message.tool_calls
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        names.add(call.function.name)
        chunks = list(asked(chatting, **options, stream=True))
        deltas = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or []]
        assert [(each.index, each.function.name) for each in deltas] == [(0, call.function.name)]
        assert deltas[0].function.arguments == call.function.arguments
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert names == {"weather"} if choice != "required" else names <= set(SCHEMAS)


def test_a_free_answer_of_a_model_that_calls_nothing_is_text(chatting: Running) -> None:
    for choice in ("auto", "none"):
        made = asked(chatting, tool_choice=choice, seed=1, max_tokens=12, extra_body={"ignore_eos": True})
        assert made.choices[0].finish_reason == "length"
        assert made.choices[0].message.content
        assert made.choices[0].message.tool_calls is None
        chunks = list(asked(chatting, tool_choice=choice, seed=1, max_tokens=12, stream=True))
        assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)
    with_tools, without = (asked(chatting, tool_choice=choice, max_tokens=1).usage for choice in ("auto", "none"))
    assert with_tools.prompt_tokens > without.prompt_tokens, "tools that may not be called are not in the prompt"


def test_arguments_that_cannot_be_compiled_are_refused(chatting: Running) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "objec"}}}
    with pytest.raises(BadRequestError, match=r"the JSON schema cannot be used: .*objec"):
        asked(chatting, tools=[bad], tool_choice="required")
    assert asked(chatting, max_tokens=1).choices


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_function_without_parameters_is_called_with_none(chatting: Running, parameters: Any) -> None:
    function = {"name": "now", **({} if parameters is None else {"parameters": parameters})}
    made = asked(chatting, tools=[{"type": "function", "function": function}], tool_choice="required", temperature=1.3)
    (call,) = made.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("now", {})


def test_references_of_each_schema_are_its_own(chatting: Running) -> None:
    """Both tools name a definition City; each schema is compiled with its own."""
    structure = required_call(TOOLS, HERMES)
    guide = Constraints(chatting.service.models["marked"].tokenizer).of(structure).guide()
    tokenizer = chatting.service.models["marked"].tokenizer
    for text, possible in (
        ('{"name":"time","arguments":{"utc":true}}', True),
        ('{"name":"weather","arguments":{"city":"Oslo","days":3}}', True),
        ('{"name":"time","arguments":{"utc":"Oslo"}}', False),
        ('{"name":"weather","arguments":{"city":true,"days":3}}', False),
    ):
        ids = tokenizer.encode(text)
        assert (guide.possible(ids) == len(ids)) == possible
