"""Command ``qkv schema``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from qkv.spec.files.schema import json_schema
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.comparison import Comparison
from qkv.system.errors import UserError, nearest

EXAMPLES = """\
qkv schema > recipe.schema.json
qkv schema model > model.schema.json
qkv schema comparison > comparison.schema.json

Then, as the first line of a recipe:
# yaml-language-server: $schema=recipe.schema.json
"""

_TOPS = {"recipe": Recipe, "model": Model, "comparison": Comparison}


def schema_command(
    of: Annotated[
        str, typer.Argument(metavar="recipe|model|comparison", help="Kind of file that the schema describes.")
    ] = "recipe",
) -> None:
    """Print a JSON schema that lets editors complete and check YAML files."""
    if of not in _TOPS:
        raise UserError(f"there is no schema {of!r}; {nearest(of, _TOPS)}")
    typer.echo(json.dumps(json_schema(_TOPS[of]), indent=2, ensure_ascii=False))
