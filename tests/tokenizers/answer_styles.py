"""Chat templates in the styles of published families, in own words: how each writes reasoning and tool calls."""

from __future__ import annotations

_TOOLS = "{% if tools %}{{ '<tools>' }}{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '</tools>' }}{% endif %}"
_HERMES_CALLS = (
    "{% for c in m.tool_calls or [] %}{{ '\\n<tool_call>\\n' }}{{ {'name': c.function.name, 'arguments': "
    "c.function.arguments} | tojson }}{{ '\\n</tool_call>' }}{% endfor %}"
)
_OPEN, _CLOSE = "{{ '<|im_start|>' + m.role + '\\n' }}", "{{ '<|im_end|>\\n' }}"
_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

PLAIN = f"{{% for m in messages %}}{_OPEN}{{{{ m.content }}}}{_CLOSE}{{% endfor %}}{_PROMPT}"
"""ChatML without tools and reasoning."""

QWEN3 = (
    _TOOLS
    + "{% set last = messages | map(attribute='role') | list %}{% for m in messages %}{% if m.role == 'assistant' %}"
    + "{% set ns = namespace(thought=m.reasoning_content or '', content=m.content or '') %}"
    + "{% if '</think>' in ns.content %}{% set ns.thought = ns.content.split('</think>')[0].split('<think>')[-1] %}"
    + "{% set ns.content = ns.content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    + _OPEN
    + "{% if 'user' not in last[loop.index:] and (loop.last or ns.thought) %}"
    + "{{ '<think>\\n' + ns.thought.strip() + '\\n</think>\\n\\n' }}{% endif %}{{ ns.content }}"
    + _HERMES_CALLS
    + _CLOSE
    + "{% elif m.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    + _CLOSE
    + "{% else %}"
    + _OPEN
    + "{{ m.content }}"
    + _CLOSE
    + "{% endif %}{% endfor %}"
    + _PROMPT
    + "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    + "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
"""Reasoning in ``<think>``, calls as Hermes; earlier reasoning is dropped after the next question."""

DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
    "{% elif m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'tool' %}{{ '<｜tool▁outputs▁begin｜>' + m.content }}"
    "{% elif m.content is none %}{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}{% for c in m.tool_calls %}"
    "{{ '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.function.name + '\\n```json\\n' "
    "+ c.function.arguments + '\\n```<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' + eos_token }}"
    "{% else %}{% set content = m.content %}{% if '</think>' in content %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<｜Assistant｜>' + content + eos_token }}{% endif %}{% endfor %}{% if tools %}{% endif %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"
)
"""The prompt opens the reasoning; arguments are text, and a message that calls has no content."""

MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.last %}"
    "{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    "{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{% elif m.tool_calls %}{{ '[TOOL_CALLS][' }}"
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' + eos_token }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
"""A list of calls, whose ids have nine letters."""

MAGISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{% elif m.role == 'assistant' %}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content or [] %}"
    "{% if part.type == 'thinking' %}{{ '[THINK]' + part.thinking + '[/THINK]' }}{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}"
    "{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + (c.function.arguments | tojson) }}{% endfor %}{{ eos_token }}"
    "{% endif %}{% endfor %}{% if tools %}{% endif %}"
)
"""Reasoning as parts of the content; calls by name and arguments."""

LLAMA3 = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}"
    "{{ '{\"name\": \"' + c.name + '\", \"parameters\": ' + (c.arguments | tojson) + '}' }}"
    "{% else %}{{ m.content | trim }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
"""A call is the whole answer."""

CODER = (
    _TOOLS
    + "{% for m in messages %}"
    + _OPEN
    + "{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    + "{{ '\\n<tool_call>\\n<function=' + c.function.name + '>\\n' }}"
    + "{% for k, v in c.function.arguments | items %}{{ '<parameter=' + k + '>\\n' }}"
    + "{{ v if v is string else v | tojson }}{{ '\\n</parameter>\\n' }}{% endfor %}"
    + "{{ '</function>\\n</tool_call>' }}{% endfor %}"
    + _CLOSE
    + "{% endfor %}"
    + _PROMPT
)
"""Arguments between tags (Qwen3-Coder)."""

