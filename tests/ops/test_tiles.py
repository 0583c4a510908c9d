"""Native products in tiles against float64 and against products in vectors. The kernel is compiled with instructions of
tiles that are computed one by one, so that it runs on every processor; where a processor has them, also with its own.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ops.clock import inject
from tests.ops.present import needs_native
from tests.ops.test_native import published_levels, published_numbers, random
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.native import library, loading
from qkv.ops.native.step import STREAM, WIDE, InputNorm, Matrix, Steps
from qkv.ops.quantized import reference, tiles
from qkv.ops.quantized.packed import PackedMatrix
from qkv.system import compiler

pytestmark = needs_native
HEADER = Path(__file__).with_name("emulated_tiles.h")
SIZES = [(1, 1), (5, 31), (16, 32), (33, 100), (67, 288)]
ROWS = (1, 2, 5, 15, 16, 17, 33, 50)
GROUPED = [(8, 0), (8, 64), (4, 32), (4, 0), (4, 128)]


@pytest.fixture(scope="module")
def emulated() -> Any:
    digest = hashlib.sha256(HEADER.read_bytes()).hexdigest()[:8]
    flags = [*loading.flags(), "-O1", f'-DQKV_TILES_HEADER="{HEADER}"', f"-DQKV_TILES_DIGEST=0x{digest}"]
    found = ctypes.CDLL(str(compiler.build(Path(loading.__file__).with_name("native.cpp"), flags)))
    for name, types in library.signatures().items():
        getattr(found, name).argtypes, getattr(found, name).restype = types, None
    return found


@pytest.fixture(params=["emulated", "its own"])
def tiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, emulated: Any) -> Iterator[str]:
    """The library's tiles are those of the header, or of the processor."""
    library._permits_tiles.cache_clear()
    if request.param == "emulated":
        monkeypatch.delenv("QKV_WITHOUT", raising=False)
        monkeypatch.setattr(library, "_loaded", lambda: emulated)
    elif not library.has_tiles():
        pytest.skip("this processor has no tiles")
    yield request.param
    library._permits_tiles.cache_clear()


def rounded_to_bf16(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def near(found: Tensor, expected: Tensor, tolerance: float = 3e-6) -> None:
    error = tolerance * float(expected.abs().max() + 1)
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=error)


@pytest.mark.parametrize(("outer", "inner"), SIZES)
def test_bf16_equals_float64(tiled: str, outer: int, inner: int) -> None:
    """Of x rounded to bf16, with and without bias, weights at odd offsets and with longer strides."""
    wide = random(outer + 1, inner + 3).bfloat16()
    weight, bias = wide[1:, 1 : inner + 1], random(outer)
    for rows in ROWS:
        x = random(rows, inner, seed=rows)
        for given in (None, bias):
            expected = F.linear(rounded_to_bf16(x), weight.double(), None if given is None else given.double())
            near(library.product(x, weight, given, tiled_from=1), expected)


def test_bf16_rounds_to_the_nearest_even_number(tiled: str) -> None:
    """Halves between two numbers of bf16, the largest ones, and what is not finite."""
    x = torch.tensor([[1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.39e38, float("inf"), -float("inf"), float("nan")]])
    for value in x[0]:
        found = library.product(value.expand(1, 1).contiguous(), torch.ones(1, 1).bfloat16(), tiled_from=1)
        torch.testing.assert_close(found[0, 0], value.bfloat16().float(), equal_nan=True, rtol=0, atol=0)


def test_what_is_not_a_number_stays_in_its_row(tiled: str) -> None:
    """Rows of x, rows of W, and numbers beyond a row's end share tiles."""
    for inner in (7, 64, 70):
        x, weight = random(20, inner), random(37, inner).bfloat16()
        x[3, inner - 1], weight[35, 0] = float("nan"), float("inf")
        found = library.product(x, weight, tiled_from=1)
        assert found[3].isnan().all()
        assert not found[:, 35].isfinite().any()
        found[3], found[:, 35] = 0, 0
        assert found.isfinite().all()


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_rows_do_not_depend_on_each_other(tiled: str, bits: int) -> None:
    packed, x = reference.pack(random(53, 100), bits, 32 if bits == 4 else 0), random(40, 100)
    for rows in (x, x[:17], x[:8], x[:3]):
        assert torch.equal(
            tiles.product(rows, packed, 1), torch.cat([tiles.product(row[None], packed, 1) for row in rows])
        )


