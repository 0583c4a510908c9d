"""Several processes of one command: one that dies or hangs ends all, and the run goes on from its last checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.parallel.test_several import STEPS, recipe_of
from tests.training.kill_storm import differences

from qkv.parallel import launch, meeting
from qkv.parallel.meeting import LOST, MEETING, LostContactError, in_contact, joined, rank_of_process, report_failure
from qkv.runs.storage.checkpoint import CheckpointStore
from qkv.spec.files.yaml_io import write_spec
from qkv.system import device
from qkv.system.errors import UserError
from qkv.system.world import ALONE

FAULTS = Path(__file__).with_name("faults.py")


class Process:
    """Process that has ended with ``code``; None: it goes on."""

    def __init__(self, code: int | None):
        self.code = code

    def poll(self) -> int | None:
        return self.code


def outcome(folder: Path, *codes: int | None, sentences: dict[int, str] | None = None) -> tuple[int, str]:
    for rank, sentence in (sentences or {}).items():
        (folder / f"failure-{rank}").write_text(sentence)
    return launch._outcome(cast("Any", [Process(code) for code in codes]), folder)


def test_the_cause_is_named_and_not_those_that_lost_contact(tmp_path: Path) -> None:
    sentences = {0: "lost contact", 1: "the disk is full", 2: "lost contact"}
    assert outcome(tmp_path, LOST, 2, LOST, sentences=sentences) == (2, "process 1 of 3: the disk is full")


@pytest.mark.parametrize(
    ("codes", "code", "sentence"),
    [
        ((0, 0), 0, ""),
        ((LOST, -signal.SIGKILL), 1, "process 1 of 2 was ended by SIGKILL, and all were ended"),
        ((LOST, None, None), 1, "processes 1, 2 of 3 did not answer"),
        ((None, LOST), 1, "process 0 of 2 did not answer"),
        ((LOST, LOST), LOST, ""),
        ((1, None), 1, ""),
    ],
)
def test_every_end_has_a_code_and_a_sentence(
    codes: tuple[int | None, ...], code: int, sentence: str, tmp_path: Path
) -> None:
    result = outcome(tmp_path, *codes)
    assert result[0] == code
    assert result[1].startswith(sentence)


def test_one_sentence_of_all_processes_is_said_once(tmp_path: Path) -> None:
    stopped = 128 + signal.SIGTERM
    sentences = {rank: "stopped by SIGTERM after step 3" for rank in range(2)}
    assert outcome(tmp_path, stopped, stopped, sentences=sentences) == (stopped, sentences[0])


def test_a_process_leaves_its_sentence_for_the_one_that_started_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert report_failure("no") == "no"
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert rank_of_process() == (1, 3)
    assert report_failure("no") == "process 1 of 3: no"
    monkeypatch.setenv(MEETING, str(tmp_path))
    assert report_failure("no") == ""
    assert outcome(tmp_path, LOST, 2, LOST) == (2, "process 1 of 3: no")


def test_threads_are_divided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert [launch.environment(2, count, tmp_path)["OMP_NUM_THREADS"] for count in (3, 8, 9)] == ["2", "1", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert launch.environment(2, 3, tmp_path)["OMP_NUM_THREADS"] == "5"


def test_errors_of_exchanges_are_told_from_others() -> None:
    with pytest.raises(LostContactError) as lost, in_contact():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9")
    assert lost.value.code == LOST
    with pytest.raises(RuntimeError, match="shapes"), in_contact():
        raise RuntimeError("shapes cannot be multiplied")


def test_without_others_a_process_trains_alone() -> None:
    with joined(1) as world:
        assert world is ALONE


def test_each_process_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = list[int]()
    monkeypatch.setattr(device, "training_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert meeting._takes_gpu()
    assert chosen == [1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="process 2 of this machine has no GPU, because there are 2"):
        meeting._takes_gpu()
    monkeypatch.setattr(device, "training_device", lambda: torch.device("cpu"))
    assert not meeting._takes_gpu()


def command(text: Path, folder: Path, *options: str, **training: Any) -> list[str]:
    """Command that trains a run in ``folder``, with a checkpoint after every second step."""
    checkpoints = {"every": 2, "seconds": None, "keep": 8}
    recipe = recipe_of(text, optimizer="muon(lr=0.02)", checkpoints=checkpoints, **training)
    write_spec(folder / "recipe.yaml", recipe)
    typed = ["train", str(folder / "recipe.yaml"), "--out", str(folder / "run"), *options]
    return [sys.executable, "-m", "qkv", "--import", str(FAULTS), *typed]


def ran(line: list[str], fault: str = "") -> tuple[int, str, float]:
    """Run a command; return (exit code, what it wrote to standard error, seconds)."""
    environment = os.environ | {"QKV_WITHOUT": "native"} | ({"FAULT": fault} if fault else {})
    began = time.monotonic()
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stderr, time.monotonic() - began


def steps_of(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in CheckpointStore(folder / "run" / "resume").paths())


def test_one_process_loads_nothing_of_several(text: Path, tmp_path: Path) -> None:
    typed = command(text, tmp_path, "training.steps=1")[5:]
    code = (
        "import sys, torch; from qkv.cli.main import main; "
        f"main({typed!r}); "
        "loaded = sys.modules.keys() & {'qkv.parallel.launch', 'qkv.training.steps.sharded'}; "
        "sys.exit(str((sorted(loaded), torch.distributed.is_initialized())))"
    )
    status, said, _ = ran([sys.executable, "-c", code])
    assert said.endswith("([], False)\n"), said
    assert status == 1


@pytest.fixture(scope="module")
def undisturbed(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of two processes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, said, _ = ran(command(text, folder, "--nproc", "2"))
    assert code == 0, said
    return folder / "run"


@pytest.mark.slow
def test_after_a_kill_the_run_goes_on_bit_for_bit(text: Path, undisturbed: Path, tmp_path: Path) -> None:
    line = command(text, tmp_path, "--nproc", "2")
    code, said, _ = ran(line, "kill 1 6")
    assert code == 1
    assert "process 1 of 2 was ended by SIGKILL" in said
    assert steps_of(tmp_path) == [2, 4]
    assert ran(line)[0] == 0
    assert differences(tmp_path / "run", undisturbed) == []


@pytest.mark.slow
def test_an_error_ends_all_with_its_message(text: Path, tmp_path: Path) -> None:
    code, said, _ = ran(command(text, tmp_path, "--nproc", "2"), "raise 1 4")
    assert code == 2
    assert "process 1 of 2: " in said
    assert "faults.py" in said
    assert "KeyError: 'a fault of this process'" in said
    assert said.count("qkv: ") == 1


@pytest.mark.slow
def test_a_process_that_hangs_ends_all_in_time(text: Path, tmp_path: Path) -> None:
    code, said, seconds = ran(command(text, tmp_path, "--nproc", "2", "--timeout", "5"), "hang 0 3")
    assert code == 1
    assert "process 0 of 2 did not answer" in said
    assert seconds < 5 + launch.GRACE + 60  # the start and the steps before it
    assert steps_of(tmp_path) == [2]


@pytest.mark.slow
def test_a_signal_to_one_stops_all_and_fewer_processes_go_on(text: Path, tmp_path: Path) -> None:
    line = command(text, tmp_path)
    code, said, _ = ran([*line, "--nproc", "3"], "stop 2 3")
    assert code == 128 + signal.SIGTERM
    assert said.count("stopped by SIGTERM after step 3") >= 1
    assert steps_of(tmp_path)[-1] == 3
    assert ran(line)[0] == 0
    assert steps_of(tmp_path)[-1] == STEPS


@pytest.mark.slow
def test_torchrun_starts_the_same_run(text: Path, undisturbed: Path, tmp_path: Path) -> None:
    typed = command(text, tmp_path)[1:]
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    code, said, _ = ran([*starter, *typed])
    assert code == 0, said
    assert differences(tmp_path / "run", undisturbed) == []
