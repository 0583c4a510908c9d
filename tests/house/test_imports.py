"""Imports go one way. The whole import graph is read from the source, lazy and type-checking imports included."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.house.source import PACKAGE, Source, dotted_name, on_every, package, walked

import qkv

BELOW_MODELS = ("system", "spec", "ops", "state", "parallel", "layers", "mixers", "frontends")
BELOW_TASKS = (*BELOW_MODELS, "models", "tokenizers", "data")
BELOW_RUNS = (*BELOW_TASKS, "tasks", "generation", "costs", "interop", "report")
BELOW_CHOOSING = (*BELOW_RUNS, "runs")
BELOW_TRAINING = (*BELOW_CHOOSING, "lens", "choosing")

ALLOWED: dict[str, tuple[str, ...]] = {
    "spec": (),
    "system": (),
    "ops": ("system",),
    "state": (),
    "report": (),
    "layers": ("spec", "ops", "state"),
    "frontends": ("spec", "ops", "state", "layers"),
    "mixers": ("spec", "ops", "state", "layers"),
    "models": BELOW_MODELS,
    "tokenizers": ("spec",),
    "data": ("system", "spec", "tokenizers", "layers", "models"),
    "tasks": (*BELOW_TASKS, "generation", "report"),
    "generation": BELOW_TASKS,
    "costs": (*BELOW_TASKS, "report"),
    "interop": BELOW_TASKS,
    "runs": BELOW_RUNS,
    "lens": BELOW_CHOOSING,
    "theory": (*BELOW_CHOOSING, "lens"),
    "choosing": BELOW_CHOOSING,
    "training": BELOW_TRAINING,
    "parallel": ("system", "spec", "ops", "state", "layers"),
    "comparison": (*BELOW_TRAINING, "training"),
    "serving": (*BELOW_TRAINING, "training"),
    "api": (*BELOW_TRAINING, "training", "comparison"),
    "cli": (*BELOW_TRAINING, "theory", "training", "comparison", "serving", "api"),
    "": (*BELOW_TRAINING, "training", "api"),
}
"""Which rooms a room may import besides itself; "" is the public surface, the files directly in ``qkv``."""

FOR_ALL = ("qkv.system.errors", "qkv.system.files")
"""Modules that any room may import: the one error that bad input raises, and atomic writing."""


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all imports anywhere in ``tree``, by statement or by ``import_module`` of a literal."""
    for node in walked(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "." * node.level + (node.module or "")
            else:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and dotted_name(node.func) in (
            "importlib.import_module",
            "import_module",
            "__import__",
        ):
            yield from (
                arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            )


def room_of(module: str) -> str:
    """``"ops"`` for ``qkv.ops.attention.reference``, "" for what stands directly in ``qkv``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else ""


def wrong_imports(room: str, tree: ast.AST) -> list[str]:
    allowed = (room, *ALLOWED[room])
    names = list(imported(tree))
    wrong = [name for name in names if name.startswith(".")]
    own = [name for name in names if name.split(".")[0] == "qkv" and not name.startswith(FOR_ALL)]
    return wrong + [name for name in own if room_of(name) not in allowed]


def room_of_file(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    if parts == ("__main__.py",):
        return "cli"
    return parts[0] if len(parts) > 1 else ""


def test_every_room_is_in_the_table() -> None:
    rooms = {room_of_file(source.path) for source in package()}
    assert rooms <= ALLOWED.keys()


@on_every(package())
def test_imports_go_one_way(source: Source) -> None:
    room = room_of_file(source.path)
    wrong = wrong_imports(room, source.tree)
    assert not wrong, f"{source.name} is in {room or 'the public surface'!r} and may not import {', '.join(wrong)}"


def test_the_table_has_no_circle() -> None:
    for room, below in ALLOWED.items():
        for other in below:
            assert room not in ALLOWED[other], f"{room} and {other} may import each other"


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("ops", "from qkv.state.tree import rows"),
        ("state", "import qkv.spec.model"),
        ("layers", "def f():\n    from qkv.mixers import attention"),
        ("models", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from qkv.training.loop import Loop"),
        ("tasks", "import importlib\nimportlib.import_module('qkv.cli.main')"),
        ("spec", "from qkv import build"),
        ("mixers", "from ..ops import masks"),
    ],
)
def test_a_wrong_import_is_seen(room: str, line: str) -> None:
    assert wrong_imports(room, ast.parse(line))


@on_every([s for s in package() if s.path.name == "__init__.py"])
def test_rooms_have_an_empty_init(source: Source) -> None:
    public = source.path.parent == PACKAGE
    assert public or not source.text.strip(), f"{source.name} must stay empty, so that importing a room costs nothing"


DOORS = {
    "chat": "qkv.runs.chats.chat.open_model",  # the model of the function, kept for all answers of a chat
    "cost": "qkv.api.models.find_model",  # is called by qkv.cost too; the command measures the machine in between
    "explain": "qkv.cli.shared.why_words.tell_why",  # calls qkv.explain, after the equations of the forward pass
    "load": "qkv.interop.load.load_published",  # the command shows what a checkpoint contains
}
"""Command -> what it calls in place of the public function of its name."""


def test_a_command_calls_the_public_function_of_its_name() -> None:
    """So that both have one plan; a command may add what only a terminal has, such as progress and streamed text."""
    files = {source.path.stem: source for source in package() if room_of_file(source.path) == "cli"}
    names = files.keys() & qkv._HOMES.keys()
    assert len(names) > 12
    doors = {name: DOORS.get(name, f"{qkv._HOMES[name]}.{name}") for name in names}
    wrong = {name: door for name, door in doors.items() if door not in imported(files[name].tree)}
    assert not wrong, f"commands that do not import the function of their name: {wrong}"


def test_specs_are_read_without_torch() -> None:
    files = sorted((PACKAGE / "spec").rglob("*.py"))
    modules = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files]
    code = f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\nsys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or "torch was imported"