@pytest.mark.parametrize(("bits", "group"), GROUPED)
@pytest.mark.parametrize(("outer", "inner"), SIZES)
def test_integers_have_the_bits_of_vectors(tiled: str, outer: int, inner: int, bits: int, group: int) -> None:
    packed, bias = reference.pack(random(outer, inner), bits, group), random(outer)
    for rows in ROWS:
        x = random(rows, inner, seed=rows)
        x[0] *= 1e6
        for given in (None, bias):
            assert torch.equal(tiles.product(x, packed, 1, given), tiles.product(x, packed, 0, given))


@pytest.mark.parametrize("lowest", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
def test_published_numbers_have_the_bits_of_vectors(tiled: str, bits: int, lowest: bool) -> None:
    same_as_vectors(published_numbers(bits, lowest, 67, 288))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_published_levels_have_the_bits_of_vectors(tiled: str, dtype: torch.dtype) -> None:
    same_as_vectors(published_levels(dtype, 67, 288))


def same_as_vectors(packed: PackedMatrix) -> None:
    bias = random(packed.outer)
    for rows in ROWS:
        x = random(rows, packed.inner, seed=rows)
        assert torch.equal(tiles.product(x, packed, 1, bias), tiles.product(x, packed, 0, bias))


@pytest.mark.parametrize("bits", [8, 4])
def test_largest_numbers_do_not_overflow(tiled: str, bits: int) -> None:
    x = torch.full((5, 256), -3.0)
    x[1, ::2] = 3.0
    packed = reference.pack(torch.full((20, 256), -1.0), bits, 0)
    near(tiles.product(x, packed, 1), x.double() @ reference.unpack(packed).double().t())


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_a_decoding_step_takes_tiles(tiled: str, bits: int) -> None:
    """Two products, with a norm and an activation before them, the second of which is added to the stream."""
    up, down = (reference.pack(random(*size), bits, 32 if bits == 4 else 0) for size in ((100, 48), (48, 100)))
    x, bias = random(21, 48), random(100)
    weight = 1 + random(48) / 10

    def step(least: int) -> Tensor:
        steps = Steps()
        first, second = (
            Matrix(m.stored, b, m.outer, m.inner, bits, m.scale, m.group, tiled_from=least)
            for m, b in ((up, bias), (down, None))
        )
        steps.multiply(first, STREAM, WIDE, InputNorm("layer norm", weight, None, 1e-5))
        steps.multiply(second, WIDE, STREAM, None, "gelu")
        return steps.run([0] * 3, [5, 9, 7], [], x=x)

    found = step(1)
    if bits < 16:
        assert torch.equal(found, step(0))
        assert torch.equal(found, step(20))
        return
    inside = rounded_to_bf16(F.layer_norm(x, (48,), weight)) @ up.stored.double().t() + bias.double()
    near(found, x.double() + rounded_to_bf16(F.gelu(inside)) @ down.stored.double().t(), 2e-3)
    assert torch.equal(step(22), step(0))  # the step has 21 vectors


@pytest.mark.parametrize(
    ("bits", "faster_at", "expected"),
    [(16, "1 and 8 and 32", 1), (16, "", 0), (8, "4", 2), (8, "16", 8), (4, "4", 2), (4, "", 0), (32, "4", 0)],
)
def test_tiles_are_used_from_where_they_are_faster(
    tiled: str, monkeypatch: pytest.MonkeyPatch, bits: int, faster_at: str, expected: int
) -> None:
    asked: list[str] = []
    real = tiles.fastest

    def said(op: str, case: str, plain: str, runs: dict[str, Any], what: str) -> Any:
        asked.append(what)
        inject(monkeypatch, lambda name: 0.1 if name == "tiles" and f"at {faster_at} ×" in what else 1.0)
        return real(op, case, plain, runs, what)

    inject(monkeypatch, lambda name: 1.0)
    monkeypatch.setattr(tiles, "fastest", said)
    monkeypatch.setattr(library, "rounds_to_bf16", lambda: True)
    assert tiles.tiled_from(bits) == expected
    assert bool(asked) == (bits < 32)
    monkeypatch.setenv("QKV_WITHOUT", "tiles")
    assert tiles.tiled_from(bits) == 0


def test_without_rounding_in_vectors_bf16_takes_no_tiles(tiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else products would be rounded differently by what else the processor has."""
    inject(monkeypatch, lambda name: 0.1 if name == "tiles" else 1.0)
    monkeypatch.setattr(library, "rounds_to_bf16", lambda: False)
    assert tiles.tiled_from(16) == 0
