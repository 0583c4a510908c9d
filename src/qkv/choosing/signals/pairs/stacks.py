"""Stack of one of several inputs, as the recipe for this input alone has it."""

from __future__ import annotations

from typing import Any, NamedTuple

from qkv.choosing.signals.register import RecipeRequest, choice_for
from qkv.data.records.model import Records
from qkv.spec.model import Encoder, Model
from qkv.spec.processors import Processor
from qkv.spec.tasks import Classification
from qkv.system.errors import UserError


class InputStack(NamedTuple):
    """Stack of one input, with its processor or tokenizer."""

    reader: Any
    model: Model


class _InputRequest(RecipeRequest):
    """Request for the recipe of one of several inputs alone, as if its rows were classified."""

    def __init__(self, request: RecipeRequest, records: Records, name: str, processor: Processor):
        data = request.data.changed(processor=processor, inputs={})
        super().__init__(Classification(), data, (), request.machine)
        self.records, self._name = records, name

    @property
    def values(self) -> list[Any]:
        return [row[self._name] for row in self.records.splits["train"]]


def stack_for(request: RecipeRequest, processor: Processor, records: Records, name: str) -> InputStack:
    """Choose processor, front end and blocks as for the input ``name`` alone, without changes that a text may
    contradict. Raises ``UserError`` if no recipe is chosen for its kind of signal.
    """
    choice = choice_for(processor)
    if choice is None:
        raise UserError(f"data: no recipe can be chosen for {name!r}, which is {processor.kind}; write a recipe")
    recipe = choice(_InputRequest(request, records, name, processor))
    assert recipe.data.processor is not None
    return InputStack(recipe.data.processor.of_pairs(), recipe.model)


def encoder_of(model: Model) -> Encoder:
    """Return the stack of a model as an encoder of its own width."""
    fields = {name: getattr(model, name) for name in Encoder.model_fields if name in Model.model_fields}
    return Encoder(**fields)
