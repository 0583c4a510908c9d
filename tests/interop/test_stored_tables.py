"""Tensors that follow from a config, or from another tensor: ignored if they do, else read or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.interop.battery import every_case, made, stored

from qkv.interop.load import load_published
from qkv.spec.model import Text
from qkv.spec.parts import Learned, Sinusoidal
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers"
)


def folder_of(name: str, folder: Path) -> Path:
    made(next(case for case in every_case() if case.name == name), folder)
    return folder


def change(folder: Path, name: str, by: float = 0.0, dtype: torch.dtype = torch.float32) -> None:
    """Add ``by`` to the last row, or the last number, of a tensor, which is stored in another dtype."""
    tensors = stored(folder)
    tensors[name] = tensors[name].clone() if name in tensors else 500 ** -(torch.arange(4) / 4)
    tensors[name][-1] += by
    save_file({**tensors, name: tensors[name].to(dtype)}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("roformer-masked", "roformer.encoder.embed_positions.weight"),
        ("esm-masked-rotary", "esm.rotary_embeddings.inv_freq"),
        ("pegasus", "model.encoder.embed_positions.weight"),
    ],
)
def test_the_rounding_of_a_narrow_dtype_is_no_difference(
    name: str, table: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    change(folder_of(name, tmp_path), table, dtype=dtype)
    assert table in {ignored for ignored, _ in load_published(tmp_path).ignored}


@pytest.mark.parametrize(
    ("name", "table", "sentence"),
    [
        ("roformer-masked", "roformer.encoder.embed_positions.weight", "not support rotations by a learned table"),
        ("esm-masked-rotary", "esm.rotary_embeddings.inv_freq", "needs: RoPE with stored frequencies"),
    ],
)
def test_a_table_without_a_counterpart_is_refused(name: str, table: str, sentence: str, tmp_path: Path) -> None:
    change(folder_of(name, tmp_path), table, by=0.05)
    with pytest.raises(UserError, match=rf"{table}.*{sentence}"):
        load_published(tmp_path)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_table_of_other_positions_in_one_stack_is_read_in_both(stack: str, tmp_path: Path) -> None:
    folder = folder_of("pegasus", tmp_path)
    assert isinstance(frontend_of(folder).positions, Sinusoidal)
    change(folder, f"model.{stack}.embed_positions.weight", by=0.05)
    assert frontend_of(folder).positions == Learned()


def frontend_of(folder: Path) -> Text:
    frontend = load_published(folder).spec.frontend
    assert isinstance(frontend, Text)
    return frontend


def test_a_second_bias_of_the_logits_is_the_first_or_refused(tmp_path: Path) -> None:
    first, second = "cls.predictions.bias", "cls.predictions.decoder.bias"
    tensors = stored(folder_of("bert-masked", tmp_path))
    save_file({**tensors, second: tensors[first].clone()}, tmp_path / "model.safetensors", {"format": "pt"})
    assert (second, f"the same as {first}") in load_published(tmp_path).ignored
    change(tmp_path, second, by=0.1)
    with pytest.raises(UserError, match=f"{second!r} and {first!r} are one shared tensor .* their values differ"):
        load_published(tmp_path)
