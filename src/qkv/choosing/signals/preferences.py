"""Choose a recipe for training on preferences."""

from __future__ import annotations

from qkv.choosing.signals.chats import adapters_for_chats
from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import MINUTES
from qkv.spec.data import LengthBuckets
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.preference_tasks import KTOLoss
from qkv.spec.tasks import Preference
from qkv.spec.training import Training, Validation

_PAIRS = 4


@chooses(Preference)
def choose_preferences(request: RecipeRequest) -> Recipe:
    """Choose a recipe that trains low-rank adapters of a chat model on preferences; KTO if answers have labels."""
    assert isinstance(request.task, Preference)
    judges = "label" in request.records.columns and "chosen" not in request.records.columns
    return Recipe(
        data=request.data.changed(batching=LengthBuckets(buckets=4)),
        task=request.task.changed(loss=KTOLoss()) if judges else request.task,
        training=Training(
            minutes=MINUTES,
            batch_size=_PAIRS,
            adapt=adapters_for_chats(),
            validation=Validation(batches=32, patience=4),
        ),
    )
