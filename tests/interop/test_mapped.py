"""Mapped checkpoints: what is copied, what never reaches the file, and what is noticed when the file changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.interop.battery import greedy_difference, made, our_words, their_words
from tests.interop.cases.gpt2 import CASES
from tests.interop.folders import TEXT, tiny
from tests.ops.present import needs_native

import qkv
from qkv.cli.main import main
from qkv.interop.files import mapped, safetensors_file
from qkv.interop.files.mapped import MappedFile
from qkv.interop.load import PublishedModel, load_published
from qkv.interop.save import save_published
from qkv.models.build import build
from qkv.models.fast import layout, native_step
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import LanguageModelHead
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, RMSNorm, Rope
from qkv.spec.tokenizers import Characters
from qkv.system.errors import UserError
from qkv.tokenizers.train import train

WEIGHTS = "model.safetensors"
PAGE = mapped.PAGE
needs_joining = pytest.mark.skipif(not mapped.CAN_JOIN, reason="this system maps no part of a file at a given address")


def mapped_names(published: PublishedModel) -> set[str]:
    """The parameters that lie in the file, found by the system's own list of mappings."""
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(".safetensors"):
            spans.append([int(part, 16) for part in line.split()[0].split("-")])
    return {name for name, p in published.model.named_parameters() if any(a <= p.data_ptr() < b for a, b in spans)}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A Llama's folder, as other libraries write it: tensors in the order of their names."""
    branches = (Attention(num_heads=2, bias=False, relative=Rope()), GatedFeedForward(hidden=24))
    blocks = (Block(branches=branches, norm=RMSNorm()),)
    text = Text(vocab_size=40, positions=NoPositions())
    spec = Model(
        width=16,
        num_layers=2,
        context_length=16,
        frontend=text,
        blocks=blocks,
        norm=RMSNorm(),
        head=LanguageModelHead(tied=False),
    )
    save_published(build(spec), tmp_path / "llama")
    return tmp_path / "llama"


def wide(folder: Path) -> Path:
    """The folder of a Llama whose matrices are whole numbers of pages long, two query heads to a key."""
    branches = (Attention(num_heads=2, num_kv_heads=1, bias=False, relative=Rope()), GatedFeedForward(hidden=64))
    text = Text(vocab_size=40, positions=NoPositions())
    blocks = (Block(branches=branches, norm=RMSNorm()),)
    save_published(
        build(Model(width=128, num_layers=2, context_length=16, frontend=text, blocks=blocks, norm=RMSNorm())), folder
    )
    return folder


def gpt2(folder: Path) -> Path:
    """The folder of a GPT-2, whose matrices are stored (in, out)."""
    branches = (Attention(num_heads=2), FeedForward(activation="gelu_tanh"))
    spec = Model(
        width=128, num_layers=2, context_length=16, frontend=Text(vocab_size=40), blocks=(Block(branches=branches),)
    )
    save_published(build(spec), folder)
    return folder


IDS = torch.arange(8)[None]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are read from /proc")
def test_what_lies_in_the_file_as_it_is_here_is_mapped_and_the_rest_is_copied(llama: Path) -> None:
    found = load_published(llama)
    copied = {name for name, _ in found.model.named_parameters()} - mapped_names(found)
    assert copied == {
        f"blocks.{i}.branches.0.body.qkv.weight" for i in range(2)
    }  # k, o, q, v: not beside one another; gate and up are
    assert mapped_names(load_published(llama, dtype="bf16")) == set()
    whole = load_published(llama, copy=True)
    assert mapped_names(whole) == set()
    assert torch.equal(found.model(IDS)[0], whole.model(IDS)[0])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are read from /proc")
@pytest.mark.parametrize("make", [wide, gpt2])
def test_matrices_that_are_joined_or_transposed_are_mapped_too(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    folder = make(tmp_path / "model")
    found, whole = load_published(folder), load_published(folder, copy=True)
    assert mapped_names(found) == {name for name, _ in found.model.named_parameters()}
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), whole.model.parameters(), strict=True))
    assert all(p.is_contiguous() for p in whole.model.parameters())
    assert torch.allclose(found.model(IDS)[0], whole.model(IDS)[0], atol=1e-5)
    save_published(found.model, tmp_path / "again")
    before = load_file(folder / WEIGHTS)
    assert all(torch.equal(before[name], tensor) for name, tensor in load_file(tmp_path / "again" / WEIGHTS).items())


