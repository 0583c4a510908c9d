"""The native kernel and quantised weights against float64, by every instruction path that the machine has."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tests.ops.present import needs_native
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.linear import native as native_linear
from qkv.ops.native import library, loading
from qkv.ops.quantized import choose, reference
from qkv.ops.quantized.packed import PackedMatrix
from qkv.system import compiler

SIZES = [(1, 1), (5, 31), (13, 100), (4, 32), (129, 257), (67, 288)]
FORMATS = [(16, 0), (8, 0), (8, 64), (8, 128), (4, 32), (4, 128)]


def forget() -> None:
    """Load libraries anew."""
    library._loaded.cache_clear()
    loading._library.cache_clear()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=3e-6 * float(expected.abs().max() + 1))


@needs_native
@pytest.mark.parametrize(("outer", "inner"), SIZES)
def test_kernel_equals_float64(outer: int, inner: int) -> None:
    """1 to 20 rows, with and without bias, weights at odd offsets and with longer strides."""
    wide = random(outer + 1, inner + 3)
    weight = wide[1:, 1 : inner + 1]  # begins at an address that no vector is aligned to
    for rows in (*range(1, 10), 13, 20):
        x = random(2 * rows, inner, seed=rows)[::2]
        for bias in (None, random(outer)):
            expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
            near(native_linear.linear(x, weight, bias), expected)


def in_eight_bits(x: Tensor) -> Tensor:
    """x (R, I) in float64, each block of 32 rounded to multiples of its largest absolute value / 127."""
    blocks = F.pad(x, (0, -x.shape[1] % 32)).double().unflatten(1, (-1, 32))
    step = blocks.abs().amax(-1, keepdim=True) / 127
    return ((blocks / step.where(step > 0, 1)).round() * step).flatten(1)[:, : x.shape[1]]


@needs_native
@pytest.mark.parametrize(("bits", "group"), FORMATS)
@pytest.mark.parametrize(("outer", "inner"), SIZES)
def test_quantised_kernel_equals_float64(outer: int, inner: int, bits: int, group: int) -> None:
    """The product with the rounded x; that with x differs by at most half a step for each number of a block, and with
    weights in bf16 by at most 2^-8 of each product.
    """
    packed = reference.pack(random(outer, inner), bits, group)
    dense, bias = reference.unpack(packed).double(), random(outer)
    for rows in (1, 2, 3, 4, 7, 8, 13, 30):
        x = random(rows, inner, seed=rows)
        plain = x.double() @ dense.t() + bias.double()
        near(reference.linear(x, packed, bias), plain)
        found = choose.native(x, packed, bias)
        if bits == 16:
            read = x.bfloat16() if library.rounds_to_bf16() else x
            near(found, read.double() @ dense.t() + bias.double())
            assert (found - plain).abs().le(x.double().abs() @ dense.t().abs() / 256 + 1e-5).all()
            continue
        near(found, in_eight_bits(x) @ dense.t() + bias.double())
        step = F.pad(x, (0, -inner % 32)).unflatten(1, (-1, 32)).abs().amax(-1).repeat_interleave(32, 1) / 127
        most = step[:, :inner].double() / 2 @ dense.abs().t()
        assert (found - plain).abs().le(most + 1e-5).all()


def published_numbers(bits: int, lowest: bool, outer: int, inner: int) -> PackedMatrix:
    """Numbers as GGUF files hold them: scales in fp16, also subnormal ones, and minimums for numbers from 0 on."""
    generator = torch.Generator().manual_seed(bits + outer)
    least, most = ((0, 16) if lowest else (-8, 8)) if bits == 4 else (-127, 128)
    numbers = torch.randint(least, most, (outer, inner), generator=generator, dtype=torch.int8)
    scale = random(outer, inner // 32).half()
    scale[0, 0] = 3e-7
    return reference.pack_numbers(numbers, scale, random(outer, inner // 32, seed=9).half() if lowest else None, bits)


LEVELS = torch.tensor([-128, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 127], dtype=torch.int8)
"""Sixteen numbers, with those that are the ends of int8."""


def published_levels(dtype: torch.dtype, outer: int, inner: int) -> PackedMatrix:
    """Indices of levels, as MXFP4 (scales in bf16) and IQ4_NL (in fp16) hold them."""
    index = torch.randint(0, 16, (outer, inner), generator=torch.Generator().manual_seed(outer))
    return reference.pack_numbers(index.to(torch.int8), random(outer, inner // 32).to(dtype), None, 4, LEVELS)


def products_equal_float64(packed: PackedMatrix) -> None:
    dense, bias = reference.unpack(packed).double(), random(packed.outer)
    for rows in (1, 2, 3, 5, 20):
        x = random(rows, packed.inner, seed=rows)
        near(choose.native(x, packed, bias), in_eight_bits(x) @ dense.t() + bias.double())
        near(reference.linear(x, packed, bias), x.double() @ dense.t() + bias.double())


PUBLISHED_SIZES = [(1, 32), (13, 96), (129, 256)]


@needs_native
@pytest.mark.parametrize("lowest", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("outer", "inner"), PUBLISHED_SIZES)
def test_published_numbers_equal_float64(bits: int, lowest: bool, outer: int, inner: int) -> None:
    products_equal_float64(published_numbers(bits, lowest, outer, inner))


@needs_native
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("outer", "inner"), PUBLISHED_SIZES)
def test_published_levels_equal_float64(dtype: torch.dtype, outer: int, inner: int) -> None:
    packed = published_levels(dtype, outer, inner)
    products_equal_float64(packed)
    index = torch.randint(0, 16, (outer, inner), generator=torch.Generator().manual_seed(outer))
    for o, i in ((0, 0), (outer - 1, inner - 1), (outer // 2, inner // 2)):
        scale = float(random(outer, inner // 32).to(dtype)[o, i // 32])
        assert float(reference.unpack(packed)[o, i]) == scale * int(LEVELS[index[o, i]])


@needs_native
def test_largest_levels_do_not_overflow() -> None:
    numbers = torch.tensor([0, 15], dtype=torch.int8).repeat_interleave(128).expand(20, 256).contiguous()
    packed = reference.pack_numbers(numbers, torch.ones(20, 8).half(), None, 4, LEVELS)
    for sign in (-1.0, 1.0):
        x = torch.full((3, 256), 3.0 * sign)
        near(choose.native(x, packed), x.double() @ reference.unpack(packed).double().t())


@needs_native
@pytest.mark.parametrize(("bits", "group"), [(8, 0), (8, 64), (4, 32), (4, 128)])
def test_largest_numbers_do_not_overflow(bits: int, group: int) -> None:
    """Weights and x at the ends of their ranges, whose sums are the largest that integers must hold."""
    for sign in (-1.0, 1.0):
        weight, x = torch.full((20, 256), sign), torch.full((5, 256), 3.0)
        weight[3, ::2] *= -1
        x[1], x[2, 1::2] = -3.0, -3.0
        packed = reference.pack(weight, bits, group)
        near(choose.native(x, packed), x.double() @ reference.unpack(packed).double().t())


@needs_native
def test_small_and_large_blocks_keep_their_own_precision() -> None:
    """Blocks of very different size, one of zeros and one too small for a scale."""
    x = torch.cat((random(1, 32) * 1e6, random(1, 32) * 1e-6, torch.zeros(1, 32), torch.full((1, 32), 1e-38)), 1)
    weight = torch.zeros(3, 128)
    weight[0, :32], weight[1, 32:64], weight[2, 64:] = 1.0, 1.0, 1.0
    packed = reference.pack(weight, 8, 32)
    found, expected = choose.native(x, packed), in_eight_bits(x) @ reference.unpack(packed).double().t()
    torch.testing.assert_close(found[0, :2].double(), expected[0, :2], rtol=1e-5, atol=0)
    assert found[0, 2].abs() < 1e-30


SPLIT = "--param=avoid-fma-max-bits=512"
"""Option by which GCC splits sums of products where it can; GCC 13 sets it for some processors."""


@needs_native
@pytest.mark.parametrize("option", [None, pytest.param(SPLIT, marks=pytest.mark.slow)])
def test_rows_do_not_depend_on_each_other(option: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row gives the same bits alone and among others, so that a batch writes what its rows write alone."""
    if option is not None:
        try:
            path = compiler.build(Path(loading.__file__).with_name("native.cpp"), [*loading.flags(), option])
        except compiler.BuildError:
            pytest.skip(f"this compiler has no option {option}")
        found = ctypes.CDLL(str(path))
        for name, types in library.signatures().items():
            getattr(found, name).argtypes, getattr(found, name).restype = types, None
        monkeypatch.setattr(library, "_loaded", lambda: found)
    x, weight = random(23, 100), random(37, 100)
    packed = [reference.pack(weight, bits, group) for bits, group in ((4, 32), (8, 0), (16, 0))]
    for product in (native_linear.linear, *(lambda rows, _, p=p: choose.native(rows, p) for p in packed)):
        for rows in (x, x[:8], x[:3]):
            assert torch.equal(product(rows, weight), torch.cat([product(row[None], weight) for row in rows]))


