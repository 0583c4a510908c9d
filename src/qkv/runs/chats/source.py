"""Reading of a chat model without its weights: tokenizer, chat template, context length and end tokens."""

from __future__ import annotations

from typing import NamedTuple

from qkv.runs.start import find_start
from qkv.system.errors import UserError
from qkv.tokenizers.chat_targets import end_of_answer
from qkv.tokenizers.chat_template import ChatTemplate
from qkv.tokenizers.tokenizer import Tokenizer


class ChatStart(NamedTuple):
    """Tokenizer and template of a model, its context length, and the ids that end an answer."""

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate
    context_length: int | None
    ends: tuple[int, ...]


def open_start(source: str, template: str | None = None) -> ChatStart:
    """Read the start of a run folder, a folder in Hugging Face format, a GGUF file or a published name.

    ``template``: Jinja text that replaces the model's own template. Raises ``UserError`` if there is no model, or if it
    has no tokenizer or no template.
    """
    start = find_start(source)
    if start.tokenizer is None:
        raise UserError(f"{source} has no tokenizer, so it reads no conversations; name a language model")
    tokenizer = Tokenizer.load((start.target_tokenizer or start.tokenizer).path)  # type: ignore[attr-defined]
    text = tokenizer.chat_template if template is None else template
    if text is None:
        raise UserError(
            f"{source} has no chat template, so the form of its conversations is unknown; name a Jinja file with "
            "--chat-template FILE (in Python, give its text as chat_template)"
        )
    compiled = ChatTemplate(text, tokenizer)
    ends = tuple(dict.fromkeys((*start.ends, end_of_answer(compiled, start.ends))))
    return ChatStart(source, tokenizer, compiled, start.model and start.model.context_length, ends)
