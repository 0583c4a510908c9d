"""Reasoning that a model writes before its answer: the forms of its borders, and their register.

A form is an entry of ``THOUGHTS``, in a module of ``qkv.tokenizers.answers.forms``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from qkv.spec.register import Register


@dataclass(frozen=True)
class ThinkingForm:
    """Form of an answer that begins with reasoning.

    begin, end: texts around the reasoning. dropped: texts around the answer after it, which are not part of it.
    channels: whether the answer consists of messages in channels (harmony), in which ``begin`` is the name of that of
    the reasoning. ends: texts of tokens that end an answer, besides those of the model.
    """

    name: str
    begin: str
    end: str
    dropped: tuple[str, ...] = ()
    channels: bool = False
    ends: tuple[str, ...] = ()
    _opened: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole = rf"{re.escape(self.begin)}\s*(?:{re.escape(self.end)}\s*)?\Z"
        object.__setattr__(self, "_opened", re.compile(whole))

    @property
    def named(self) -> tuple[str, ...]:
        """Texts that a template of this form names."""
        return ("<|channel|>analysis",) if self.channels else (self.end, *self.dropped)

    def opening(self, prompt: str) -> str:
        """Return the end of a prompt that belongs to the answer: reasoning that is opened, or opened and closed."""
        if self.channels:
            return prompt.rpartition("<|start|>assistant")[2] if "<|start|>assistant" in prompt else ""
        match = self._opened.search(prompt)
        return match[0] if match else ""

    @property
    def header(self) -> str:
        """Text before the content of every answer: the channel, or nothing."""
        return "<|channel|>final<|message|>" if self.channels else ""

    def closing(self, prompt: str, call: bool = False) -> str:
        """Return what follows a prompt so that content, or a ``call``, begins without further reasoning."""
        if self.channels:
            return "" if call or self.opening(prompt) else self.header
        opening = self.opening(prompt)
        return f"\n{self.end}\n\n" if opening and self.end not in opening else ""


THOUGHTS: Register[str, ThinkingForm] = Register("qkv.tokenizers.answers.forms")
"""Forms of reasoning by name."""


def register(form: ThinkingForm) -> ThinkingForm:
    """Add a form to ``THOUGHTS``, and return it."""
    THOUGHTS[form.name] = form
    return form