@needs_native
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_not_a_number_stays_where_it_belongs(bad: float) -> None:
    for inner in (7, 64):
        x, weight = random(3, inner), random(9, inner)
        x[1, inner - 1], weight[4, 0] = bad, bad
        found, expected = native_linear.linear(x, weight), F.linear(x, weight)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found[expected.isinf()], expected[expected.isinf()])
        clean = random(9, inner)
        for bits, group in FORMATS:
            finite = choose.native(x, reference.pack(clean, bits, group)).isfinite()
            assert not finite[1].any()
            assert finite[[0, 2]].all()


def by_hand(groups: Tensor, bits: int) -> Tensor:
    """Quantised rows from the definition, number by number: the nearest of the levels."""
    out = torch.empty_like(groups)
    for i, group in enumerate(groups):
        steps = [group.abs().max() / 127] if bits == 8 else []
        if bits == 4:
            most = group[group.abs().argmax()]
            steps = [most * (0.7 + 0.03 * k) / -8 for k in range(16)]
        levels = torch.arange(-127, 128) if bits == 8 else torch.arange(-8, 8)
        tried = []
        for step in steps:
            all_levels = levels * step.bfloat16().float()
            tried.append(all_levels[(group[:, None] - all_levels).abs().argmin(1)])
        out[i] = min(tried, key=lambda t: float((group - t).square().sum()))
    return out


