"""Checkpoints: what was written is read; every kind of damage has its sentence and leaves the good one alone."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qkv.runs.storage.checkpoint import Checkpoint, CheckpointStore, load_weights, read_checkpoint, save_weights
from qkv.runs.storage.files import clear_errors, map_tensors, read_tensors, sums, write_tensors
from qkv.runs.storage.folder import FAILURE, check_succeeded
from qkv.system import files as atomic
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.training import random_state


def a_checkpoint(step: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    weights = {"w": torch.randn(4, 3, generator=generator), "half": torch.randn(5, generator=generator).bfloat16()}
    tensors = {
        "weights": weights,
        "optimizer": {"w/step": torch.tensor(float(step))},
        "random": {"torch": torch.arange(9, dtype=torch.uint8)},
    }
    return Checkpoint(step, tensors, {"best_loss": 1 / 3, "facts": ["a", 2, None]})


def same(a: Checkpoint, b: Checkpoint) -> bool:
    def equal(x: dict[str, Tensor], y: dict[str, Tensor]) -> bool:
        return x.keys() == y.keys() and all(torch.equal(x[k], y[k]) and x[k].dtype == y[k].dtype for k in x)

    return (
        a.step == b.step
        and a.state == b.state
        and all(equal(dict(a.tensors[p]), dict(b.tensors[p])) for p in a.tensors)
    )


@pytest.fixture
def saved(tmp_path: Path) -> CheckpointStore:
    """Two checkpoints, of steps 10 and 20."""
    checkpoints = CheckpointStore(tmp_path / "resume")
    for step in (10, 20):
        checkpoints.save(a_checkpoint(step))
    return checkpoints


def loaded(checkpoints: CheckpointStore) -> tuple[Checkpoint | None, list[str]]:
    notices: list[str] = []
    return checkpoints.load(notices.append), notices


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_what_is_read_is_what_was_written(saved: CheckpointStore) -> None:
    found, notices = loaded(saved)
    assert found is not None
    assert same(found, a_checkpoint(20))
    assert notices == []


def test_equal_checkpoints_are_equal_files(saved: CheckpointStore, tmp_path: Path) -> None:
    other = CheckpointStore(tmp_path / "other")
    other.save(a_checkpoint(20))
    assert tree(other.folder / "step-00000020") == tree(saved.folder / "step-00000020")


def test_only_the_newest_two_stay(saved: CheckpointStore) -> None:
    saved.save(a_checkpoint(30))
    assert [p.name for p in saved.paths()] == ["step-00000030", "step-00000020"]
    assert sorted(p.name for p in saved.folder.iterdir()) == ["step-00000020", "step-00000030"]


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert loaded(CheckpointStore(tmp_path / "nothing")) == (None, [])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(bytes(content))


def make_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"w": 1}))


def make_torch_pickle(path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def take_from_other_step(path: Path) -> None:
    shutil.copy(path.parent.parent / "step-00000010" / path.name, path)


def edit_state(path: Path) -> None:
    path.write_text(path.read_text().replace("0.3333", "0.2222"))


def replace_by_foreign(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(4, 3)}, path)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("weights.safetensors", cut, "is truncated or not a safetensors file"),
    ("weights.safetensors", flip, "was changed after it was written"),
    (
        "weights.safetensors",
        make_pickle,
        "is a pickle under the name of a safetensors file; it could run code, so it was not loaded",
    ),
    ("weights.safetensors", make_torch_pickle, "is a pickle under the name of a safetensors file"),
    ("weights.safetensors", empty, "is empty"),
    ("weights.safetensors", Path.unlink, "is missing"),
    ("weights.safetensors", make_folder, "is a folder, not a safetensors file"),
    ("weights.safetensors", replace_by_foreign, ": its checksum differs from the one stored there"),
    ("optimizer.safetensors", take_from_other_step, ": its checksum differs from the one stored there"),
    ("optimizer.safetensors", cut, "is truncated"),
    ("random.safetensors", flip, "was changed after it was written"),
    ("state.json", edit_state, "was changed after it was written"),
    ("state.json", cut, "is truncated or not the state of a checkpoint"),
    ("state.json", Path.unlink, "is missing"),
]


@pytest.mark.parametrize(("name", "damage", "sentence"), DAMAGE, ids=[f"{n}-{d.__name__}" for n, d, _ in DAMAGE])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    saved: CheckpointStore, name: str, damage: Callable[[Path], object], sentence: str
) -> None:
    newest = saved.paths()[0]
    damage(newest / name)
    with pytest.raises(UserError) as error:
        read_checkpoint(newest)
    assert str(error.value).startswith(str(newest / name))
    assert sentence in str(error.value)
    found, notices = loaded(saved)
    assert found is not None
    assert same(found, a_checkpoint(10))
    assert len(notices) == 1
    assert notices[0] == f"{error.value}; resuming from the previous checkpoint, step 10"
    saved.save(a_checkpoint(20))  # the torn one is replaced
    assert same(read_checkpoint(newest), a_checkpoint(20))


def test_without_a_good_checkpoint_the_error_names_the_newest(saved: CheckpointStore) -> None:
    for path in saved.paths():
        cut(path / "weights.safetensors")
    before = tree(saved.folder)
    with pytest.raises(UserError, match=r"step-00000020/weights\.safetensors is truncated"):
        loaded(saved)
    assert tree(saved.folder) == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("fails_at", range(8))
def test_a_full_disk_at_any_point_leaves_the_good_checkpoint(
    saved: CheckpointStore, monkeypatch: pytest.MonkeyPatch, number: int, fails_at: int
) -> None:
    before, calls, real = tree(saved.folder), 0, os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > fails_at:
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        UserError, match=r"^the checkpoint of step 30 in .* cannot be written: the disk is full; free some space"
    ):
        saved.save(a_checkpoint(30))
    assert tree(saved.folder) == before
    assert all(p.name.startswith("step-") for p in saved.folder.iterdir())


def test_a_real_limit_of_the_system_is_a_sentence_too(saved: CheckpointStore) -> None:
    # The weights are larger than this process may make a file, so the write inside safetensors fails.
    script = """
