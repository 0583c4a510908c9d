"""Folders that a stranger made: each is refused with one sentence, no code runs, no memory is blown."""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop.folders import edit, tiny

from qkv.interop.load import load_published
from qkv.system.errors import UserError

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"


class Payload:
    """A pickle that leaves a file behind when it runs."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    header, body = header_of(path)
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def cut_short(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-100])


def header_beyond_the_file(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes((1 << 40).to_bytes(8, "little") + content[8:])


def overlapping(folder: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        names = sorted(name for name in header if name.endswith("c_fc.weight"))
        header[names[0]]["data_offsets"] = header[names[1]]["data_offsets"]

    with_header(folder / WEIGHTS, change)


def empty(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def strange_precision(folder: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        entry = header["transformer.wte.weight"]
        entry["dtype"], entry["shape"] = "F8_E4M3", [4 * entry["shape"][0], entry["shape"][1]]

    with_header(folder / WEIGHTS, change)


def sharded(folder: Path, where: str) -> None:
    names = list(load_file(folder / WEIGHTS))
    (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, where)}))


def climbing(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "elsewhere.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"transformer.wte.weight": "../elsewhere.safetensors"}}))


def absolute(folder: Path) -> None:
    sharded(folder, str(folder / "model-00001-of-00001.safetensors"))


def lost_shard(folder: Path) -> None:
    sharded(folder, "model-00002-of-00002.safetensors")


def pickle_in_disguise(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(pickle.dumps(Payload(folder / "mark")))


def pickle_alone(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def changed(**keys: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / CONFIG, lambda tree: tree.update(keys))


def without(key: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder / CONFIG, lambda tree: tree.pop(key))


def renamed(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["transformer.wta.weight"] = tensors.pop("transformer.wte.weight")
    save_file(tensors, folder / WEIGHTS)


def added(folder: Path) -> None:
    save_file({**load_file(folder / WEIGHTS), "transformer.h.0.mlp.c_gc.bias": torch.zeros(3)}, folder / WEIGHTS)


def untied_in_secret(folder: Path) -> None:
    save_file({**load_file(folder / WEIGHTS), "lm_head.weight": torch.zeros(40, 12)}, folder / WEIGHTS)


def written(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / CONFIG).write_text(text)

    return write


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut-short": (cut_short, "is truncated or not a safetensors file"),
    "header-beyond-the-file": (header_beyond_the_file, "is truncated or not a safetensors file"),
    "overlapping-offsets": (overlapping, "is truncated or not a safetensors file"),
    "empty": (empty, "is empty"),
    "fp8": (strange_precision, "is in fp8, but the config has no quantization_config"),
    "index-climbs-out": (climbing, "outside the folder"),
    "index-names-a-path": (absolute, "outside the folder"),
    "shard-is-missing": (lost_shard, "is missing"),
    "pickle-in-disguise": (pickle_in_disguise, "is a pickle under the name of a safetensors file"),
    "pickle-alone": (pickle_alone, "only in a pickle"),
    "no-weights": (no_weights, "contains no weights"),
    "no-model-type": (without("model_type"), "the key 'model_type' is missing"),
    "unknown-model-type": (changed(model_type="gpt3"), "did you mean 'gpt2'"),
    "unknown-architecture": (changed(architectures=["GPT2LMHeadModul"]), "did you mean 'GPT2LMHeadModel'"),
    "a-word-for-a-size": (changed(n_embd="12"), "n_embd is '12', but it should be a whole number"),
    "true-for-a-size": (changed(n_embd=True), "n_embd is True, but it should be a whole number"),
    "zero-heads": (changed(n_head=0), "n_head is 0"),
    "heads-do-not-divide": (changed(n_head=5), "5 heads do not divide the width 12"),
    "wide-layer": (changed(n_embd=2**31), "the weight files beside it contain only"),
    "wide-feed-forward": (changed(n_inner=2**31), "the weight files beside it contain only"),
    "not-a-number": (
        changed(layer_norm_epsilon=float("nan")),
        "'layer_norm_epsilon' contains nan; allowed: finite numbers",
    ),
    "endless": (
        written('{"model_type": "gpt2", "attn_pdrop": 1e999}'),
        "'attn_pdrop' contains inf; allowed: finite numbers",
    ),
    "endless-inside": (changed(id2label={"0": [{"b": -math.inf}]}), "'id2label' contains -inf"),
    "more-than-64-bits": (
        changed(n_layer=2**70),
        "contains 1180591620717411303424; allowed: finite numbers of at most 64 bits",
    ),
    "deep": (changed(n_layer=2**31), "the weight files beside it contain only"),
    "long": (changed(n_positions=2**62), "the weight files beside it contain only"),
    "another-width": (changed(n_embd=24), "has the shape"),
    "fewer-layers": (changed(n_layer=1), "which its config does not use"),
    "more-layers": (changed(n_layer=3), "lacks the tensor"),
    "misspelt-key": (written('{"model_type": "gpt2", "n_emdb": 4}'), "did you mean 'n_embd'"),
    "key-that-changes-much": (changed(add_cross_attention=True), "qkv supports only False here"),
    "quantized": (changed(quantization_config={"bits": 4}), "quantization_config: the key 'quant_method' is missing"),
    "renamed-tensor": (renamed, "did you mean 'transformer.wta.weight'"),
    "added-tensor": (added, "did you mean 'transformer.h.0.mlp.c_fc.bias'"),
    "untied-in-secret": (untied_in_secret, "their values differ"),
    "config-is-no-json": (written("{"), "is not JSON"),
    "config-is-a-list": (written("[1]"), "should contain a mapping"),
    "config-is-deep": (written("[" * 100_000), "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    spoil, sentence = HOSTILE[name]
    folder = tiny(tmp_path / "folder")
    spoil(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as error:
        load_published(folder)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value).replace(str(folder), "")) < 320
    assert not (folder / "mark").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "200 MB for a file of 20 kB"


def test_a_pickle_of_tensors_is_read_on_request(tmp_path: Path) -> None:
    wanted = load_published(tiny(tmp_path / "a")).model.state_dict()
    folder = tiny(tmp_path / "b")
    pickle_alone(folder)
    found = load_published(folder, pickles=True).model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_a_pickle_that_runs_code_is_refused_even_on_request(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "folder")
    (folder / WEIGHTS).unlink()
    torch.save({"transformer.wte.weight": Payload(folder / "mark")}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="contains more than tensors"):
        load_published(folder, pickles=True)
    assert not (folder / "mark").exists()


def test_a_pickle_of_one_number_that_claims_many_is_refused(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "folder")
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(
        {**tensors, "transformer.wte.weight": torch.zeros(1, 1).expand(2**31, 2**20)}, folder / "pytorch_model.bin"
    )
    with pytest.raises(UserError, match="has more elements"):
        load_published(folder, pickles=True)


def test_shards_are_read_and_checked_against_their_index(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "folder")
    wanted = load_published(folder).model.state_dict()
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    places = {name: file for file, held in parts.items() for name in held}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    found = load_published(folder).model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())

    (folder / INDEX).write_text(json.dumps({"weight_map": {**places, names[0]: "b.safetensors"}}))
    with pytest.raises(UserError, match="but it is not there"):
        load_published(folder)
    save_file(tensors, folder / "a.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(UserError, match="in more than one shard"):
        load_published(folder)
