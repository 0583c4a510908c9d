"""Every path of the linear map against torch's, forward and backward, and the proof that oneDNN keeps fp32 exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.clock import forget_choices, inject
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from tests.ops.present import needs_onednn
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.linear import choose, split
from qkv.ops.linear import onednn as differentiable
from qkv.ops.linear import operator as fused
from qkv.ops.selection import choices, onednn, timing
from qkv.ops.selection.choices import Choice
from qkv.ops.selection.timing import Race

needs_operator = pytest.mark.skipif(not fused.available(), reason="this build of torch lacks the operator")

SHAPES = [((5, 7), 3), ((2, 3, 33), 65), ((1, 129), 64), ((4, 1, 6), 1), ((0, 5), 4), ((2, 0, 5), 4), ((16,), 8)]
FORWARD = {
    "oneDNN": pytest.param(differentiable.linear, marks=needs_onednn),
    "operator": pytest.param(fused.linear, marks=needs_operator),
    "split": split.linear,
}


def tensors(shape: tuple[int, ...], outputs: int, bias: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    shapes = [shape, (outputs, shape[-1]), (outputs,)][: 3 if bias else 2]
    return [torch.randn(s, generator=generator) for s in shapes]


TRAINED = {
    "oneDNN": pytest.param(differentiable.linear, marks=needs_onednn),
    "operator": pytest.param(fused.linear, marks=needs_operator),
}


@pytest.mark.parametrize("twin", TRAINED.values(), ids=TRAINED)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("shape", "outputs"), SHAPES)
def test_paths_of_training_equal_torch_with_all_gradients(
    twin: choose.Callable[..., Tensor], shape: tuple[int, ...], outputs: int, bias: bool
) -> None:
    inputs = tensors(shape, outputs, bias)
    expected = outputs_and_gradients(F.linear, [t.double() for t in inputs])
    assert_all_same(outputs_and_gradients(twin, inputs), expected)


@pytest.mark.parametrize("twin", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("shape", "outputs"), [s for s in SHAPES if 0 not in s[0]])
@torch.no_grad()
def test_forward_paths_equal_torch(
    twin: choose.Callable[..., Tensor], shape: tuple[int, ...], outputs: int, bias: bool
) -> None:
    x, *weights = tensors(shape, outputs, bias)
    if twin is split.linear:
        x = x.flatten(0, -2)[:1] if x.dim() > 1 else x
    expected = F.linear(x.double(), *(t.double() for t in weights))
    assert_same(twin(x, *weights), expected)


@pytest.mark.parametrize("twin", FORWARD.values(), ids=FORWARD)
@torch.no_grad()
def test_views_in_any_layout_are_read_right(twin: choose.Callable[..., Tensor]) -> None:
    wide = torch.randn(64, 9, 50)
    x, bias = wide[0, :1, 10:42], torch.randn(96)[::2]
    layouts = {
        "transposed": torch.randn(32, 48).t(),
        "cut out": torch.randn(60, 70)[7:55, 5:37],
        "every other": torch.randn(96, 64)[::2, ::2],
    }
    for layout, weight in layouts.items():
        for row in (x, wide[3:4, 2, 3:35], torch.randn(32, 2).t()[:1], torch.randn(1, 64)[:, ::2]):
            assert_same(twin(row, weight, bias), F.linear(row.double(), weight.double(), bias.double()), what=layout)


@needs_onednn
def test_gradients_through_views_and_for_some_inputs_alone() -> None:
    x, weight, bias = torch.randn(3, 4, 40)[:, :, 4:37], torch.randn(33, 65).t(), torch.randn(65)
    expected = outputs_and_gradients(F.linear, [x.double(), weight.double(), bias.double()])
    assert_all_same(outputs_and_gradients(differentiable.linear, [x, weight, bias]), expected)
    for needed in range(3):
        leaves = [t.detach().clone().requires_grad_(i == needed) for i, t in enumerate((x, weight, bias))]
        differentiable.linear(*leaves).sum().backward()
        torch_leaves = [t.detach().clone().requires_grad_(i == needed) for i, t in enumerate((x, weight, bias))]
        F.linear(*torch_leaves).sum().backward()
        assert [leaf.grad is not None for leaf in leaves] == [i == needed for i in range(3)]
        assert_same(leaves[needed].grad, torch_leaves[needed].grad)  # type: ignore[arg-type]


@needs_onednn
def test_an_output_whose_gradient_is_expanded() -> None:
    """``sum`` hands back one number with strides of 0."""
    inputs = tensors((6, 20), 10)
    leaves = [t.requires_grad_() for t in inputs]
    differentiable.linear(*leaves).sum().backward()
    assert_same(leaves[1].grad, inputs[0].detach().sum(0).expand(10, -1))  # type: ignore[arg-type]


@needs_onednn
def test_second_derivatives_are_right() -> None:
    x, weight = (torch.randn(s, generator=torch.Generator().manual_seed(1)) for s in ((4, 6), (5, 6)))

    def slope(f: choose.Callable[..., Tensor]) -> Tensor:
        leaf, w = x.clone().requires_grad_(), weight.clone().requires_grad_()
        (dx,) = torch.autograd.grad(f(leaf, w).pow(3).sum(), leaf, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), w)[0]

    assert_same(slope(differentiable.linear), slope(F.linear), 1e-4)


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
def test_compiled_it_is_one_graph_with_the_same_gradients(bias: bool) -> None:
    inputs = tensors((2, 3, 33), 65, bias)
    torch._dynamo.reset()
    compiled = torch.compile(differentiable.linear, backend="aot_eager", fullgraph=True)
    assert_all_same(
        outputs_and_gradients(compiled, inputs), outputs_and_gradients(F.linear, [t.double() for t in inputs])
    )
    torch.library.opcheck(
        torch.ops.qkv.onednn_linear.default, tuple(t.requires_grad_() for t in inputs) + (None,) * (not bias)
    )


@pytest.fixture
def fresh_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_choices(monkeypatch)


@given(
    rows=st.sampled_from([(), (1,), (3,), (2, 40), (0,)]),
    sizes=st.sampled_from([(4, 6), (128, 160), (512, 513), (520, 512)]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    bias=st.booleans(),
    training=st.booleans(),
)
def test_the_chosen_path_equals_torch(
    rows: tuple[int, ...], sizes: tuple[int, int], dtype: torch.dtype, bias: bool, training: bool
) -> None:
    x, *weights = (t.to(dtype) for t in tensors((*rows, sizes[0]), sizes[1], bias))
    with torch.set_grad_enabled(training):
        y = choose.linear(x.requires_grad_(training), *weights)
    assert y.dtype == dtype
    assert_same(y.detach(), F.linear(x.detach(), *weights), {torch.bfloat16: 1e-2}.get(dtype))


@pytest.mark.parametrize("twin", choose.TWINS)
def test_whatever_is_fastest_the_answer_is_the_same(
    fresh_choices: None, monkeypatch: pytest.MonkeyPatch, twin: str
) -> None:
    """Each path in turn is said to be the fastest of those that a case allows."""

    def said(op: str, case: str, plain: str, runs: dict[str, object], what: str) -> Choice:
        return Choice(op, case, twin if twin in runs else plain, what)

    monkeypatch.setattr(choose, "fastest", said)
    for rows in (1, 9, 100):
        x, weight, bias = tensors((rows, 512), 520)
        expected = F.linear(x.double(), weight.double(), bias.double())
        with torch.no_grad():
            assert_same(choose.linear(x, weight, bias), expected)
        got = outputs_and_gradients(choose.linear, [x, weight, bias])
        assert_all_same(got, outputs_and_gradients(F.linear, [t.double() for t in (x, weight, bias)]))


def test_autocast_goes_to_torch() -> None:
    x, weight, bias = tensors((3, 256), 256)
    with torch.autocast("cpu", torch.bfloat16):
        assert choose.linear(x, weight, bias).dtype == torch.bfloat16


def test_each_case_is_measured_once(fresh_choices: None) -> None:
    for _ in range(2):
        assert choose.choice("training").case == "training"
        assert choose.row_choice(512, 513).case == "one row, 512 to 513"
        assert choose.row_choice(8, 8).reason == "too small for the choice to matter"
    assert [c.case for c in choices.all_choices()] == ["training", "one row, 512 to 513", "one row, 8 to 8"]


@needs_onednn
def test_weights_stored_in_out_are_timed_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[bool] = []

    def run(twin: object, x: Tensor, weights: list[Tensor]) -> Callable[[], object]:
        timed.append(weights[0].is_contiguous())
        return lambda: None

    inject(monkeypatch, lambda name: 1.0)
    monkeypatch.setattr(choose, "_each", run)
    weight = torch.randn(512, 520).t()
    for rows, case in ((1, "one row, 512 to 520"), (9, "few rows"), (100, "many rows")):
        for layout, suffix in ((weight, ", weights stored (in, out)"), (weight.contiguous(), "")):
            timed.clear()
            x = torch.randn(rows, 512)
            with torch.no_grad():
                assert_same(choose.linear(x, layout), F.linear(x.double(), weight.double()))
            assert choices.all_choices()[-1].case == case + suffix
            assert set(timed) == {layout.is_contiguous()}


class TestProof:
    """``available`` says yes only where not a bit is lost."""

    @pytest.fixture(autouse=True)
    def forget(self, nothing_turned_off: None) -> Iterator[None]:
        onednn._exact.cache_clear()
        yield
        onednn._exact.cache_clear()

    @staticmethod
    def rounded(bits: int) -> choose.Callable[[Tensor, Tensor], Tensor]:
        """A product that keeps only the upper ``bits`` of each factor's 24."""

        def cut(t: Tensor) -> Tensor:
            mask = -1 << (24 - bits)
            return (t.contiguous().view(torch.int32) & mask).view(torch.float32)

        return lambda a, b: real(cut(a), cut(b))

    @pytest.mark.parametrize("bits", [23, 16, 11, 8])
    def test_a_product_that_rounds_its_factors_is_refused(self, monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
        """bf16 keeps 8 bits, tf32 11, a sum of two bf16 16; one lost bit is enough."""
        monkeypatch.setattr(Tensor, "__matmul__", self.rounded(bits))
        assert not onednn.available()

    def test_a_product_that_rounds_one_shape_alone_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rounded = self.rounded(8)
        monkeypatch.setattr(
            Tensor, "__matmul__", lambda a, b: rounded(a, b) if a.dim() == 3 and a.shape[-2] == 128 else real(a, b)
        )
        assert not onednn.available()

    def test_without_onednn_it_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert not onednn.available()

    def test_torch_s_own_product_would_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The proof does not ask for more than fp32 gives."""
        monkeypatch.setattr(onednn.allowed, "__enter__", lambda self: None)
        monkeypatch.setattr(onednn.allowed, "__exit__", lambda self, *error: None)
        assert onednn.available() == torch.backends.mkldnn.is_available()


real = Tensor.__matmul__


@needs_onednn
def test_the_permission_ends_with_the_product_and_with_an_error() -> None:
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    with onednn.allowed():
        assert setting.fp32_precision == "bf16"
        with onednn.allowed():
            pass
        assert setting.fp32_precision == "bf16"
    assert setting.fp32_precision == before
    with pytest.raises(RuntimeError), onednn.allowed():
        torch.zeros(2, 3) @ torch.zeros(2, 3)
    assert setting.fp32_precision == before
    with pytest.raises(RuntimeError, match=r"shapes|primitive"):
        differentiable.linear(torch.zeros(2, 3), torch.zeros(4, 5))
    assert setting.fp32_precision == before


class TestChoices:
    """What ``fastest`` takes, and how choices outlive a process."""

    @staticmethod
    def picked(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> Choice:
        monkeypatch.setattr(timing, "race", lambda runs: Race(seconds))
        monkeypatch.setattr(timing, "duel", lambda a, b: [1.0])
        return choices.fastest("op", "case", "plain", dict.fromkeys(seconds, lambda: None), "what")

    @pytest.mark.parametrize(
        ("other", "twin", "gain"), [(0.5, "other", 2.0), (0.95, "plain", 1.0), (1.0, "plain", 1.0), (3.0, "plain", 1.0)]
    )
    def test_the_plain_path_is_kept_within_the_noise(
        self, monkeypatch: pytest.MonkeyPatch, other: float, twin: str, gain: float
    ) -> None:
        found = self.picked(monkeypatch, plain=1.0, other=other)
        assert (found.twin, found.gain) == (twin, pytest.approx(gain))

    def test_the_quickest_of_several_is_taken_and_all_times_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.picked(monkeypatch, plain=0.004, one=0.002, two=0.001)
        assert found.twin == "two"
        assert found.reason == "what, ms: two 1, one 2, plain 4"

    def test_a_choice_is_made_once(self, fresh_choices: None) -> None:
        made = []

        def decide() -> Choice:
            made.append(1)
            return Choice("op", "case", "a", "first")

        assert choices.choose("op", "case", decide) is choices.choose("op", "case", decide)
        assert len(made) == 1

    def test_a_run_goes_on_with_the_choices_that_it_began_with(
        self, fresh_choices: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = choices.choose("op", "case", lambda: Choice("op", "case", "a", "measured", 1.5))
        saved = choices.table().snapshot()
        forget_choices(monkeypatch)
        choices.table().restore(saved)
        assert choices.choose("op", "case", lambda: Choice("op", "case", "b", "measured again")) == first
        assert choices.all_choices() == [first]


def test_small_products_of_training_have_a_choice_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls from Python count there: a twin that wins among large products need not be taken."""
    races = inject(monkeypatch, lambda name: 1.0)
    for inner, outer in ((128, 128), (128, 512), (256, 512)):
        choose.linear(torch.ones(2, 3, inner), torch.ones(outer, inner, requires_grad=True)).sum().backward()
    assert [c.case for c in choices.all_choices()] == ["training, small", "training"]
    assert len(races) <= 2  # one each, if several ways are exact here


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="this build of torch has no such setting")
def test_the_setting_of_the_process_is_restored_by_the_last_of_two_threads() -> None:
    def setting() -> str:
        return torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]

    before, inside, first_left = setting(), Event(), Event()

    def second() -> list[str]:
        with onednn.allowed():
            inside.set()
            first_left.wait(10)
            return [setting()]

    with ThreadPoolExecutor(1) as threads:
        with onednn.allowed():
            later = threads.submit(second)
            inside.wait(10)
        first_left.set()
        assert later.result() == ["bf16"]
    assert setting() == before != "bf16"