import resource, sys, torch
from pathlib import Path
from qkv.system.errors import UserError
from qkv.runs.storage.checkpoint import Checkpoint, CheckpointStore
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
tensors = {"weights": {"w": torch.zeros(100_000)}, "optimizer": {}, "random": {}}
try:
    CheckpointStore(Path(sys.argv[1])).save(Checkpoint(30, tensors, {}))
except UserError as error:
    print(error)
"""
    before = tree(saved.folder)
    done = subprocess.run([sys.executable, "-c", script, str(saved.folder)], capture_output=True, text=True, check=True)
    assert "the checkpoint of step 30" in done.stdout
    assert "cannot be written: it exceeds the maximum file size of this file system" in done.stdout
    assert tree(saved.folder) == before
    assert hasattr(resource, "RLIMIT_FSIZE")
    assert hasattr(signal, "SIGXFSZ")


def test_a_read_only_folder_is_a_sentence(saved: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    before = tree(saved.folder)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="the folder is read-only or belongs to another user; name another folder"):
        saved.save(a_checkpoint(30))
    monkeypatch.undo()
    assert tree(saved.folder) == before


def test_a_file_in_the_way_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "resume").write_text("mine")
    with pytest.raises(UserError, match="a file exists where a folder is needed"):
        CheckpointStore(tmp_path / "resume").save(a_checkpoint(1))
    assert (tmp_path / "resume").read_text() == "mine"


def by_hand(content: bytes) -> bytes:
    """The two sums in Python's own integers."""
    words = [int.from_bytes(content[i : i + 8], "little") for i in range(0, len(content), 8)]
    totals = (sum(words), sum(i * word for i, word in enumerate(words, 1)))
    return b"".join((total % (1 << 64)).to_bytes(8, "little") for total in totals)


@pytest.mark.parametrize("count", [0, 5, 8, 1000, 8 * (1 << 16) + 3])
def test_sums_are_those_of_the_bytes(count: int) -> None:
    content = random.Random(count).randbytes(count)
    tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8) if count else torch.empty(0, dtype=torch.uint8)
    assert sums(tensor) == by_hand(content)


def exchange(path: Path) -> None:
    """Two words of 8 bytes in each other's place, which leaves their sum as it was."""
    content = path.read_bytes()
    path.write_bytes(content[:-32] + content[-8:] + content[-24:-8] + content[-32:-24])


@pytest.mark.parametrize("damage", [flip, exchange])
def test_what_is_mapped_is_checked_too(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"w": torch.randn(3, 5, 4)}, {"step": 3})
    tensors, metadata, _ = map_tensors(path)
    assert torch.equal(tensors["w"], read_tensors(path)[0]["w"])
    assert metadata == read_tensors(path)[1]
    damage(path)
    with pytest.raises(UserError, match="its content does not match the checksum inside it"):
        map_tensors(path)