@pytest.mark.parametrize(("bits", "group"), [(8, 0), (8, 32), (4, 32)])
def test_rounding_is_to_the_nearest_level(bits: int, group: int) -> None:
    weight = random(3, 64)
    groups = weight.view(-1, group or 64)
    torch.testing.assert_close(
        reference.unpack(reference.pack(weight, bits, group)).view_as(groups), by_hand(groups, bits)
    )


def test_zeros_and_single_weights_are_exact() -> None:
    weight = torch.zeros(2, 40)
    weight[1, 39] = -1.0
    for bits, group in FORMATS:
        torch.testing.assert_close(reference.unpack(reference.pack(weight, bits, group)), weight, rtol=4e-3, atol=0)


def test_rows_of_a_table() -> None:
    packed = reference.pack(random(11, 36), 8)
    ids = torch.tensor([[3, 0], [10, 3]])
    assert torch.equal(reference.lookup(ids, packed), reference.unpack(packed)[ids])
    assert torch.equal(reference.lookup(ids, random(11, 36)), random(11, 36)[ids])


def test_gradients_and_other_types_take_the_reference() -> None:
    packed, x = reference.pack(random(6, 40), 8), random(2, 40).requires_grad_()
    (choose.linear(x, packed) * torch.arange(6)).sum().backward()
    torch.testing.assert_close(x.grad, (torch.arange(6.0) @ reference.unpack(packed)).expand(2, -1))
    assert choose.linear(x.detach().bfloat16(), packed).dtype == torch.bfloat16
    assert choose.linear(x.detach()[:0], packed).shape == (0, 6)


