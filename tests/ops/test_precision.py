"""bf16 is used where it is allowed and faster, and fp32 elsewhere."""

from __future__ import annotations

import pytest
import torch
from tests.ops.clock import forget_choices, inject
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.ops.linear.precision import autocast, choice, runs_in
from qkv.ops.selection import timing
from qkv.ops.selection.timing import Race

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("nothing_turned_off")


def product_dtype(asked: str) -> torch.dtype:
    x = torch.ones(8, 8)
    with autocast(asked, CPU):
        return (x @ x).dtype


@pytest.mark.parametrize(
    ("factor", "taken", "gain"), [(100.0, "fp32", 100.0), (1.5, "fp32", 1.5), (0.95, "fp32", 1.0), (0.5, "bf16", 2.0)]
)
def test_bf16_that_is_allowed_is_taken_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, factor: float, taken: str, gain: float
) -> None:
    inject(monkeypatch, lambda name: factor if name == "bf16" else 1.0)
    assert runs_in("bf16", CPU) == taken
    assert product_dtype("bf16") == {"bf16": torch.bfloat16, "fp32": torch.float32}[taken]
    assert choice(CPU).gain == pytest.approx(gain)
    assert f"bf16 {factor * 1e3:.3g}" in choice(CPU).reason


def test_fp32_is_fp32_and_asks_for_no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    races = inject(monkeypatch, lambda name: 1.0)
    assert (runs_in("fp32", CPU), product_dtype("fp32"), races) == ("fp32", torch.float32, [])


@pytest.mark.parametrize(("factor", "sizes"), [(100.0, 1), (2.0, 2), (0.5, 2)])
def test_a_small_product_decides_where_bf16_is_emulated(
    monkeypatch: pytest.MonkeyPatch, factor: float, sizes: int
) -> None:
    races = inject(monkeypatch, lambda name: factor if name == "bf16" else 1.0)
    choice(CPU)
    assert [race for race in races if "bf16" in race] == [["fp32", "bf16"]] * sizes


@pytest.mark.parametrize(("missing", "taken"), [("bf16", "fp32"), ("fp32", "bf16")])
def test_a_precision_that_does_not_run_is_not_taken(monkeypatch: pytest.MonkeyPatch, missing: str, taken: str) -> None:
    inject(monkeypatch, lambda name: 1.0)
    monkeypatch.setattr(
        timing, "race", lambda runs: Race({name: 1.0 for name in runs if name != missing}, {missing: "no such kernel"})
    )
    found = choice(CPU)
    assert (found.twin, found.gain) == (taken, None)
    assert found.reason.endswith(f"{missing} does not run here (no such kernel)")


def test_the_timed_products_run_in_the_precision_of_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real runs, inside inference mode and autocast, each once."""
    forget_choices(monkeypatch)
    seen: dict[str, set[torch.dtype]] = {}

    def race(runs: timing.Mapping[str, timing.Callable[[], object]]) -> Race:
        for name, run in runs.items():
            with Watch() as watch:
                run()
            seen.setdefault(name, set()).update(watch.dtypes)
        return Race(dict.fromkeys(runs, 1.0))

    monkeypatch.setattr(timing, "race", race)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        choice(CPU)
    assert (seen["fp32"], seen["bf16"]) == ({torch.float32}, {torch.bfloat16})


class Watch(TorchDispatchMode):
    """The precisions in which matrices are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if "mm" in func.__name__ or "linear" in func.__name__:
            self.dtypes.add(out.dtype)
        return out


def test_changed_weights_are_read_inside_of_another_autocast_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps the bf16 copies of weights until the outermost context ends, here that of a notebook."""
    inject(monkeypatch, lambda name: 0.5 if name == "bf16" else 1.0)
    x, weight, sums = torch.ones(2, 4), torch.ones(3, 4, requires_grad=True), list[float]()
    with torch.autocast("cpu", enabled=False):
        for _ in range(2):
            with autocast("bf16", CPU):
                y = torch.nn.functional.linear(x, weight)
            sums.append(float(y.detach().sum()))
            with torch.no_grad():
                weight.add_(1)
    assert sums == [24.0, 48.0]