@needs_native
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_published_gpt2_decodes_in_one_call_and_is_saved_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_LEAST", 1)
    pair = made(CASES[0], tmp_path / "theirs")
    assert any(not p.is_contiguous() for p in pair.ours.parameters())
    assert not greedy_difference(pair, our_words(pair), their_words(pair), "row")
    assert native_step._made.get(pair.ours) is not None
    save_published(pair.ours, tmp_path / "again")
    before, after = (load_file(folder / WEIGHTS) for folder in (pair.folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


@needs_joining
@pytest.mark.parametrize("before", [0, 8, PAGE - 4])
def test_pieces_are_joined_in_any_order_wherever_a_page_begins(tmp_path: Path, before: int) -> None:
    content = torch.randint(256, (5 * PAGE + before + 12,), dtype=torch.uint8)
    (tmp_path / "file").write_bytes(content.numpy().tobytes())
    file = MappedFile(tmp_path / "file")
    pieces = [(before + 3 * PAGE, PAGE), (before, 2 * PAGE), (before + 4 * PAGE, PAGE + 12)]
    found = file.joined(pieces, torch.uint8, (4 * PAGE + 12,))
    assert found is not None
    assert file.holds(found)
    wanted = torch.cat([content[begin : begin + size] for begin, size in pieces])
    assert torch.equal(found, wanted)
    found += 1
    assert (tmp_path / "file").read_bytes() == content.numpy().tobytes()
    del found
    assert not any(region() for region, _ in file._regions[1:])
    file.release()
    assert not any(region() for region, _ in file._regions)


@needs_joining
def test_pieces_that_do_not_fill_their_pages_are_not_joined(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4 * PAGE))
    file = MappedFile(tmp_path / "file")
    for pieces in (
        [(0, 8), (PAGE, PAGE)],
        [(0, PAGE), (2 * PAGE + 4, 8)],
        [(0, PAGE), (2 * PAGE, 0)],
        [(2, PAGE), (2 * PAGE + 2, PAGE)],
    ):
        assert file.joined(pieces, torch.float32, (1,)) is None
    with pytest.raises(UserError, match="truncated while it was read"):
        file.joined([(2 * PAGE, PAGE), (PAGE, 4 * PAGE)], torch.float32, (5 * PAGE // 4,))


@pytest.mark.parametrize("refused", [{"CAN_JOIN": False}, {"_map_at": lambda *_: False}], ids=["unknown", "refused"])
def test_where_the_system_does_not_join_pieces_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: dict[str, Any]
) -> None:
    folder = wide(tmp_path / "model")
    wanted = load_published(folder).model.state_dict()
    for name, value in refused.items():
        monkeypatch.setattr(mapped, name, value)
    found = load_published(folder)
    assert all(torch.equal(wanted[name], tensor) for name, tensor in found.model.state_dict().items())
    assert torch.allclose(found.model(IDS)[0], load_published(folder, copy=True).model(IDS)[0], atol=1e-5)


@pytest.mark.parametrize("make", [wide, gpt2])
def test_training_a_mapped_model_leaves_its_file_alone(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    file = make(tmp_path / "model") / WEIGHTS
    before, results = file.read_bytes(), []
    for copy in (False, True):
        model = load_published(tmp_path / "model", copy=copy).model.train()
        unchanged = model(IDS)[0].detach()
        model(IDS)[0].square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        results.append(model(IDS)[0].detach())
        assert not torch.allclose(results[-1], unchanged, atol=1e-3)
    assert torch.allclose(*results, atol=1e-4)
    assert file.read_bytes() == before


def written_to(file: Path) -> None:
    content = file.read_bytes()
    with file.open("r+b") as opened:
        opened.seek(len(content) - 8)
        opened.write(b"\1" * 8)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def written_anew(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize("change", [written_to, cut, written_anew])
def test_a_file_that_changes_under_a_mapped_model_is_noticed_before_the_next_call(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    llama = wide(tmp_path / "llama")
    run, kept, cast = load_published(llama), load_published(llama, copy=True), load_published(llama, dtype="fp16")
    wanted = kept.model(IDS)[0]
    copy = deepcopy(run.model)
    state = run.model.init_state(1)
    change(llama / WEIGHTS)
    sentence = (
        r"model\.safetensors was changed while a model used weights mapped from it; "
        r"load the model again, or with copy=True"
    )
    for call in (run.model, run.model.features, partial(run.model, state=state)):
        with pytest.raises(UserError, match=sentence):
            call(IDS)
    assert torch.equal(kept.model(IDS)[0], wanted)
    assert torch.equal(copy(IDS)[0], wanted)
    assert cast.model(IDS)[0].isfinite().all()


def test_a_mapped_model_is_written_over_its_own_folder(llama: Path) -> None:
    published = load_published(llama)
    wanted, before = published.model(IDS)[0], load_file(llama / WEIGHTS)
    save_published(published.model, llama)
    assert torch.equal(published.model(IDS)[0], wanted)  # the mapped file is still there, without a name
    assert all(torch.equal(before[name], tensor) for name, tensor in load_file(llama / WEIGHTS).items())
    assert torch.equal(load_published(llama).model(IDS)[0], wanted)


def test_tensors_that_are_not_aligned_are_copied(llama: Path) -> None:
    wanted = load_published(llama, copy=True).model(IDS)[0]
    content = (llama / WEIGHTS).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length] + b" "
    (llama / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    found = load_published(llama)
    assert {p.data_ptr() % 4 for p in found.model.parameters()} == {0}
    assert torch.equal(found.model(IDS)[0], wanted)


def test_without_mappings_all_is_read(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = load_published(llama).model(IDS)[0]
    monkeypatch.setattr(mapped, "CAN_MAP", False)
    found = load_published(llama)
    written_anew(llama / WEIGHTS)
    assert torch.equal(found.model(IDS)[0], wanted)


def test_copy_maps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny(tmp_path / "a", train(Characters(), [TEXT]))
    asked: list[Path] = []
    monkeypatch.setattr(safetensors_file, "mapped", asked.append)
    commands = (["load", folder], ["generate", folder, "the", "--max-new-tokens", "1"], ["embed", folder, "the"])
    for command in commands:
        assert main([*map(str, command), "--copy"]) == 0
    assert qkv.load(folder, copy=True).model
    assert not asked
    for command in commands:
        assert main([*map(str, command)]) == 0
    assert len(asked) == 3
    assert capsys.readouterr().err == ""