# Each instruction path is another build, in a process whose torch is limited to it.
_PATH = """
import json, torch
import qkv.ops.attention.reference
from qkv.ops import attention
from qkv.ops.attention.twins import native as native_attention
from qkv.ops.linear import native
from qkv.ops.native import loading
from qkv.ops.quantized import choose, reference
from qkv.ops.masks import Causal
from tests.ops.test_native import in_eight_bits
from tests.ops import test_native_pages as pages
from tests.ops.test_native_attention import SIZES, problem_of, sample
torch.manual_seed(0)
worst = 0.0
for outer, inner in ((13, 100), (66, 288)):
    weight, x = torch.randn(outer, inner), torch.randn(5, inner)
    worst = max(worst, float((native.linear(x, weight) - x.double() @ weight.double().t()).abs().max()))
    for bits, group in ((16, 0), (8, 0), (8, 64), (4, 32), (4, 64)):
        packed = reference.pack(weight, bits, group)
        rounded = x.double() if bits == 16 else in_eight_bits(x)
        expected = rounded @ reference.unpack(packed).double().t()
        worst = max(worst, float((choose.native(x, packed) - expected).abs().max()))
with torch.no_grad():
    for size in SIZES:
        problem, inputs = problem_of(Causal(), *size[3:5]), sample(size)
        expected = attention.reference.attention(*(t.double() for t in inputs), problem)
        worst = max(worst, float((native_attention.attention(*inputs, problem) - expected).abs().max()))
    worst = max(worst, *(pages.worst_error(size, how) for size in pages.SIZES for how in pages.TERMS.values()))
print(json.dumps([loading.flags()[2], worst]))
"""


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize(("cap", "flag"), [("default", "-march=x86-64"), ("avx2", "-march=x86-64-v3")])
@pytest.mark.skipif(not loading.flags()[2].startswith("-march"), reason="not an x86 processor")
def test_a_cap_on_instructions_is_honoured(cap: str, flag: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PATH],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "ATEN_CPU_CAPABILITY": cap},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    used, worst = json.loads(done.stdout)
    assert used == flag
    assert worst < 1e-4


@needs_native
def test_openmp_is_that_of_torch() -> None:
    """A second OpenMP library would bring threads of its own. In a process without other users of OpenMP."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("no list of loaded libraries here")
    program = (
        "from qkv.ops.native import library; from pathlib import Path; assert library.available(); "
        "print(*{line.split()[-1] for line in Path('/proc/self/maps').read_text().splitlines() if 'libgomp' in line})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 1


_GOOD, _BAD = 'extern "C" int answer() { return 42; }\n', "this is not C++\n"


@needs_native
def test_builds_at_once_leave_one_library(tmp_path: Path) -> None:
    source = tmp_path / "small.cpp"
    source.write_text(_GOOD)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(compiler.build(source, ["-O1"]))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert [path.name for path in found[0].parent.glob("small-*")] == [found[0].name]
    source.write_text(_GOOD.replace("42", "43"))
    assert compiler.build(source, ["-O1"]) != found[0]


@needs_native
def test_a_failed_build_is_said_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "broken.cpp"
    source.write_text(_BAD)
    with pytest.raises(compiler.BuildError, match=r"does not compile broken\.cpp: .*error"):
        compiler.build(source, [])
    monkeypatch.setattr(subprocess, "run", None)  # it is not compiled again
    with pytest.raises(compiler.BuildError, match="to build again"):
        compiler.build(source, [])


def test_without_a_compiler_torch_computes(nothing_turned_off: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    forget()
    try:
        assert not library.available()
        assert library.described() == "none: there is no C++ compiler"
        assert loading.names() is None
        packed = reference.pack(random(6, 40), 8)
        dense = reference.unpack(packed).double()
        for found in (choose._measured("weights in 16 bits, one row", 1), choose._ruled("weights in 8 bits", 8)):
            assert found.twin == "torch"
            assert "no C++ compiler" in found.reason
            near(choose.TWINS[found.twin](random(1, 40), packed), random(1, 40).double() @ dense.t())
    finally:
        forget()


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_WITHOUT", "native")
    forget()
    try:
        assert library.described() == "none: QKV_WITHOUT=native turns it off"
        assert loading.names() is None
    finally:
        forget()
