"""``--import``: parts of one's own in files of their own, used by every command, in this process and in others."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import TEXT, Call

import qkv as library
from qkv.spec import register
from qkv.spec.base import Part
from qkv.spec.branches import Branch
from qkv.spec.extension import imports
from qkv.system.errors import UserError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECIPE = """\
name: own
data: {source: text.txt, tokenizer: characters}
model:
  width: 16
  context_length: 16
  blocks:
    - branches: [leaky_mean(horizon=4), feed_forward]
training: {steps: 2, batch_size: 2, schedule: constant, validation: {every: 1, batches: 1}}
"""


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    """Forget afterwards which parts were imported, as the next process does."""
    forget = _remembered()
    yield
    forget()


def _remembered():  # type: ignore[no-untyped-def]
    kinds = {slot: dict(slot.kinds()) for slot in Part.__subclasses__()}
    registered, modules, path, done = dict(register.PARTS), set(sys.modules), list(sys.path), set(imports._done)

    def forget() -> None:
        for slot, known in kinds.items():
            for kind in slot.kinds().keys() - known.keys():
                if slot.kinds()[kind].__module__.partition(".")[0] != "qkv":
                    del slot.kinds()[kind]
        for part in register.PARTS.keys() - registered.keys():
            if part.__module__.partition(".")[0] != "qkv":
                del register.PARTS[part]
        for name in sys.modules.keys() - modules:
            if name.startswith("my_"):
                del sys.modules[name]
        sys.path[:] = path
        imports._done.clear()
        imports._done.update(done)

    return forget


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a person, with a text, a recipe that names a mixer of their own, and its file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "own.yaml").write_text(RECIPE)
    shutil.copy(EXAMPLES / "your_own_mixer.py", tmp_path / "my_mixer.py")
    return tmp_path


def other_process(*typed: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qkv", *typed],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


def test_a_run_with_a_mixer_of_one_s_own(qkv: Call, here: Path) -> None:
    forget = _remembered()
    done = qkv("train", "own.yaml", "--out", "run", "--import", "my_mixer.py")
    assert done.code == 0, done.err
    assert done.out.endswith(f" --import {here / 'my_mixer.py'}\n")  # of the command to try next
    assert imports.VARIABLE not in os.environ
    digest = hashlib.sha256((here / "my_mixer.py").read_bytes()).hexdigest()
    record = json.loads((here / "run" / "parts.json").read_text())
    assert record == [
        {
            "kind": "leaky_mean",
            "slot": "branch",
            "module": "my_mixer",
            "path": str(here / "my_mixer.py"),
            "sha256": digest,
        }
    ]
    assert "def forward" not in (here / "run" / "parts.json").read_text()
    forget()
    for command in ("evaluate", "generate", "info", "export", "train", "cost"):
        said = qkv(command, "run", *(["hello"] if command == "generate" else []))
        assert said.code == 2, (command, said.out)
        assert said.err == (
            f"qkv: run was trained with the branch 'leaky_mean' of {here / 'my_mixer.py'} (SHA-256 {digest[:12]}…), "
            f"which is not imported; add --import {here / 'my_mixer.py'} to the command, or import it in Python first\n"
        )
    with pytest.raises(UserError, match=r"which is not imported; add --import .*my_mixer\.py"):
        library.load("run")
    resumed = qkv("--import=my_mixer.py", "train", "run", "training.steps=3")
    assert resumed.code == 0, resumed.err
    assert "note: " not in resumed.err
    assert library.load("run").step >= 2  # importing it once is enough in Python

    # A child process gets the variable that --import sets.
    elsewhere = other_process("evaluate", "run", QKV_IMPORT=str(here / "my_mixer.py"))
    assert (elsewhere.returncode, "bits per token" in elsewhere.stdout) == (0, True), elsewhere.stderr


SIGNAL = """
import json
from collections.abc import Sequence

import numpy as np
import torch

from qkv.data.processors.processor import Processor
from qkv.frontends.frontend import Frontend
from qkv.layers.linear.linear import Linear
from qkv.layers.signal import Signal
from qkv.spec.frontends import Frontend as FrontendSpec
from qkv.spec.processors import Processor as ProcessorSpec
from qkv.spec.register import implements
from qkv.spec.processors import Role


class Tracks(ProcessorSpec, kind="tracks"):
    role = Role("track", "signal", ("track",), values="tracks of a pen")


class TrackMap(FrontendSpec, kind="track_map"):
    processor = Tracks


