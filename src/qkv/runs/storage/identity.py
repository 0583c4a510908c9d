"""Identity of a run: the settings that determine its weights, stored with the weights to detect edits and other
recipes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.data.vocabulary import FILES
from qkv.spec.extension.outside import RECORD, outside_parts
from qkv.spec.files.formats import downgraded, upgraded
from qkv.spec.files.given import without_folders
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.system.files import write_file

MADE_WITH = "made_with"
"""Key under which the result of ``made_with`` is stored, in the header of weights files and in the state of
checkpoints.
"""

# Settings in _FREE may change when a run resumes: they control when something is measured, saved or shown, not the
# weights.
_DECIDING = ("data", "model", "wide", "start", "task", "training")
_STORED = "quantized"
_FREE = {"validation", "checkpoints", "sample_every", "tensorboard"}


def deciding(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a recipe that, together with the data, determine its weights, as plain data."""
    plain = recipe.to_dict()
    plain["data"] = without_folders(plain["data"])
    plain["training"] = {name: value for name, value in plain["training"].items() if name not in _FREE}
    return {name: plain[name] for name in (*_DECIDING, _STORED)}


def essence(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a recipe that determine the weights, as plain data, without defaults and without the
    number of steps, which may be increased later.

    Because defaults are omitted, versions of qkv with new fields can resume runs of older versions.
    """
    essential = downgraded(recipe.essential())
    content = {name: plain for name, plain in essential.items() if name in (*_DECIDING, _STORED)}
    if "data" in content:
        content["data"] = without_folders(content["data"])
    content["training"] = {
        name: value for name, value in content.get("training", {}).items() if name not in _FREE | {"steps"}
    }
    return content


def recipe_digest(recipe: Recipe) -> str:
    """Compute the SHA-256 of ``essence``, the settings that determine the weights."""
    return hashlib.sha256(json.dumps(essence(recipe), sort_keys=True).encode()).hexdigest()


def made_with(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return the recipe settings (``essence``) and the SHA-256 of each vocabulary file in ``folder``, to be stored with
    the weights that were trained with them.
    """
    return {"recipe": json.loads(json.dumps(essence(recipe))), "vocabulary": _vocabulary_digests(folder)}


def write_parts(recipe: Recipe, folder: Path) -> bool:
    """Write a record of the parts of the recipe that are defined outside the package into ``folder``, unless the record
    there is the same.

    Returns True if it was written.
    """
    parts, file = outside_parts(recipe), folder / RECORD
    content = (json.dumps(parts, indent=2) + "\n").encode()
    if not parts or (file.is_file() and file.read_bytes() == content):
        return False
    write_file(file, content)
    return True


def edited(stored: Mapping[str, Any] | None, recipe: Recipe | None, folder: Path) -> str | None:
    """Describe the first change to recipe or vocabulary in ``folder`` since the weights were written; None if
    unchanged.

    ``stored``: result of ``made_with`` stored with the weights; None in files of older versions, for which nothing can
    be checked. ``recipe``: None if the folder holds no spec.
    """
    if not stored:
        return None
    before, now = stored["vocabulary"], _vocabulary_digests(folder)
    for name in FILES:
        if before.get(name) != now.get(name):
            how = "was removed" if name not in now else "was changed" if name in before else "was added"
            return f"{folder / name} {how} after the weights were trained"
    change = recipe and first_difference(upgraded(stored["recipe"]), upgraded(made_with(recipe, folder)["recipe"]))
    if change:
        path, was, is_now = change
        return (
            f"{folder / 'spec.yaml'} was changed: {path} is {_or_default(is_now)}, "
            f"but the weights were trained with {_or_default(was)}"
        )
    return None


def check_unedited(stored: Mapping[str, Any] | None, recipe: Recipe | None, folder: Path) -> None:
    """Raise UserError if the spec or the vocabulary in ``folder`` differs from ``stored``, the settings stored with the
    weights.
    """
    change = edited(stored, recipe, folder)
    if change:
        raise UserError(
            f"{change}; restore it, or accept the change with 'qkv accept {folder}', "
            "in Python load(…, accept_changes=True)"
        )


def _vocabulary_digests(folder: Path) -> dict[str, str]:
    files = [folder / name for name in FILES]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}


def _or_default(value: Any) -> str:
    return "the default" if value is None else shown(value)


def difference(there: Any, here: Any) -> str:
    """Describe the first path at which two trees of plain data differ, with both values; "" if they are equal."""
    change = first_difference(there, here)
    return f"{change[0]} is {shown(change[1])} there and {shown(change[2])} here" if change else ""


def first_difference(old: Any, new: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the first difference between two trees of plain data: (dotted path, old value, new value); None if they
    are equal.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(str(key), old.get(key), new.get(key)) for key in [*old, *(k for k in new if k not in old)]]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        return None if old == new and type(old) is type(new) else (path, old, new)
    # Compare the kind first: parts of different kinds also differ in their other fields.
    pairs.sort(key=lambda pair: pair[0] != "kind")
    deeper = (first_difference(a, b, f"{path}.{key}" if path else key) for key, a, b in pairs)
    return next((change for change in deeper if change), None)


def shown(value: Any) -> str:
    """Format plain data as JSON for messages, truncated to 80 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
