"""Tests of the header of GGUF files, with the library gguf as reference."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.system.errors import UserError
from qkv.tokenizers.gguf.file import header

NUMBERS = {
    "uint8": 200,
    "int8": -5,
    "uint16": 60000,
    "int16": -300,
    "uint32": 1 << 31,
    "int32": -70000,
    "uint64": 1 << 63,
    "int64": -(1 << 40),
    "float32": 0.1,
    "float64": 0.1,
    "bool": True,
}


def example(file: Path) -> Path:
    """File with a value of every type and tensors of several."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_custom_alignment(64)
    for kind, value in NUMBERS.items():
        getattr(writer, f"add_{kind}")(f"number.{kind}", value)
    writer.add_array("texts", ["a", "", "größer", "▁the"])
    writer.add_array("scores", [0.5, -1.25])
    writer.add_array("flags", [True, False])
    writer.add_tensor("matrix", np.ones((3, 64), np.float32))
    writer.add_tensor("half", np.ones(5, np.float16))
    blocks = gguf.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def refusal(file: Path) -> str | None:
    """Sentence with which the header is refused."""
    header.__globals__["_header"].cache_clear()  # which knows a file by its size and time
    try:
        header(file)
    except UserError as error:
        return str(error)
    return None


def test_header_is_that_of_the_library(tmp_path: Path) -> None:
    file = example(tmp_path / "a.gguf")
    theirs = gguf.GGUFReader(file)
    ours = header(file)
    assert ours.values == {
        name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")
    }
    assert ours.tensors == {
        each.name: (
            each.tensor_type.name,
            tuple(map(int, reversed(each.shape))),
            int(each.data_offset),
            int(each.n_bytes),
        )
        for each in theirs.tensors
    }


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_header_is_read_or_refused_with_one_sentence(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(example(tmp_path / "whole.gguf").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, 900))] = data.draw(st.integers(0, 255))
    file = tmp_path / "damaged.gguf"
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    assert "\n" not in (refusal(file) or "")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"GGUF\x03", b"GGUF\x01", "its version is 1; qkv reads 2 and 3"),
        (b"GGUF\x03\x00\x00\x00", b"GGUF\x00\x00\x00\x03", "byte order"),
        (b"number.int16", b"number.uint8", "'number.uint8' is repeated"),
        (b"general.alignment\x04\x00\x00\x00\x40", b"general.alignment\x04\x00\x00\x00\x30", "not a power of two"),
    ],
)
def test_a_wrong_header_is_refused_with_its_reason(old: bytes, new: bytes, reason: str, tmp_path: Path) -> None:
    file = example(tmp_path / "a.gguf")
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new))
    with pytest.raises(UserError, match=reason):
        header(file)