def test_files_of_before_are_checked_by_their_sha_256(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"w": torch.ones(7)}, {"step": 3})
    content, header = load_file(path), json.loads(safe_open(path, "pt").metadata()["qkv"])
    header.pop("sums")
    save_file(content, path, {"qkv": json.dumps(header)})
    assert map_tensors(path)[1] == header
    flip(path)
    with pytest.raises(UserError, match="its content does not match the checksum inside it"):
        map_tensors(path)


def test_what_a_killed_process_left_is_swept(saved: CheckpointStore) -> None:
    half = saved.folder / ".step-00000030.partial"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    found, _ = loaded(saved)
    assert found is not None
    assert found.step == 20
    saved.save(a_checkpoint(30))
    assert not half.exists()


def test_weights_and_model_must_agree(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", nn.Linear(3, 2)
    save_weights(path, model, {"step": 3})
    other = nn.Linear(3, 2)
    tensors, metadata = read_tensors(path)
    load_weights(other, tensors, path)
    assert torch.equal(model.weight, other.weight)
    assert metadata["step"] == 3
    with pytest.raises(
        UserError,
        match=r"the tensor 'weight' has the shape \[2, 3\] in .*model\.safetensors, but \[2, 4\] in the model",
    ):
        load_weights(nn.Linear(4, 2), tensors, path)
    with pytest.raises(UserError, match=r"lacks the tensor 'bias'"):
        load_weights(model, {"weight": tensors["weight"]}, path)
    with pytest.raises(
        UserError, match=r"holds the tensor 'wieght', which this model does not have; did you mean 'weight'"
    ):
        load_weights(model, {**tensors, "wieght": tensors["weight"]}, path)


def test_a_refused_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    with pytest.raises(UserError):
        load_weights(model, {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}, tmp_path)
    assert torch.equal(model.weight, before)


def test_every_type_and_shape_goes_through_a_file(tmp_path: Path) -> None:
    tensors = {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "nan": torch.tensor([float("nan"), float("-inf"), -0.0]),
    }
    write_tensors(tmp_path / "a.safetensors", tensors, {"x": "é"})
    back, metadata = read_tensors(tmp_path / "a.safetensors")
    assert metadata["x"] == "é"
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert (
            back[name].contiguous().numpy(force=True).tobytes() == tensor.contiguous().numpy(force=True).tobytes()
            if name != "half"
            else True
        )
        torch.testing.assert_close(back[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_a_file_of_another_program_is_read_without_a_checksum(tmp_path: Path) -> None:
    replace_by_foreign(tmp_path / "a.safetensors")
    tensors, metadata = read_tensors(tmp_path / "a.safetensors")
    assert tensors["w"].shape == (4, 3)
    assert metadata == {}


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_file(path, b"old")
    monkeypatch.setattr(atomic, "sync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(UserError, match=r"^a\.json cannot be written: Input/output error$"), clear_errors("a.json"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_the_random_state_comes_back_bit_for_bit() -> None:
    def draw() -> tuple[list[float], list[float], list[float]]:
        numbers = [random.gauss(0, 1) for _ in range(3)]
        return numbers, np.random.standard_normal(3).tolist(), torch.randn(3).tolist()

    random.gauss(0, 1)  # leaves a spare value behind, which is part of the state
    np.random.standard_normal()
    state = random_state.capture()
    first = draw()
    assert draw() != first
    random_state.restore(state)
    assert draw() == first


def test_the_random_state_fits_a_checkpoint(tmp_path: Path) -> None:
    state = random_state.capture()
    write_tensors(tmp_path / "random.safetensors", state, {})
    expected = torch.randn(3)
    random_state.restore(read_tensors(tmp_path / "random.safetensors")[0])
    assert torch.equal(torch.randn(3), expected)


def test_a_steps_seed_depends_on_seed_and_step_alone() -> None:
    def draw(seed: int, step: int) -> list[float]:
        random_state.seed_step(seed, step, torch.device("cpu"))
        return torch.rand(2).tolist()

    assert draw(1, 5) == draw(1, 5)
    assert len({tuple(draw(seed, step)) for seed in range(8) for step in range(8)}) == 64
    assert len({random_state.mix(seed, step) for seed in range(50) for step in range(50)}) == 2500


def test_the_state_file_is_readable_json(saved: CheckpointStore) -> None:
    stored = json.loads((saved.paths()[0] / "state.json").read_text())
    assert stored["content"]["step"] == 20


def test_a_run_that_failed_is_not_loaded(tmp_path: Path) -> None:
    check_succeeded(tmp_path)
    (tmp_path / FAILURE).write_text("KeyError: 'a'\n")
    with pytest.raises(UserError, match=r"the training of .* failed \(KeyError: 'a'\); train it again"):
        check_succeeded(tmp_path)
