"""Reading and writing of recipes and models as YAML or JSON files, without loss."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import yaml

from qkv.spec.base import Spec
from qkv.spec.errors import Problem, SpecError
from qkv.spec.extension.outside import check_outside_parts
from qkv.spec.files.formats import newer, upgraded, upgraded_path
from qkv.spec.files.given import found_in
from qkv.spec.files.overrides import Assignment, assignments, parsed, quick_form
from qkv.spec.files.plain import plain
from qkv.spec.files.reader import Lines, read_json, read_yaml, scalar
from qkv.spec.files.shipped import located, shipped, shipped_comparisons
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError, closest
from qkv.system.files import write_file

MAX_BYTES = 1_000_000


def read_recipe(path: str | Path, overrides: Iterable[str] = (), quick: bool = False) -> Recipe:
    """Read the recipe in a YAML or JSON file, or in a run folder's ``spec.yaml``, and apply dotted ``overrides``.

    The name of a shipped recipe, such as "sst2_classifier", stands for its file if there is no local file of that name.
    ``quick``: apply the recipe's own ``quick`` overrides first. Raises ``UserError`` with file, line, path and one
    sentence.
    """
    data, lines, source = read_content(path)
    if "model" not in data and set(data) & (set(Model.model_fields) - set(Recipe.model_fields)):
        raise SpecError([Problem((), "this file is a model alone; a recipe has the keys 'data' and 'model'")], source)
    chosen = list(assignments(overrides))
    if quick:
        chosen = [*_quick(data, source, lines), *chosen]
    return found_in(Path(source).parent, parsed(Recipe, data, chosen, source, lines))


def read_model(path: str | Path, overrides: Iterable[str] = ()) -> Model:
    """Read the model in a YAML or JSON recipe or model file. Override paths may begin with ``model.`` in both cases."""
    spec = read_spec(path, overrides)
    return spec.model if isinstance(spec, Recipe) else spec


def read_spec(path: str | Path, overrides: Iterable[str] = ()) -> Recipe | Model:
    """Read a recipe or a model from a YAML or JSON file. Override paths may begin with ``model.`` in both cases."""
    data, lines, source = read_content(path)
    chosen = list(assignments(overrides))
    if "model" in data or "data" in data:
        prefixed = [a if a.path[0] in Recipe.model_fields else a.under("model") for a in chosen]
        return parsed(Recipe, data, prefixed, source, lines)
    return parsed(Model, data, [a.below("model") for a in chosen], source, lines)


def dump(spec: Spec) -> str:
    """Format ``spec`` as YAML with all fields; reading it gives an equal spec."""
    text: str = yaml.dump(
        plain(spec), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False
    )
    return text


def dump_json(spec: Spec) -> str:
    """Format ``spec`` as JSON with all fields; reading it gives an equal spec."""
    return json.dumps(plain(spec), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_spec(path: str | Path, spec: Spec) -> None:
    """Write ``spec`` atomically, as JSON if the name ends in ``.json``, else as YAML. Raises ``UserError``."""
    path = Path(path)
    text = dump_json(spec) if path.suffix == ".json" else dump(spec)
    try:
        write_file(path, text)
    except OSError as error:
        raise UserError(f"{path}: the file cannot be written ({error.strerror})") from None


def _quick(data: dict[str, Any], source: str, lines: Lines) -> list[Assignment]:
    values = data.get("quick")
    if not values:
        where = f"{source}:{lines[('quick',)]}" if ("quick",) in lines else source
        raise SpecError(
            [Problem((), "this recipe has no short form; define it by dotted overrides in the key 'quick'")], where
        )
    if not isinstance(values, dict):
        raise SpecError([Problem(("quick",), "the short form is a mapping of dotted paths to values")], source, lines)
    return quick_form(cast("dict[str, Any]", values))


def read_content(path: str | Path) -> tuple[dict[str, Any], Lines, str]:
    """Read a YAML or JSON file, a run folder's spec or a shipped recipe. Raises ``UserError``.

    Returns (plain data, line of every path, file name).
    """
    path = located(path)
    if (path / "spec.yaml").is_file():
        path = path / "spec.yaml"
    source = str(path)
    text = _text(path)
    if path.name == "spec.yaml":
        check_outside_parts(path.parent)
    data, lines = read_json(text, source) if path.suffix == ".json" else read_yaml(text, source)
    if data is None:
        raise SpecError(
            [Problem((), "the file is empty; a recipe has at least the key 'data', a model any of its keys")], source
        )
    if not isinstance(data, dict):
        form = "a list" if isinstance(data, list) else "a single value"
        raise SpecError(
            [
                Problem(
                    (), f"the file holds {form}; a recipe or a model is a mapping of keys such as 'model' or 'width'"
                )
            ],
            source,
        )
    form = cast("dict[str, Any]", data)
    if problems := newer(form):
        raise SpecError(problems, source, lines)
    return upgraded(form), {upgraded_path(place): line for place, line in lines.items()}, source


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file{_near(path)}") from None
    except IsADirectoryError:
        raise UserError(
            f"{path}: this is a folder, but not a run; give a recipe or model file{_specs_in(path)}"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: the file cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(raw) > MAX_BYTES:
        raise UserError(
            f"{path}: the file is larger than {MAX_BYTES // 1000:,} kB, so it is not a recipe or a model"
        ) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8") from None


def _near(path: Path) -> str:
    """Return a clause for an error message: the shipped file of that name, or the most similar file name."""
    for what, files in (("recipe", shipped()), ("comparison", shipped_comparisons())):
        if path.stem in files:
            return f"; a {what} {path.stem!r} ships with qkv: give its name without folder and suffix"
    try:
        names = [entry.name for entry in os.scandir(path.parent)]
    except OSError:
        return f", and no folder {str(path.parent)!r}"
    close = closest(path.name, names)
    return f"; did you mean {str(path.parent / close)!r}?" if close else _specs_in(path.parent)


def _specs_in(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir() if p.suffix in (".yaml", ".yml", ".json"))
    return f"; {str(folder)!r} holds {', '.join(names[:8])}" if names else ""


class _Dumper(yaml.SafeDumper):
    """YAML writer whose output has the same meaning in YAML 1.1 and 1.2: ambiguous text is quoted."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    rows = text.split("\n")
    if len(rows) > 1 and all(row == row.strip() and row.isprintable() for row in rows) and rows[0] and rows[-1]:
        style = "|"
    else:
        style = None if scalar(text) == text and text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)  # pyright: ignore[reportUnknownMemberType]


_Dumper.add_representer(str, _write_text)
