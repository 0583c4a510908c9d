"""Checks of what pages state: links, kinds of parts, packages, commands, versions, names of tests."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from tests.docs.blocks import PAGES, ROOT
from tests.house.test_imports import ALLOWED
from tests.inventory import assert_lists

from qkv.cli.main import COMMANDS
from qkv.spec.base import Part
from qkv.spec.branches import Branch
from qkv.spec.data import Batching
from qkv.spec.heads import Head
from qkv.spec.masks import Mask
from qkv.spec.mixers.linear_attention import FeatureMap
from qkv.spec.model import Block, Frontend
from qkv.spec.models.adapt import Adapt
from qkv.spec.models.merges import Merge
from qkv.spec.models.quantizers import Quantizer
from qkv.spec.models.segmentation import Segmentation
from qkv.spec.parts import Activation, Norm, Positions, Relative, Residual, RopeScaling
from qkv.spec.position_wise.experts import Balance
from qkv.spec.recipes.preference_tasks import PreferenceLoss
from qkv.spec.tasks import Noise, Task
from qkv.spec.tokenizers import Tokenizer
from qkv.spec.training import Optimizer, Schedule


def own(slot: type[Part]) -> set[str]:
    """Kinds defined in the package."""
    return {kind for kind, part in slot.kinds().items() if part.__module__.startswith("qkv.")}


MIXERS = {kind for kind in own(Branch) if Branch.kinds()[kind]().mixes}
MEMORY = {kind for kind in own(Branch) if Branch.kinds()[kind]().reads_memory}
KINDS: dict[str, set[str]] = {
    "Mixers": MIXERS,
    "Reading an encoder": MEMORY,
    "Feed-forward": own(Branch) - MIXERS - MEMORY,
    "Balance of experts": own(Balance),
    "Feature maps": own(FeatureMap),
    "Masks": own(Mask),
    "Positions": own(Positions),
    "Relative positions": own(Relative),
    "RoPE scaling": own(RopeScaling),
    "Norms": own(Norm),
    "Orders": set(get_args(Block.model_fields["order"].annotation)),
    "Residuals": own(Residual),
    "Segmentation": own(Segmentation),
    "Merges": own(Merge),
    "Heads": own(Head),
    "Quantizers": own(Quantizer),
    "Front ends": own(Frontend),
    "Tokenizers": own(Tokenizer),
    "Batching": own(Batching),
    "Tasks": own(Task),
    "Preference losses": own(PreferenceLoss),
    "Noises": own(Noise),
    "Optimisers": own(Optimizer),
    "Schedules": own(Schedule),
}
"""Kinds by the heading under which pages list them."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[str]:
    yield from re.findall(r"\]\(([^)\s]+)\)", prose(page))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*/README.md")], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{named(page)}: {link}"


@pytest.mark.parametrize("heading", KINDS)
def test_the_page_of_parts_lists_what_there_is(heading: str) -> None:
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", read("docs/parts.md"), re.MULTILINE | re.DOTALL)
    assert section is not None
    first_column = re.findall(r"^(?:### |\| )`(\w+)`", section[1], re.MULTILINE)
    assert_lists(f"docs/parts.md, {heading}", first_column, KINDS[heading])
    assert len(first_column) == len(KINDS[heading]), "a kind has two rows"


def test_the_page_of_parts_names_every_activation() -> None:
    assert re.search("Activations: (.*)\\.", read("docs/parts.md"))[1].replace("`", "").split(", ") == list(
        get_args(Activation)
    )  # type: ignore[index]


@pytest.mark.parametrize("heading", KINDS)
def test_the_readme_lists_what_there_is(heading: str) -> None:
    name = heading if heading.startswith("RoPE") else heading[0].lower() + heading[1:]
    row = re.search(rf"^\| {name} \| (.*) \|$", read("README.md"), re.MULTILINE)
    assert row is not None
    listed = re.findall(r"`(\w+)`", row[1])
    assert_lists(f"README.md, row of {name}", listed, KINDS[heading])
    assert len(listed) == len(KINDS[heading]), "a kind is listed twice"


def test_the_architecture_draws_every_room() -> None:
    drawing = re.search(r"```text\n(.*?)```", read("ARCHITECTURE.md"), re.DOTALL)
    assert drawing is not None
    rooms = {path.name for path in (ROOT / "src" / "qkv").iterdir() if (path / "__init__.py").exists()}
    assert rooms <= ALLOWED.keys()
    # The names stand on the left, what they are on the right.
    left = "\n".join(line[:36] for line in drawing[1].splitlines())
    missing = {room for room in rooms if not re.search(rf"\b{room}\b", left)}
    assert not missing


def test_decisions_are_numbered_from_one_without_repeats() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert [int(page.name[:4]) for page in decisions] == list(range(1, len(decisions) + 1))
    for page in decisions:
        assert page.read_text().startswith(f"# {int(page.name[:4])}. "), page.name


def test_the_page_of_recipes_lists_every_way_to_adapt() -> None:
    section = read("docs/recipes.md").split("## Trainable parameters")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == own(Adapt)


def test_the_changelog_knows_the_version_and_every_command() -> None:
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    changelog = read("CHANGELOG.md")
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE)[1] == version  # type: ignore[index]
    assert {
        command for command in COMMANDS if f"`{command}`" not in changelog and f"`qkv {command}`" not in changelog
    } == set()


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", prose(page)):
        assert (ROOT / file).is_file(), f"{named(page)} names {file}"
        assert not name or name in names_in(ROOT / file), f"{named(page)} names {file}::{name}"


def test_every_mistake_is_shown_by_a_test() -> None:
    page = read("docs/mistakes.md")
    said = re.findall(r"^\| (\d+) \|", page, re.MULTILINE)
    shown = re.findall(r"^(\d+)\. `tests/[\w/]+\.py::test_\w+`", page, re.MULTILINE)
    assert len(said) > 8
    assert said == shown


def test_every_target_of_the_makefile_is_described() -> None:
    makefile = read("Makefile")
    listed = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    described = re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE)
    assert listed is not None
    assert sorted(listed[1].split()) == sorted(described)


def test_every_constraint_is_an_exact_version() -> None:
    lines = [line for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w-]+==[\w.]+", line)] == []


def test_what_is_depended_on_is_constrained() -> None:
    project = tomllib.loads(read("pyproject.toml"))
    groups = [
        project["project"]["dependencies"],
        project["build-system"]["requires"],
        *project["dependency-groups"].values(),
    ]
    names = {re.match(r"[\w-]+", wanted)[0].lower() for group in groups for wanted in group}  # type: ignore[index]
    pinned = {line.split("==")[0].lower() for line in read("constraints.txt").splitlines() if "==" in line}
    assert names - pinned == set()


def test_the_page_of_checkpoints_names_every_family() -> None:
    from qkv.interop.registry import families

    page = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    assert families()
    missing = [family.name for family in families() if family.name not in page]
    assert not missing, f"docs/checkpoints.md names no {', '.join(missing)}"
