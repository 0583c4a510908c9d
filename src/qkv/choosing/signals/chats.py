"""Choose a recipe for training on conversations."""

from __future__ import annotations

from collections.abc import Iterable

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import MINUTES
from qkv.data.records.conversations.contents import pictures_of, shown_text
from qkv.data.records.conversations.read import Conversation, read_conversation
from qkv.data.records.values import readable
from qkv.report.figures import counted
from qkv.spec.data import BestFit
from qkv.spec.models.adapt import ALL, LoRA
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Chat
from qkv.spec.training import Training, Validation

_CHARACTERS = 1.5
"""Characters per token that nearly all texts exceed, also numbers and code: a row that is too long holds several
conversations, and one that is too short loses answers.
"""
_MARKS = 16
"""Approximate tokens of the template around a message."""
_PICTURE = 1280
"""Positions of a picture that few models exceed."""
_LENGTHS = (256, 512, 1024, 2048, 4096)
_TOKENS = 1024
"""Positions of a step: on a processor, more tokens are not read faster, and leave fewer steps."""
_RANK = 16


@chooses(Chat)
def choose_chat(request: RecipeRequest) -> Recipe:
    """Choose a recipe that trains low-rank adapters of a chat model on conversations.

    A row has the fewest positions that hold nearly all conversations, and several of them if they are short.
    """
    rows = request.records.splits["train"]
    conversations = readable(read_conversation, rows, "conversation")
    length = row_length(tokens_of(each) for each in conversations)
    return Recipe(
        description=f"{counted(len(conversations), 'conversation')} in rows of {length} tokens",
        data=request.data.changed(batching=BestFit(tokens=length)),
        task=request.task,
        training=Training(
            minutes=MINUTES,
            batch_size=max(1, _TOKENS // length),
            adapt=adapters_for_chats(),
            validation=Validation(batches=32, patience=4),
        ),
    )


def tokens_of(conversation: Conversation) -> float:
    """Estimate the number of tokens of a conversation from its characters."""
    characters = sum(len(shown_text(message["content"])) for message in conversation.messages)
    calls = sum(len(str(message.get("tool_calls", ""))) for message in conversation.messages)
    tools = len(str(conversation.tools or ""))
    seen = _PICTURE * len(pictures_of(conversation.messages))
    return (characters + calls + tools) / _CHARACTERS + _MARKS * (1 + len(conversation.messages)) + seen


def row_length(tokens: Iterable[float]) -> int:
    """Choose the positions of a row: the smallest of ``_LENGTHS`` that holds 99 % of texts of these lengths, else the
    largest.
    """
    ordered = sorted(tokens)
    longest = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return next((length for length in _LENGTHS if longest <= length), _LENGTHS[-1])


def adapters_for_chats() -> LoRA:
    """Return the adapters of all linear layers that chat models are trained with by default."""
    return LoRA(rank=_RANK, alpha=2 * _RANK, targets=(ALL,))