GLM = (
    "{{ '[gMASK]<sop>' }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ '<|' + m.role + '|>' }}{% if m.role == 'assistant' %}"
    "{{ '\\n<think>' + (m.reasoning_content or '') + '</think>\\n' + (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ '\\n<tool_call>' + c.function.name + '\\n' }}"
    "{% for k, v in c.function.arguments | items %}{{ '<arg_key>' + k + '</arg_key>\\n<arg_value>' }}"
    "{{ v if v is string else v | tojson }}{{ '</arg_value>\\n' }}{% endfor %}{{ '</tool_call>' }}{% endfor %}"
    "{% else %}{{ '\\n' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Arguments as pairs of tags, reasoning in the field ``reasoning_content``."""

HARMONY = (
    "{{ '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}"
    "{% if tools %}{{ '<|start|>developer<|message|>' + (tools | tojson) + '<|end|>' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.thinking and (loop.last or m.tool_calls) %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}{% if m.tool_calls %}"
    "{% set c = m.tool_calls[0].function %}"
    "{{ '<|start|>assistant to=functions.' + c.name + '<|channel|>commentary json<|message|>' }}"
    "{{ c.arguments | tojson }}{{ '<|call|>' }}{% else %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}"
    "{% endif %}{% elif m.role == 'tool' %}"
    "{{ '<|start|>functions.f to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' }}{% else %}"
    "{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
"""Messages in channels (gpt-oss), with the effort of the reasoning."""

GRANITE = (
    "{% if thinking %}{{ '<|start_of_role|>system<|end_of_role|>Write your thoughts between <think></think> and the "
    "answer between <response></response>.<|end_of_text|>\\n' }}{% endif %}"
    "{% if tools %}{{ '<|start_of_role|>tools<|end_of_role|>' + (tools | tojson) + '<|end_of_text|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + (m.content or '') }}"
    "{% if m.tool_calls %}{{ '<|tool_call|>[' }}{% for c in m.tool_calls %}"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}{% if not loop.last %}{{ ', ' }}"
    "{% endif %}{% endfor %}{{ ']' }}{% endif %}{{ '<|end_of_text|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
)
"""Reasoning is asked for in words (``thinking``); the answer stands between tags of its own."""

PYTHONIC = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ '<|header_start|>' + m.role + '<|header_end|>\\n\\n' }}{% if m.tool_calls %}{{ '[' }}"
    "{% for c in m.tool_calls %}{{ c.function.name + '(' }}{% for k, v in c.function.arguments | items %}"
    "{{ k + '=' + (v | tojson) }}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ')' }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' }}{% else %}{{ m.content }}{% endif %}"
    "{{ '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|header_start|>assistant<|header_end|>\\n\\n' }}{% endif %}"
)
"""Calls of Python functions (Llama 4)."""

GEMMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) }}"
    "{{ '\\n' + (m.content | trim) + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
"""Neither tools nor reasoning; turns end with a token of their own."""

GEMMA4 = (
    "{% macro value(x) %}{% if x is string %}{{ '<|\"|>' + x + '<|\"|>' }}{% else %}{{ x | tojson }}{% endif %}"
    "{% endmacro %}{{ bos_token }}{% if tools %}{{ '<|tool>' + (tools | tojson) + '<tool|>' }}{% endif %}"
    "{% for m in messages %}{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}"
    "{% set content = m.content or '' %}{% if '<channel|>' in content %}"
    "{% set content = content.split('<channel|>')[-1] %}{% endif %}{{ content | trim }}"
    "{% for c in m.tool_calls or [] %}{{ '<|tool_call>call:' + c.function.name + '{' }}"
    "{% for k, v in c.function.arguments | items %}{{ k + ':' + value(v) }}{% if not loop.last %}{{ ',' }}{% endif %}"
    "{% endfor %}{{ '}<tool_call|>' }}{% endfor %}{{ '<turn|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<|channel>thought\\n<channel|>' }}{% endif %}"
    "{% endif %}"
)
"""Strings between tokens; reasoning in a channel, dropped in earlier turns (Gemma 4)."""

STYLES = {
    "plain": PLAIN,
    "qwen3": QWEN3,
    "deepseek": DEEPSEEK,
    "mistral": MISTRAL,
    "magistral": MAGISTRAL,
    "llama3": LLAMA3,
    "coder": CODER,
    "glm": GLM,
    "harmony": HARMONY,
    "granite": GRANITE,
    "pythonic": PYTHONIC,
    "gemma": GEMMA,
    "gemma4": GEMMA4,
}
"""Template of each style."""
TOKENS = (
    *("<|im_start|>", "<|im_end|>", "<｜User｜>", "<｜Assistant｜>", "<|eot_id|>", "<|eot|>", "<end_of_turn>"),
    *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>", "<|constrain|>", "[INST]"),
    *("<turn|>", '<|"|>'),
    *("[/INST]", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|tool_call|>", "<|end_of_text|>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
)
"""Special tokens of the styles."""
