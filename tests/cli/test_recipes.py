"""``qkv recipes``, and recipes found by name."""

from __future__ import annotations

import fnmatch
import json
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import RECIPE, Call

from qkv.api.recipes import find_recipe, is_text
from qkv.data.corpora.named import NAMES
from qkv.data.records.named import TABLES
from qkv.models.families.presets import PRESETS
from qkv.spec.files.shipped import shipped
from qkv.spec.files.yaml_io import read_recipe
from qkv.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def test_every_recipe_is_listed_with_what_is_recorded(qkv: Call) -> None:
    lines = {line.split()[0]: line for line in qkv("recipes").out.splitlines() if line}
    listed = [json.loads(line) for line in qkv("recipes", "--json").out.splitlines()]
    assert [found["name"] for found in listed] == sorted(shipped())
    for found in listed:
        result = read_recipe(shipped()[found["name"]]).result
        figures = {**found["figures"]}
        assert figures
        assert found["data"] in lines[found["name"]] or found["data"] == "nothing"
        for path, value in figures.items():
            split, name = path.split(".")
            assert found["typed"] or (result and result.figures[split][name].mean == value)


def test_one_recipe_is_printed_as_its_file(qkv: Call) -> None:
    assert qkv("recipes", "sorting").out == shipped()["sorting"].read_text(encoding="utf-8")
    refused = qkv("recipes", "sortin")
    assert (refused.code, refused.out) == (2, "")
    assert "did you mean 'sorting'?" in refused.err


def test_a_name_is_a_recipe_unless_something_local_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, folder = find_recipe("sorting", ["training.steps=7"], quick=True)
    assert (recipe.name, recipe.training.steps, folder) == ("sorting", 7, Path("runs/sorting-quick"))
    local = RECIPE.replace("SOURCE", "text.txt")
    assert not is_text("sorting")
    Path("sorting").write_text("a text of my own")
    assert is_text("sorting")
    Path("sorting").unlink()
    Path("sorting").mkdir()
    Path("sorting/spec.yaml").write_text(local)
    assert find_recipe("sorting")[0].name == "tiny"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("sst2_clasifier", "did you mean 'sst2_classifier'?"),
        ("recipes/sorting.yaml", "a recipe 'sorting' ships with qkv"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(
    name: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        find_recipe(name)
    assert advice in str(refused.value)


def test_cost_accepts_a_name(qkv: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert json.loads(qkv("cost", "sorting", "--json").out)["spec"] == "sorting"
    assert "did you mean 'sorting'?" in qkv("cost", "sortin").err


def test_a_name_means_one_thing() -> None:
    assert not set(shipped()) & {*NAMES, *TABLES, *PRESETS}


def test_the_wheel_contains_the_recipes() -> None:
    """The wheel holds every file of the package folder that git does not ignore."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    ignored = (ROOT / ".gitignore").read_text().split()
    assert wheel == {"packages": ["src/qkv"]}
    assert len(shipped()) >= 20
    for path in shipped().values():
        inside = path.relative_to(ROOT / "src" / "qkv")
        assert not [rule for part in inside.parts for rule in ignored if fnmatch.fnmatch(part, rule.strip("/"))]
    assert not list((ROOT / "recipes").glob("*.yaml")), (
        "recipes belong to src/qkv/recipes, where the package finds them"
    )
