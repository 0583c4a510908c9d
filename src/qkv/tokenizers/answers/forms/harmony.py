"""Channels of the harmony format (gpt-oss): ``analysis`` for reasoning, ``commentary`` for calls, ``final``.

    <|channel|>analysis<|message|> … <|end|><|start|>assistant<|channel|>final<|message|> … <|return|>

Calls are described in ``qkv.tokenizers.answers.forms.named``.
"""

from __future__ import annotations

from qkv.tokenizers.answers.thoughts import ThinkingForm, register

HARMONY = register(
    ThinkingForm("harmony", "<|channel|>analysis<|message|>", "<|end|>", channels=True, ends=("<|return|>", "<|call|>"))
)
