"""Loading a published checkpoint: precision, names, tokenizer, and what takes a run takes it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from tests.interop.folders import TEXT, counted, edit, tiny, tiny_model

import qkv
from qkv.interop import load
from qkv.interop.load import load_published
from qkv.interop.save import save_published
from qkv.spec.tokenizers import BPE
from qkv.system import allocator
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train(BPE(vocab_size=270), [TEXT]).with_specials(["eos"])


def test_precision_is_that_of_the_files_or_the_one_asked_for(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "a")
    assert {p.dtype for p in load_published(folder).model.parameters()} == {torch.float32}
    assert {p.dtype for p in load_published(folder, "bf16").model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load_published(folder, torch.float64).model.parameters()} == {torch.float64}
    with pytest.raises(UserError, match="did you mean 'fp32'"):
        load_published(folder, "f32")
    save_published(load_published(folder, "bf16").model, tmp_path / "b")
    half = load_published(tmp_path / "b").model
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    whole = load_published(folder, "bf16").model
    assert all(torch.equal(a, b) for a, b in zip(half.parameters(), whole.parameters(), strict=True))


def test_names_without_their_prefix_and_old_buffers_are_known(tmp_path: Path) -> None:
    """The published GPT-2 itself is so written."""
    folder = tiny(tmp_path / "a")
    wanted = load_published(folder).model.state_dict()
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(
        {**tensors, "h.0.attn.bias": torch.ones(1, 1, 32, 32), "h.1.attn.masked_bias": torch.tensor(-1e4)},
        folder / WEIGHTS,
    )
    found = load_published(folder)
    assert all(torch.equal(found.model.state_dict()[name], tensor) for name, tensor in wanted.items())
    assert [name for name, _ in found.ignored] == ["h.0.attn.bias", "h.1.attn.masked_bias"]
    assert found.used == len(tensors)


def test_a_shared_tensor_may_be_stored_twice(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "a")
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()}, folder / WEIGHTS)
    found = load_published(folder)
    assert [name for name, _ in found.ignored] == ["lm_head.weight"]
    assert found.model.head.weight is found.model.frontend.table


def test_a_published_folder_is_loaded_and_writes_as_a_run_does(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = tiny(tmp_path / "a", tokenizer)
    run = qkv.load(folder)
    assert run.recipe.model == load_published(folder).spec
    assert run.tokenizer.encode("the quick") == tokenizer.encode("the quick")
    assert run.recipe.sample.temperature == 0.0
    text = qkv.generate(run, "the quick", max_new_tokens=5)
    assert text == qkv.generate(folder, "the quick", max_new_tokens=5)
    with pytest.raises(UserError, match="not said"):
        qkv.evaluate(run)


def test_how_it_writes_is_what_its_makers_say(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = tiny(tmp_path / "a", tokenizer)
    said = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1}
    (folder / "generation_config.json").write_text(json.dumps(said))
    sample = load_published(folder).sample
    assert (sample.temperature, sample.top_k, sample.top_p, sample.repetition_penalty) == (0.6, 20, 0.9, 1.1)
    assert sample.stop_token_ids == (tokenizer.specials["eos"],)


def test_loading_reads_the_config_once_and_builds_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, (read, built) = tiny(tmp_path / "a"), counted(monkeypatch)
    qkv.load(folder)
    assert (read, built) == ([folder / "config.json"], ["meta"])


def test_options_of_published_checkpoints_are_refused_elsewhere(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "a")
    with pytest.raises(UserError, match="only published names have revisions"):
        load_published(folder, revision="main")
    with pytest.raises(UserError, match="is a file"):
        load_published(folder / WEIGHTS)
    with pytest.raises(UserError, match="does not look like a published name"):
        load_published(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="contains no published checkpoint"):
        load_published(tmp_path / "empty")
    with pytest.raises(UserError, match="is not a run folder"):
        qkv.load(tmp_path / "empty")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds owner/tiny in two revisions, and no network."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = cache / "models--owner--tiny"
    (repository / "refs").mkdir(parents=True)
    for revision, commit in (("main", "a" * 40), ("old", "b" * 40)):
        (repository / "refs" / revision).write_text(commit)
        folder = tiny(repository / "snapshots" / commit)
        edit(folder / "config.json", lambda tree, value=commit: tree.update(_commit_hash=value))
    return cache


def test_a_name_is_found_in_the_cache_by_revision(hub: Path) -> None:
    assert load_published("owner/tiny").folder.name == "a" * 40
    assert load_published("owner/tiny", revision="old").folder.name == "b" * 40
    for name, revision in (("owner/other", None), ("owner/tiny", "new")):
        with pytest.raises(UserError, match="is not in the cache and cannot be downloaded now"):
            load_published(name, revision=revision)


def test_a_folder_of_that_name_comes_first(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hub)
    tiny(hub / "owner" / "tiny")
    assert load_published("owner/tiny").folder == Path("owner/tiny")
    with pytest.raises(UserError, match="does not look like a published name"):
        load_published("owner/other")


MEASURE = """
import re, sys, torch
from pathlib import Path
from qkv.interop import load
from qkv.interop.load import load_published

def kilobytes(what):
    return int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

load_published(sys.argv[2])
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
model = load_published(sys.argv[1], copy=True).model
weights = sum(p.numel() * p.element_size() for p in model.parameters())
print((kilobytes("VmHWM") - before) * 1024 / weights)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from /proc")
def test_memory_stays_within_a_fifth_more_than_the_weights(tmp_path: Path) -> None:
    """Read into memory: the token table, the largest tensor, is a third of all; the other matrices are transposed."""
    from qkv.models.build import build
    from qkv.models.families.gpt import gpt

    save_published(
        build(gpt(width=512, num_layers=6, num_heads=8, context_length=64, vocab_size=20000)), tmp_path / "large"
    )
    folders = [str(tmp_path / "large"), str(tiny(tmp_path / "small"))]

    def measured() -> float:
        done = subprocess.run([sys.executable, "-c", MEASURE, *folders], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    share = measured()
    share = share if share < 1.2 else min(share, measured())  # what else a process keeps only ever adds to the peak
    print(f"peak {share:.2f} of the weights")
    assert 0.9 < share < 1.2


def test_what_no_family_is_cannot_be_saved(tmp_path: Path) -> None:
    model = tiny_model()
    odd = qkv.build(model.spec.changed(norm=qkv.spec.parts.NoNorm()))
    with pytest.raises(UserError, match="no published family"):
        save_published(odd, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_threads_and_memory_are_set_as_for_a_new_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(load, "limit_threads", lambda: done.append("threads"))
    monkeypatch.setattr(allocator, "keep_freed_memory", lambda: bool(done.append("memory")))
    load_published(tiny(tmp_path / "a"))
    assert done == ["threads", "memory"]
