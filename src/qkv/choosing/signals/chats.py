"""Choose a recipe for training on conversations."""

from __future__ import annotations

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import MINUTES
from qkv.spec.data import BestFit
from qkv.spec.models.adapt import ALL, LoRA
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Chat
from qkv.spec.training import Training, Validation

_ROWS, _LENGTH, _RANK = 4, 512, 16


@chooses(Chat)
def choose_chat(request: RecipeRequest) -> Recipe:
    """Choose a recipe that fine-tunes a chat model: low-rank adapters, and conversations packed into rows."""
    return Recipe(
        data=request.data.changed(batching=BestFit(tokens=_LENGTH)),
        task=request.task,
        training=Training(
            minutes=MINUTES,
            batch_size=_ROWS,
            adapt=adapters_for_chats(),
            validation=Validation(batches=32, patience=4),
        ),
    )


def adapters_for_chats() -> LoRA:
    """Return the adapters of all linear layers that chat models are trained with by default."""
    return LoRA(rank=_RANK, alpha=2 * _RANK, targets=(ALL,))
