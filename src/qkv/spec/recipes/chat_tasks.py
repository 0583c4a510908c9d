"""Specs of tasks on conversations."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from qkv.spec.recipes.task import Needs, Reads, Task


class Conversational(Task):
    """Base class of tasks on conversations, which the chat template of the tokenizer renders."""

    chat_template: str | None = Field(
        default=None, min_length=1, description="file of a chat template that replaces that of the tokenizer"
    )
    template_variables: dict[str, Any] = Field(
        default={}, description="further variables of the template, such as {enable_thinking: false}"
    )

    sized_by_tokenizer = True
    joins_inputs: ClassVar[bool] = True
    reads: ClassVar[Reads] = "examples"
    needs: ClassVar[Needs] = "causal"


class Chat(Conversational, kind="chat"):
    """Answers of conversations: -Σ log p(x_i | x_<i) over the tokens of the answers, with their end tokens.

    A table has a column ``messages``, or ``prompt`` and ``completion``. The prefix that a prefix mask shows ends before
    the first token that is learned.
    """

    needs: ClassVar[Needs] = "decodes"

    learn: Literal["answers", "last", "everything"] = Field(
        default="answers",
        description="what is learned: all answers of the assistant, the last one, or every token after the first",
    )