@implements(Tracks)
class TrackProcessor(Processor):
    def fitted(self, values):
        return self.spec

    def encode(self, value):
        return np.array(json.loads(value) if isinstance(value, str) else value, np.float32)

    def signal(self, encoded):
        return Signal(torch.from_numpy(np.stack(encoded)))


@implements(TrackMap)
class TrackFrontend(Frontend):
    def __init__(self, part, stack, width, table=None):
        super().__init__(part, stack)
        self.map = Linear(2, width)

    def forward(self, signal, context):
        return self.map(signal.values)

    def random(self, rows, length, generator):
        return Signal(torch.randn(rows, length, 2, generator=generator))
"""
OF_SIGNAL = """
data: {source: tracks.csv, processor: tracks, columns: {track: pen}}
task: classification
model:
  width: 8
  num_layers: 1
  context_length: 4
  frontend: track_map
  blocks: [{branches: ["attention(1, mask=full)", feed_forward]}]
  head: classification(pooling=mean)
training: {steps: 1, batch_size: 2, schedule: constant, validation: {every: 1}}
"""


def test_a_processor_of_one_s_own_has_options(qkv: Call, here: Path) -> None:
    rows = [f'"[[{i}, 0], [0, {i % 2}]]",{"ab"[i % 2]}' for i in range(40)]
    (here / "tracks.csv").write_text("\n".join(["pen,label", *rows]))
    (here / "my_signal.py").write_text(SIGNAL)
    (here / "signal.yaml").write_text(OF_SIGNAL)
    typed = ("train", "classify", "--data", "tracks.csv", "--track", "pen", "--label", "label")
    assert "there is no option '--track'" in qkv(*typed).err
    said = qkv("train", "classify", "--help", "--import", "my_signal.py")
    assert "--track COLUMN" in said.out
    assert "Column of tracks of a pen." in said.out
    assert "--track" not in qkv("train", "tag", "--help", "--import", "my_signal.py").out
    said = qkv(*typed, "--import", "my_signal.py")  # the option chooses the processor
    assert "no recipe can be chosen automatically for data of the kind 'tracks' yet" in said.err
    assert qkv("train", "signal.yaml", "--out", "run", "--import", "my_signal.py").code == 0
    first = qkv("predict", "run", "--track", "[[0, 0], [0, 1]]", "--import", "my_signal.py")
    assert first == qkv("predict", "run", "--set", "track=[[0, 0], [0, 1]]", "--import", "my_signal.py")
    assert first.code == 0, first.err
    (here / "other.csv").write_text('way\n"[[0, 0], [0, 1]]"\n')
    table = qkv("predict", "run", "--data", "other.csv", "--track", "way", "--import", "my_signal.py")
    assert (table.code, len(table.out.splitlines())) == (0, 2), table.err


def test_the_variable_and_an_installed_package_need_no_option(
    qkv: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget = _remembered()
    monkeypatch.setenv(imports.VARIABLE, str(here / "my_mixer.py"))
    assert qkv("cost", "own.yaml").code == 0
    forget()
    monkeypatch.delenv(imports.VARIABLE)
    assert qkv("cost", "own.yaml").code == 2
    shutil.move(here / "my_mixer.py", here / "my_mixers.py")
    installed(here, "my_mixers", monkeypatch)
    said = qkv("cost", "own.yaml")
    assert (said.code, "leaky mean" in said.out.replace("_", " ")) == (0, True), said.err


def installed(folder: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the package "mine" with an entry point of ``module`` on the path."""
    (folder / "mine-1.0.dist-info").mkdir()
    (folder / "mine-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (folder / "mine-1.0.dist-info" / "entry_points.txt").write_text(f"[qkv.parts]\nmixers = {module}\n")
    monkeypatch.syspath_prepend(str(folder))
    imports._done.discard(imports.GROUP)


@pytest.mark.filterwarnings("default")
def test_a_package_that_cannot_be_imported_is_noted(here: Path, monkeypatch: pytest.MonkeyPatch, qkv: Call) -> None:
    (here / "my_broken.py").write_text("import nothing_of_that_name\n")
    installed(here, "my_broken", monkeypatch)
    said = qkv("cost", "own.yaml")
    assert said.code == 2
    assert "note: the parts of the installed package 'mine' are not available: " in said.err
    assert "my_broken.py:1: ModuleNotFoundError: No module named 'nothing_of_that_name'" in said.err
    assert "there is no branch 'leaky_mean'" in said.err


@pytest.mark.filterwarnings("default")
def test_a_changed_file_is_a_note_until_it_is_accepted(qkv: Call, here: Path) -> None:
    forget = _remembered()
    assert qkv("train", "own.yaml", "--out", "run", "--import", "my_mixer.py").code == 0
    forget()
    with (here / "my_mixer.py").open("a") as file:
        file.write("# a remark\n")
    said = qkv("evaluate", "run", "--import", "my_mixer.py")
    assert said.code == 0
    assert said.err.count("which defines 'leaky_mean', has changed since run was trained (SHA-256 ") == 1
    assert qkv("accept", "run", "--import", "my_mixer.py").code == 0
    assert "which defines" not in qkv("evaluate", "run", "--import", "my_mixer.py").err


BROKEN = {
    "a name": ("import torch\n\nx = torch.nosuch\n", r"my_broken.py:3: AttributeError: module 'torch' has no"),
    "syntax": ("x = 1\ny = (\n", r"my_broken.py:2: SyntaxError: '(' was never closed"),
    "a spec": ("import qkv\nqkv.Model.parse({'widht': 3})\n", "my_broken.py:2: SpecError: widht: unknown key"),
    "the end": ("import sys\nsys.exit(3)\n", "my_broken.py:2: SystemExit: 3"),
    "a taken kind": (
        "from qkv.spec.branches import Branch\nclass Mine(Branch, kind='gru'): ...\n",
        "my_broken.py:2: TypeError: the kind 'gru' is taken by GRU",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_error_in_the_file_is_told_with_its_line(qkv: Call, here: Path, case: str) -> None:
    text, sentence = BROKEN[case]
    (here / "my_broken.py").write_text(text)
    said = qkv("cost", "own.yaml", "--import", "my_broken.py")
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.startswith(f"qkv: {here}")
    assert said.err.count("\n") == 1


def test_an_error_in_the_part_while_it_runs_is_the_part_s(qkv: Call, here: Path) -> None:
    text = (here / "my_mixer.py").read_text()
    wrong = "        a, x = self.rate.sigmoid(), self.input(x)\n"
    assert wrong in text
    (here / "my_mixer.py").write_text(text.replace(wrong, wrong.replace("self.input(x)", "self.input(x[..., 1:])")))
    line = text[: text.index(wrong)].count("\n") + 1
    said = qkv("train", "own.yaml", "--out", "run", "--import", "my_mixer.py")
    assert said.code == 2
    assert f"{here / 'my_mixer.py'}:{line}: RuntimeError: " in said.err
    assert "bug in qkv" not in said.err
    assert "Traceback" not in said.err


REFUSED = {
    "no file": (("--import", "nothing.py"), "--import nothing.py: there is no such file"),
    "no module": (("--import", "my_nothing"), "--import my_nothing: ModuleNotFoundError: No module named 'my_nothing'"),
    "another kind of file": (("--import", "./text.txt"), "--import ./text.txt: a part is imported from a Python file"),
    "a taken name": (("--import", "wave.py"), "the module name 'wave' is taken by"),
    "a dot": (("--import", "my.mixer.py"), "cannot have a dot before '.py'; rename the file"),
    "no name": (("--import",), "--import needs a file or a dotted module"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_imported(qkv: Call, here: Path, case: str) -> None:
    for name in ("wave.py", "my.mixer.py"):
        (here / name).write_text("")
    typed, sentence = REFUSED[case]
    said = qkv("schema", *typed)
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err


def test_a_module_in_a_package_and_what_stands_after_two_dashes(qkv: Call, here: Path) -> None:
    package = here / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    shutil.copy(here / "my_mixer.py", package / "mixers.py")
    assert qkv("cost", "own.yaml", "--import", "my_package.mixers").code == 0
    assert Branch.of_kind("leaky_mean") is not None
    said = qkv("cost", "own.yaml", "--", "--import")
    assert said.code == 2
    assert "--import needs" not in said.err


def test_a_damaged_record_is_refused(qkv: Call, here: Path) -> None:
    (here / "run").mkdir()
    (here / "run" / "spec.yaml").write_text(RECIPE)
    for content in ("{", "{}", '[{"kind": 3}]'):
        (here / "run" / "parts.json").write_text(content)
        said = qkv("cost", "run")
        assert said.code == 2
        assert "run/parts.json" in said.err


def test_a_model_saved_in_python_has_a_record_too(qkv: Call, here: Path) -> None:
    forget = _remembered()
    imports.import_parts("my_mixer.py")
    text = {"kind": "text", "vocab_size": 9}
    blocks = [{"branches": ["leaky_mean"]}]
    model = library.build(library.Model.parse({"width": 8, "num_layers": 1, "frontend": text, "blocks": blocks}))
    library.save(model, here / "saved")
    forget()
    said = qkv("info", "saved")
    assert (said.code, "leaky_mean" in said.err, "--import" in said.err) == (2, True, True)
