"""Chat templates in the styles of published families, in own words, with what a model learns of two conversations.

« and » stand around what the model generates: nothing, or the marks of a generation block. In the oracles, written by
hand, ⟦ and ⟧ stand around the targets of a training text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "ONE"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "TWO"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "THREE"},
]
"""Conversation of three turns."""
CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "1+2?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "add",
        "tool_calls": [{"type": "function", "id": "abcdefghi", "function": {"name": "add", "arguments": {"a": 1}}}],
    },
    {"role": "tool", "content": "3", "name": "add", "tool_call_id": "abcdefghi"},
    {"role": "assistant", "content": "It is 3.", "reasoning_content": "done"},
    {"role": "user", "content": "ok"},
    {"role": "assistant", "content": "Bye."},
]
"""Conversation with a call, its result and reasoning."""
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


class Style(NamedTuple):
    """Template of a style, its special tokens, and the training texts of both conversations.

    ``system``: whether the template takes a message of the system; ``bos``, ``eos``: roles of tokens.
    """

    template: str
    tokens: tuple[str, ...]
    turns: list[str]
    calls: list[str] = []
    system: bool = True
    bos: str | None = None
    eos: str | None = "<eos>"

    def text(self, marks: bool = False) -> str:
        """Text of the template, with or without generation blocks."""
        block = ("{% generation %}", "{% endgeneration %}") if marks else ("", "")
        return self.template.replace("«", block[0]).replace("»", block[1])

    def chat(self) -> list[dict[str, Any]]:
        """The conversation of three turns, as far as the template takes it."""
        return TURNS if self.system else TURNS[1:]


def _of_turns(opening: str, closing: str, name: str = "m.role", content: str = "m.content") -> str:
    """Template whose turns all have one form; ``opening`` contains ROLE."""
    head = opening.replace("ROLE", "' + " + name + " + '")
    asked = opening.replace("ROLE", "model" if "model" in name else "assistant")
    return (
        f"{{% for m in messages %}}{{{{ '{head}' }}}}{{% if m.role == 'assistant' %}}"
        f"«{{{{ {content} + '{closing}' }}}}»"
        f"{{% else %}}{{{{ {content} + '{closing}' }}}}{{% endif %}}{{{{ '\\n' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ '{asked}' }}}}{{% endif %}}"
    )


_IM = ("<|im_start|>", "<|im_end|>")
_CHATML = _of_turns("<|im_start|>ROLE\\n", "<|im_end|>")
_CHATML_TURNS = (
    "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n⟦ONE<|im_end|>⟧\n"
    "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n⟦TWO<|im_end|>⟧\n"
    "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n⟦THREE<|im_end|>⟧"
)
_HERMES = (
    "{% for c in m.tool_calls or [] %}{{ '\\n<tool_call>\\n' + ({'name': c.function.name, "
    "'arguments': c.function.arguments} | tojson) + '\\n</tool_call>' }}{% endfor %}"
)
_CALL = '\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
_TOOL_TEXT = '{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}'

STYLES = {
    "chatml": Style(_CHATML, _IM, [_CHATML_TURNS]),
    "chatml-with-default-system": Style(
        "{% if not messages or messages[0].role != 'system' %}"
        "{{ '<|im_start|>system\\nHelp.<|im_end|>\\n' }}{% endif %}" + _CHATML,
        _IM,
        [_CHATML_TURNS.replace("Be kind.", "Help.")],
        system=False,
    ),
    "llama-2": Style(
        "{% if messages[0].role == 'system' %}"
        "{% set first = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set first, rest = '', messages %}{% endif %}"
        "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
        "{% endif %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + (first if loop.first else '') + m.content }}"
        "{{ ' [/INST]' }}{% else %}«{{ ' ' + m.content + ' ' + eos_token }}»{% endif %}{% endfor %}",
        ("<s>", "</s>"),
        [
            "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\none [/INST]⟦ ONE </s>⟧<s>[INST] two [/INST]⟦ TWO </s>⟧"
            "<s>[INST] three [/INST]⟦ THREE </s>⟧"
        ],
        bos="<s>",
        eos="</s>",
    ),
    "llama-3": Style(
        "{% for m in messages %}{{ (bos_token if loop.first else '') + '<|start_header_id|>' + m.role }}"
        "{{ '<|end_header_id|>\\n\\n' }}{% if m.role == 'assistant' %}«{% if m.tool_calls %}"
        "{% set c = m.tool_calls[0].function %}{{ {'name': c.name, 'parameters': c.arguments} | tojson }}"
        "{{ '<|eom_id|>' }}{% else %}{{ m.content | trim }}{{ '<|eot_id|>' }}{% endif %}»{% else %}"
        "{{ (m.content | trim) + '<|eot_id|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
        [
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\none<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n⟦ONE<|eot_id|>⟧"
            "<|start_header_id|>user<|end_header_id|>\n\ntwo<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n⟦TWO<|eot_id|>⟧"
            "<|start_header_id|>user<|end_header_id|>\n\nthree<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n⟦THREE<|eot_id|>⟧"
        ],
        [
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n1+2?<|eot_id|>"
            '<|start_header_id|>assistant<|end_header_id|>\n\n⟦{"name": "add", "parameters": {"a": 1}}<|eom_id|>⟧'
            "<|start_header_id|>tool<|end_header_id|>\n\n3<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n⟦It is 3.<|eot_id|>⟧"
            "<|start_header_id|>user<|end_header_id|>\n\nok<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n⟦Bye.<|eot_id|>⟧"
        ],
        bos="<|begin_of_text|>",
    ),
    "mistral-1": Style(
        "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('user and assistant take turns') }}{% endif %}{% if m.role == 'user' %}"
        "{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}«{{ ' ' + m.content + eos_token }}»{% endif %}{% endfor %}",
        ("<s>", "</s>"),
        ["<s>[INST] one [/INST]⟦ ONE</s>⟧[INST] two [/INST]⟦ TWO</s>⟧[INST] three [/INST]⟦ THREE</s>⟧"],
        system=False,
        bos="<s>",
        eos="</s>",
    ),
    "mistral-3": Style(
        "{{ bos_token }}{% set asked = messages | selectattr('role', 'equalto', 'user') | list | length %}"
        "{% set ns = namespace(seen=0) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.seen = ns.seen + 1 %}"
        "{% if tools and ns.seen == asked %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}"
        "{% endif %}{{ '[INST] ' + m.content + '[/INST]' }}{% elif m.role == 'tool' %}"
        "{{ '[TOOL_RESULTS] ' + m.content + '[/TOOL_RESULTS]' }}{% elif m.tool_calls %}«{{ '[TOOL_CALLS] [' }}"
        "{% for c in m.tool_calls %}"
        "{{ {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson }}"
        "{% endfor %}{{ ']' + eos_token }}»{% else %}«{{ ' ' + m.content + eos_token }}»{% endif %}{% endfor %}",
        (
            *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        ["<s>[INST] one[/INST]⟦ ONE</s>⟧[INST] two[/INST]⟦ TWO</s>⟧[INST] three[/INST]⟦ THREE</s>⟧"],
        [  # the tools move to the last question
            f"<s>[AVAILABLE_TOOLS][{_TOOL_TEXT}][/AVAILABLE_TOOLS][INST] 1+2?[/INST]"
            '⟦[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]</s>⟧'
            "[TOOL_RESULTS] 3[/TOOL_RESULTS]⟦ It is 3.</s>⟧",
            '<s>[INST] 1+2?[/INST][TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]</s>'
            f"[TOOL_RESULTS] 3[/TOOL_RESULTS] It is 3.</s>[AVAILABLE_TOOLS][{_TOOL_TEXT}][/AVAILABLE_TOOLS]"
            "[INST] ok[/INST]⟦ Bye.</s>⟧",
        ],
        system=False,
        bos="<s>",
        eos="</s>",
    ),
    "gemma": Style(
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + _of_turns(
            "<start_of_turn>ROLE\\n",
            "<end_of_turn>",
            "('model' if m.role == 'assistant' else m.role)",
            "(m.content | trim)",
        ),
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        [
            "<bos><start_of_turn>user\none<end_of_turn>\n<start_of_turn>model\n⟦ONE<end_of_turn>⟧\n"
            "<start_of_turn>user\ntwo<end_of_turn>\n<start_of_turn>model\n⟦TWO<end_of_turn>⟧\n"
            "<start_of_turn>user\nthree<end_of_turn>\n<start_of_turn>model\n⟦THREE<end_of_turn>⟧"
        ],
        system=False,
        bos="<bos>",
    ),
    "phi-3": Style(  # the end of the text, after the last answer, is no answer's end
        "{% for m in messages %}{{ '<|' + m.role + '|>\\n' }}{% if m.role == 'assistant' %}"
        "«{{ m.content + '<|end|>' }}»"
        "{{ '\\n' }}{% else %}{{ m.content + '<|end|>\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        [
            "<|system|>\nBe kind.<|end|>\n<|user|>\none<|end|>\n<|assistant|>\n⟦ONE<|end|>⟧\n"
            "<|user|>\ntwo<|end|>\n<|assistant|>\n⟦TWO<|end|>⟧\n<|user|>\nthree<|end|>\n<|assistant|>\n⟦THREE<|end|>⟧"
        ],
    ),
    "zephyr": Style(
        "{% for m in messages %}{{ '<|' + m.role + '|>\\n' }}{% if m.role == 'assistant' %}"
        "«{{ m.content + eos_token }}»"
        "{{ '\\n' }}{% else %}{{ m.content + eos_token + '\\n' }}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}",
        ("</s>",),
        [
            "<|system|>\nBe kind.</s>\n<|user|>\none</s>\n<|assistant|>\n⟦ONE</s>⟧\n"
            "<|user|>\ntwo</s>\n<|assistant|>\n⟦TWO</s>⟧\n<|user|>\nthree</s>\n<|assistant|>\n⟦THREE</s>⟧"
        ],
        eos="</s>",
    ),
    "vicuna": Style(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content + ' ' }}"
        "{% elif m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}{% else %}{{ 'ASSISTANT:' }}"
        "«{{ ' ' + m.content + eos_token }}»{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
        ("<s>", "</s>"),
        ["<s>Be kind. USER: one ASSISTANT:⟦ ONE</s>⟧USER: two ASSISTANT:⟦ TWO</s>⟧USER: three ASSISTANT:⟦ THREE</s>⟧"],
        bos="<s>",
        eos="</s>",
    ),
    "qwen-2.5": Style(
        "{% if tools %}{{ '<|im_start|>system\\n<tools>' + (tools | tojson) + '</tools><|im_end|>\\n' }}{% endif %}"
        "{% for m in messages %}{% if m.role == 'tool' %}"
        "{{ '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}"
        "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}«{{ m.content }}"
        + _HERMES
        + "{{ '<|im_end|>\\n' }}»{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        _IM,
        [_CHATML_TURNS],
        [
            f"<|im_start|>system\n<tools>[{_TOOL_TEXT}]</tools><|im_end|>\n<|im_start|>user\n1+2?<|im_end|>\n"
            f"<|im_start|>assistant\n⟦{_CALL}<|im_end|>⟧\n"
            "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n⟦It is 3.<|im_end|>⟧\n<|im_start|>user\nok<|im_end|>\n"
            "<|im_start|>assistant\n⟦Bye.<|im_end|>⟧"
        ],
    ),
    "qwen-3": Style(
        "{% set roles = messages | map(attribute='role') | list %}{% for m in messages %}{% if m.role == 'tool' %}"
        "{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}{% elif m.role == 'assistant' %}"
        "{{ '<|im_start|>assistant\\n' }}«{% if 'user' not in roles[loop.index:] %}"
        "{{ '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}{{ m.content }}"
        + _HERMES
        + "{{ '<|im_end|>' }}»{{ '\\n' }}{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
        "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
        "{% endif %}",
        _IM,
        [
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
            "<|im_start|>assistant\n⟦<think>\n\n</think>\n\nONE<|im_end|>⟧",
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
            "<|im_start|>assistant\nONE<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
            "<|im_start|>assistant\n⟦<think>\n\n</think>\n\nTWO<|im_end|>⟧",
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
            "<|im_start|>assistant\nONE<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
            "<|im_start|>assistant\nTWO<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
            "<|im_start|>assistant\n⟦<think>\n\n</think>\n\nTHREE<|im_end|>⟧",
        ],
        [  # reasoning is kept up to the next question
            f"<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n⟦<think>\nadd\n</think>\n\n{_CALL}<|im_end|>⟧\n"
            "<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\n⟦<think>\ndone\n</think>\n\nIt is 3.<|im_end|>⟧",
            f"<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n{_CALL}<|im_end|>\n"
            "<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\nIt is 3.<|im_end|>\n<|im_start|>user\nok<|im_end|>\n"
            "<|im_start|>assistant\n⟦<think>\n\n</think>\n\nBye.<|im_end|>⟧",
        ],
    ),
    "deepseek": Style(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
        "{{ '<｜User｜>' + m.content }}{% else %}{{ '<｜Assistant｜>' }}«{{ m.content + eos_token }}»{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
        ("<｜begin｜>", "<｜end｜>", "<｜User｜>", "<｜Assistant｜>"),
        [
            "<｜begin｜>Be kind.<｜User｜>one<｜Assistant｜>⟦ONE<｜end｜>⟧<｜User｜>two<｜Assistant｜>⟦TWO<｜end｜>⟧"
            "<｜User｜>three<｜Assistant｜>⟦THREE<｜end｜>⟧"
        ],
        bos="<｜begin｜>",
        eos="<｜end｜>",
    ),
    "command-r": Style(
        "{{ bos_token }}{% for m in messages %}{{ '<|START_OF_TURN|><|' + (m.role | upper) + '|>' }}"
        "{% if m.role == 'assistant' %}«{{ (m.content | trim) + '<|END_OF_TURN|>' }}»{% else %}"
        "{{ (m.content | trim) + '<|END_OF_TURN|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|START_OF_TURN|><|ASSISTANT|>' }}{% endif %}",
        ("<BOS>", "<|START_OF_TURN|>", "<|END_OF_TURN|>", "<|USER|>", "<|SYSTEM|>", "<|ASSISTANT|>"),
        [
            "<BOS><|START_OF_TURN|><|SYSTEM|>Be kind.<|END_OF_TURN|><|START_OF_TURN|><|USER|>one<|END_OF_TURN|>"
            "<|START_OF_TURN|><|ASSISTANT|>⟦ONE<|END_OF_TURN|>⟧<|START_OF_TURN|><|USER|>two<|END_OF_TURN|>"
            "<|START_OF_TURN|><|ASSISTANT|>⟦TWO<|END_OF_TURN|>⟧<|START_OF_TURN|><|USER|>three<|END_OF_TURN|>"
            "<|START_OF_TURN|><|ASSISTANT|>⟦THREE<|END_OF_TURN|>⟧"
        ],
        bos="<BOS>",
    ),
    "harmony": Style(
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|start|>assistant' }}«"
        "{% if m.reasoning_content and loop.last %}"
        "{{ '<|channel|>analysis<|message|>' + m.reasoning_content + '<|end|><|start|>assistant' }}{% endif %}"
        "{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}"
        "{{ ' to=functions.' + c.name + '<|channel|>commentary json<|message|>' }}"
        "{{ (c.arguments | tojson) + '<|call|>' }}"
        "{% else %}{{ '<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}"
        "{% endif %}»{% elif m.role == 'tool' %}"
        "{{ '<|start|>functions.add to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' }}{% else %}"
        "{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
        [
            "<|start|>system<|message|>Be kind.<|end|><|start|>user<|message|>one<|end|>"
            "<|start|>assistant⟦<|channel|>final<|message|>ONE<|return|>⟧",
            "<|start|>system<|message|>Be kind.<|end|><|start|>user<|message|>one<|end|>"
            "<|start|>assistant<|channel|>final<|message|>ONE<|end|><|start|>user<|message|>two<|end|>"
            "<|start|>assistant⟦<|channel|>final<|message|>TWO<|return|>⟧",
            "<|start|>system<|message|>Be kind.<|end|><|start|>user<|message|>one<|end|>"
            "<|start|>assistant<|channel|>final<|message|>ONE<|end|><|start|>user<|message|>two<|end|>"
            "<|start|>assistant<|channel|>final<|message|>TWO<|end|><|start|>user<|message|>three<|end|>"
            "<|start|>assistant⟦<|channel|>final<|message|>THREE<|return|>⟧",
        ],
        [
            "<|start|>user<|message|>1+2?<|end|><|start|>assistant⟦<|channel|>analysis<|message|>add<|end|>"
            '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>⟧',
            "<|start|>user<|message|>1+2?<|end|>"
            "<|start|>assistant to=functions.add<|channel|>commentary json<|message|>"
            '{"a": 1}<|call|><|start|>functions.add to=assistant<|channel|>commentary<|message|>3<|end|>'
            "<|start|>assistant⟦<|channel|>analysis<|message|>done<|end|>"
            "<|start|>assistant<|channel|>final<|message|>It is 3.<|return|>⟧",
            "<|start|>user<|message|>1+2?<|end|>"
            "<|start|>assistant to=functions.add<|channel|>commentary json<|message|>"
            '{"a": 1}<|call|><|start|>functions.add to=assistant<|channel|>commentary<|message|>3<|end|>'
            "<|start|>assistant<|channel|>final<|message|>It is 3.<|end|><|start|>user<|message|>ok<|end|>"
            "<|start|>assistant⟦<|channel|>final<|message|>Bye.<|return|>⟧",
        ],
    ),
    "granite": Style(
        "{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' }}{% if m.role == 'assistant' %}«"
        "{{ m.content }}{% if m.tool_calls %}{{ '<|tool_call|>[' }}{% for c in m.tool_calls %}"
        "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}{% endfor %}{{ ']' }}{% endif %}"
        "{{ '<|end_of_text|>' }}»{{ '\\n' }}{% else %}{{ m.content + '<|end_of_text|>\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
        ("<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>", "<|end_of_text|>"),
        [
            "<|start_of_role|>system<|end_of_role|>Be kind.<|end_of_text|>\n"
            "<|start_of_role|>user<|end_of_role|>one<|end_of_text|>\n"
            "<|start_of_role|>assistant<|end_of_role|>⟦ONE<|end_of_text|>⟧\n"
            "<|start_of_role|>user<|end_of_role|>two<|end_of_text|>\n"
            "<|start_of_role|>assistant<|end_of_role|>⟦TWO<|end_of_text|>⟧\n"
            "<|start_of_role|>user<|end_of_role|>three<|end_of_text|>\n"
            "<|start_of_role|>assistant<|end_of_role|>⟦THREE<|end_of_text|>⟧"
        ],
        [
            "<|start_of_role|>user<|end_of_role|>1+2?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"
            '⟦<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|end_of_text|>⟧\n'
            "<|start_of_role|>tool<|end_of_role|>3<|end_of_text|>\n"
            "<|start_of_role|>assistant<|end_of_role|>⟦It is 3.<|end_of_text|>⟧\n"
            "<|start_of_role|>user<|end_of_role|>ok<|end_of_text|>\n"
            "<|start_of_role|>assistant<|end_of_role|>⟦Bye.<|end_of_text|>⟧"
        ],
        eos="<|end_of_text|>",
    ),
    "smollm-3": Style(  # earlier system texts are not shown, and the prompt of an answer ends in empty reasoning
        "{% set said = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | list %}"
        "{{ '<|im_start|>system\\n' + (said[-1] if said else 'Help.') + '<|im_end|>\\n' }}{% for m in messages %}"
        "{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}«{{ m.content + '<|im_end|>' }}»{{ '\\n' }}"
        "{% elif m.role == 'user' %}{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' }}{% endif %}",
        _IM,
        [
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n⟦ONE<|im_end|>⟧",
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
            "<|im_start|>assistant\nONE<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n⟦TWO<|im_end|>⟧",
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
            "<|im_start|>assistant\nONE<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
            "<|im_start|>assistant\nTWO<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n⟦THREE<|im_end|>⟧",
        ],
    ),
    "alpaca": Style(  # no end token, so that the tokenizer's is learned, each in a text of its own
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\\n\\n' }}{% elif m.role == 'user' %}"
        "{{ '### Instruction:\\n' + m.content + '\\n\\n' }}{% else %}{{ '### Response:\\n' }}«{{ m.content }}»"
        "{{ '\\n\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}",
        (),
        [
            "Be kind.\n\n### Instruction:\none\n\n### Response:\n⟦ONE<eos>⟧",
            "Be kind.\n\n### Instruction:\none\n\n### Response:\nONE\n\n"
            "### Instruction:\ntwo\n\n### Response:\n⟦TWO<eos>⟧",
            "Be kind.\n\n### Instruction:\none\n\n### Response:\nONE\n\n### Instruction:\ntwo\n\n### Response:\nTWO\n\n"
            "### Instruction:\nthree\n\n### Response:\n⟦THREE<eos>⟧",
        ],
    ),
}
"""Each style by its name."""
