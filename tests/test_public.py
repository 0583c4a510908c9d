"""The public names: which they are, that each is there, and what importing them costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import qkv
from qkv.cli.main import main
from qkv.spec.data import Data
from qkv.spec.model import Text

SMALL = [
    "model.width=16",
    "model.context_length=16",
    "training.steps=3",
    "training.batch_size=2",
    "model.blocks.mixer.num_heads=2",
]


def test_dir_lists_the_public_names() -> None:
    assert dir(qkv) == sorted([*qkv.__all__, "__version__"])
    assert qkv.__version__ == "0.1.0"


@pytest.mark.parametrize("name", qkv.__all__)
def test_each_name_is_there_and_described(name: str) -> None:
    found = getattr(qkv, name)
    assert name == "spec" or found.__doc__
    assert getattr(found, "__name__", "").rsplit(".", 1)[-1] == name


def test_a_checker_of_types_reads_each_name_where_it_is_imported_from() -> None:
    tree = ast.parse(Path(qkv.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [(node.module, alias) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for _, alias in imports)
    assert {alias.name: module for module, alias in imports} == {**qkv._HOMES, "spec": "qkv"}
    assert len(imports) == len(qkv.__all__)
    assert (Path(qkv.__file__).parent / "py.typed").is_file()


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'qkv' has no attribute 'biuld'"):
        qkv.biuld  # noqa: B018


def test_the_parts_of_specs_are_reached_by_attribute() -> None:
    code = "import qkv; print(qkv.spec.masks.Causal() & qkv.spec.masks.Window(size=8), qkv.spec.branches.GRU().kind)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "causal & window(8) gru\n"


def test_importing_brings_no_torch_and_little_else() -> None:
    """How quick it is for that, ``benchmarks/startup.py`` measures."""
    code = "import qkv, sys; qkv.Recipe; qkv.read_recipe; qkv.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = (
        "import qkv, sys; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'pydantic', 'yaml', "
        "'typer')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_text_is_trained_and_written_on_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("a stitch in time saves nine. " * 60)
    run = qkv.train("my.txt", overrides=SMALL)
    assert run.folder == Path("runs") / "my"
    written = qkv.generate(run, "a stitch", max_new_tokens=5, seed=1)
    assert written == qkv.generate("runs/my", "a stitch", max_new_tokens=5, seed=1)
    assert main(["generate", "runs/my", "a stitch", "--max-new-tokens", "5", "--seed", "1"]) == 0
    assert capsys.readouterr().out == f"a stitch{written}\n"
    assert qkv.evaluate(run)["loss"] == qkv.evaluate("runs/my")["loss"]
    assert qkv.load("runs/my").step == run.step


def test_a_recipe_is_trained_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("a stitch in time saves nine. " * 60)
    recipe = qkv.override(qkv.Recipe(name="here", data=Data(source="my.txt"), quick={"training.steps": 1}), SMALL)
    assert qkv.train(recipe).folder == Path("runs") / "here"
    run = qkv.train(recipe, quick=True)
    assert (run.folder, run.recipe.training.steps) == (Path("runs") / "here-quick", 1)
    qkv.write_spec("here.yaml", recipe)
    assert qkv.read_recipe("here.yaml") == recipe
    with pytest.raises(qkv.UserError, match="already holds a run"):
        qkv.train("here.yaml", resume=False)


def test_the_cost_is_that_of_the_recipe() -> None:
    model = qkv.Model(width=32, frontend=Text(vocab_size=50))
    recipe = qkv.Recipe(data=Data(source="x"), model=model, training=qkv.Training(batch_size=3))
    assert qkv.cost(model).parameters == sum(p.numel() for p in qkv.build(model).parameters())
    assert (qkv.cost(recipe).batch_size, qkv.cost(model).batch_size) == (3, 1)
    assert qkv.cost(recipe, batch_size=5, length=7).tokens == 35
