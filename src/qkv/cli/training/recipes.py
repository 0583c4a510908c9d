"""Command ``qkv recipes``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.spec.recipe import Recipe

EXAMPLES = """\
qkv recipes
qkv train sst2_classifier
qkv recipes sst2_classifier > mine.yaml
"""
_COLUMNS = ("recipe", "data", "result", "reference", "training", "description")


def recipes_command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A recipe, to print its file; default: list all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per recipe.")] = False,
) -> None:
    """List the recipes that ship with qkv, with data, recorded result and training time, and the comparisons; or print
    one of them.
    """
    from qkv.spec.files.shipped import shipped, shipped_comparisons
    from qkv.spec.files.yaml_io import read_recipe

    recipe_files, files = shipped(), {**shipped(), **shipped_comparisons()}
    if name is not None and name not in (recipe_files if as_json else files):
        raise UserError(f"no recipe {name!r} ships with qkv; {nearest(name, files)}")
    if name is not None and not as_json:
        typer.echo(files[name].read_text(encoding="utf-8"), nl=False)
        return
    recipes = {key: read_recipe(path) for key, path in recipe_files.items() if name in (None, key)}
    if as_json:
        for recipe in recipes.values():
            typer.echo(json.dumps(_plain(recipe), ensure_ascii=False))
        return
    from qkv.report.table import print_table

    print_table("", _COLUMNS, [_row(recipe) for recipe in recipes.values()])
    typer.echo()
    print_table("comparisons", ("comparison", "recipe", "entries"), list(map(_compared, shipped_comparisons())))
    typer.echo(
        "\ntrain a recipe: qkv train NAME   (--quick: its short form)\nrun a comparison: qkv compare NAME\n"
        "copy a recipe to change it: qkv recipes NAME > mine.yaml"
    )


def _compared(name: str) -> tuple[str, ...]:
    """Build the table row of one comparison."""
    from qkv.spec.files.shipped import COMPARISONS
    from qkv.spec.recipes.comparison import read_comparison

    comparison = read_comparison(COMPARISONS / f"{name}.yaml")
    return name, comparison.recipe, ", ".join(comparison.entries)


def _plain(recipe: Recipe) -> dict[str, Any]:
    """Convert one recipe to plain data for ``--json``; "figures": metric path -> value."""
    reached = recipe.reached
    figures = {path: value for path, value, _ in reached.figures} if reached else {}
    return {
        "name": recipe.name,
        "description": recipe.description,
        "data": recipe.data.source,
        "task": recipe.task.kind,
        "figures": figures,
        "minutes": reached.minutes if reached else None,
        "seeds": list(reached.seeds) if reached else [],
        "date": reached.date if reached else None,
        "typed": reached.typed if reached else False,
    }


def _row(recipe: Recipe) -> tuple[str, ...]:
    """Build the table row of one recipe, with its first recorded metric and published values of that metric."""
    from qkv.report.evaluation import words
    from qkv.report.figures import duration, fixed

    reached = recipe.reached
    result = reference = minutes = ""
    if reached and reached.figures:
        path, value, _ = reached.figures[0]
        split, _, metric = path.partition(".")
        result = f"{fixed(value)} {words(metric)}, {split}"
        reference = "; ".join(fixed(other.value) for other in recipe.published if other.figure == path)
    if reached and reached.minutes:
        minutes = duration(60 * reached.minutes)
    data = "generated" if recipe.task.reads == "nothing" else recipe.data.source
    return recipe.name, data, result, reference, minutes, recipe.description
