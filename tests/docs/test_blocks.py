"""Execution of every code block of every page, in order, in a folder with a sample text and tables.

``yaml`` is written to the file named in its first line and read. ``python`` blocks of a page share a namespace. In
``bash``, lines with ``qkv`` are executed and lines with ``make`` must name targets; a server, ``qkv serve … &``, runs
until the end of the page, and ``curl`` asks it. Training is shortened to two steps
of two rows. Blocks of output name every metric that the same verb prints in such a run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from making.outputs import shown
from PIL import Image
from tests.cli.tables import write_tables
from tests.docs.blocks import PAGES, ROOT, Block, blocks

from qkv.cli.main import main
from qkv.costs.measuring.machine import Machine, store_machine
from qkv.spec.files.overrides import override
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.comparison import read_comparison
from qkv.system.processor import processor_name
from qkv.training import loop
from qkv.training.watch import results

pytestmark = pytest.mark.slow

TEXT = (
    "Once upon a time there was a model that read a text, and then it wrote one. "
    "It was not long, and it was not true.\n" * 60
)
SHORT = (
    "candidates={}",  # no heats
    "training.steps=2",
    "training.batch_size=2",
    "training.validation.every=2",
    "training.validation.batches=1",
    "sample.max_new_tokens=2",
)
# Languages without code to run: output and Sphinx directives.
SHOWN = ("text", "{toctree}", "{include}", "{eval-rst}", "{raw}")
ELSEWHERE = ("pip install", ".ci/run")
WITH_CODE = [page for page in PAGES if any(block.language not in SHOWN for block in blocks(page))]


SERVERS: list[subprocess.Popen[str]] = []
"""Servers that the page has started."""


@pytest.fixture
def servers() -> Iterator[None]:
    """Servers of a page end with it."""
    yield
    while SERVERS:
        with SERVERS.pop() as served:
            served.terminate()
            assert served.wait(60) == 0


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with a sample text and tables, a cache, and shortened training."""
    train = loop.train

    def short(recipe: Recipe, *args: Any, **kwargs: Any) -> Any:
        return train(override(recipe, SHORT), *args, **kwargs)

    def shortened(*args: Any, **kwargs: Any) -> Recipe:
        return override(read_recipe(*args, **kwargs), SHORT)

    monkeypatch.setattr(loop, "train", short)
    monkeypatch.setattr(results, "read_recipe", shortened)
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    store_machine(Machine(processor_name(), {"fp32": 4e11}, bandwidth=4e10, call=1e-5))
    monkeypatch.setenv("QKV_DEBUG", "1")
    folder = tmp_path / "reader"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "my.txt").write_text(TEXT, encoding="utf-8")
    write_tables(folder)
    write_signals(folder)
    return folder


def write_signals(folder: Path) -> None:
    """A folder of images, and a table of sales by day."""
    for number in range(12):
        place = folder / "photos" / ("dark" if number % 2 else "bright")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 12), (20 * number, 10, 10)).save(place / f"{number}.png")
    days = (date(2024, 1, 1) + timedelta(i) for i in range(300))
    rows = [f"{day.isoformat()},{100 + 10 * (i % 7)}" for i, day in enumerate(days)]
    (folder / "sales.csv").write_text("\n".join(["date,amount", *rows]), encoding="utf-8")


def run_yaml(block: Block, _: dict[str, Any]) -> None:
    assert block.file, f"{block.where}: a YAML block begins with its file's name, such as '# recipe.yaml'"
    Path(block.file).write_text(block.text, encoding="utf-8")
    (read_comparison if "\nentries:" in block.text else read_recipe)(block.file)


def run_python(block: Block, names: dict[str, Any]) -> None:
    exec(compile(block.text, block.where, "exec"), names)


def start_server(words: list[str]) -> None:
    """Start a server in a process, and wait until it serves."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", *words]
    SERVERS.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    said = SERVERS[-1].stdout
    assert said is not None
    assert any(line.startswith("serving at") for line in said), shlex.join(words)


def run_bash(block: Block, _: dict[str, Any]) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if words[-1] == "&":
            start_server(words[:-1])
        elif words[0] == "curl":
            if shutil.which("curl"):
                done = subprocess.run([*words, "--silent", "--fail"], check=False, capture_output=True, text=True)
                assert done.returncode == 0, f"{block.where}: {line}"
        elif words[0] == "qkv":
            assert main(words[1:]) == 0, f"{block.where}: {line}"
        elif words[0] == "make":
            assert words[1] in make_targets(), f"{block.where}: there is no target {words[1]!r}"
        else:
            assert line.startswith(ELSEWHERE), f"{block.where}: it is not known how to try {line!r}"


RUN = {"yaml": run_yaml, "python": run_python, "bash": run_bash}


def make_targets() -> list[str]:
    return re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.relative_to(ROOT).as_posix())
@pytest.mark.usefixtures("reader", "servers")
def test_page(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    printed: list[tuple[str, str]] = []
    for block in blocks(page):
        assert block.language in RUN or block.language in SHOWN, (
            f"{block.where}: a block in {block.language or 'no language'!r}"
        )
        lines = block.text.splitlines() if block.language == "bash" else [block.text]
        for text in lines if block.language in RUN else ():
            RUN[block.language](replace(block, text=text), names)
            printed.append((text, capsys.readouterr().out))
    for verb in dict.fromkeys(block.command.partition(" --")[0] for block in shown(page.read_text("utf-8"))):
        on_page = rows("\n".join(b.text for b in shown(page.read_text("utf-8")) if b.command.startswith(verb)))
        now = rows("\n".join(out for text, out in printed if verb in text))
        for table in on_page.keys() & now.keys():
            assert now[table] <= on_page[table], f"make outputs ARGS={page.relative_to(ROOT)} writes the output anew"


def rows(printed: str) -> dict[str, set[str]]:
    """First cells of the tables of metrics and of quantities, by the name of the first column."""
    tables: dict[str, set[str]] = {}
    for name, lines in re.findall(r"^(metric|quantity) .*\n((?:.+\n)*)", printed, re.MULTILINE):
        tables.setdefault(name, set()).update(re.split(" {2,}", line)[0] for line in lines.splitlines())
    return tables
