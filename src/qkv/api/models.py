"""Model and training settings of whatever names a model: a recipe, a spec, a run, a preset, a published config."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from qkv.api.recipes import SPEC_SUFFIXES
from qkv.costs.cost import Cost
from qkv.costs.cost import cost as cost_of
from qkv.costs.measuring.machine import stored_machine
from qkv.interop.files.places import CONFIG, is_published
from qkv.models.families.presets import PRESETS, preset
from qkv.spec.files.overrides import assignments, override
from qkv.spec.files.shipped import is_shipped, shipped
from qkv.spec.files.yaml_io import read_spec
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.spec.training import Training
from qkv.system.errors import UserError, nearest


class ModelSettings(NamedTuple):
    """Spec of a model, and the training settings of its recipe; batch size 1 for a model alone."""

    model: Model
    training: Training

    def cost(
        self,
        batch_size: int | None = None,
        length: int | None = None,
        precision: str | None = None,
        source_length: int | None = None,
    ) -> Cost:
        """Estimate the cost. Omitted arguments are those of the training settings; precision: as it runs on this
        machine, if its speed was measured. Raises ``UserError``.
        """
        machine, lowest = stored_machine(), self.training.precision
        used = precision or (machine.runs_in(lowest) if machine else lowest)
        rows = self.training.batch_size if batch_size is None else batch_size
        return cost_of(self.model, rows, length, used, self.training, source_length=source_length)


def find_model(source: Model | Recipe | str | Path, overrides: Iterable[str] = ()) -> ModelSettings:
    """Return the model of a spec or recipe, of its file, of a run, or of the name of a preset, shipped recipe or
    published config, with the changes ``overrides``. No weights are read.

    Sizes that depend on the data of a recipe, such as that of the vocabulary, are filled in. Raises ``UserError``.
    """
    if isinstance(source, Recipe):
        recipe = override(source, overrides)
        return ModelSettings(_with_sizes(recipe) if _open_sizes(recipe.model) else recipe.model, recipe.training)
    if isinstance(source, Model) or names_published(source) or (str(source) in PRESETS and not Path(source).exists()):
        changes = [change.below("model") for change in assignments(overrides)]
        return ModelSettings(override(_model(source), changes), Training(batch_size=1))
    if not Path(source).exists() and Path(source).suffix not in SPEC_SUFFIXES and not is_shipped(str(source)):
        raise UserError(f"there is no file, recipe or preset {str(source)!r}; {nearest(str(source), _names())}")
    spec = read_spec(str(source), overrides)
    return find_model(spec) if isinstance(spec, Model) else ModelSettings(_with_sizes(spec), spec.training)


def _model(source: Model | str | Path) -> Model:
    """Return the spec of a model, of a published config or of a preset."""
    if isinstance(source, Model):
        return source
    if not names_published(source):
        return preset(str(source))
    from qkv.interop.checkpoint import published_spec

    return published_spec(Path(source))


def _names() -> list[str]:
    return [*PRESETS, *shipped()]


def names_published(name: str | Path) -> bool:
    """True for a published folder, its config.json alone, or a GGUF file; no weights are read."""
    path = Path(name)
    return not (path / "spec.yaml").is_file() and ((path.name == CONFIG and path.is_file()) or is_published(path))


def _with_sizes(recipe: Recipe) -> Model:
    """Return the recipe's model with all sizes that depend on its data, such as the vocabulary size, filled in.

    For text, this is the tokenizer's (maximum) vocabulary size; for other sizes, the data is read.
    """
    if recipe.start.checkpoint is not None:
        from qkv.runs.start import with_start

        recipe = with_start(recipe)
    model, tokenizer = recipe.model, recipe.data.text_tokenizer
    if not _open_sizes(model):
        return model
    if recipe.task.sized_by_tokenizer and recipe.data.processor is None and tokenizer.num_ids is not None:
        return model.changed(frontend=model.frontend.sized(tokenizer.num_ids))
    from qkv.tasks.registry import task_of_recipe

    return task_of_recipe(recipe).sized(recipe).model


def _open_sizes(model: Model) -> bool:
    """Return whether the vocabulary size, an input size or the number of classes of ``model`` is still unknown."""
    frontends = [stack.frontend for stack in (model, model.encoder) if stack is not None]
    unknown = any(each.reads_tokens and each.num_tokens is None for each in frontends)
    unsized = any(each.processor is not None and each == each.unsized() for each in frontends)
    return unknown or unsized or model.head.classes is None
