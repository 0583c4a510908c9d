"""Every choice follows the timings, on whatever machine: each candidate in turn is the quickest, and runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ops.clock import inject, quickest
from tests.ops.present import exact, needs_onednn

from qkv.ops.attention import choose as attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.linear import choose as linear
from qkv.ops.linear import native, operator
from qkv.ops.masks import Causal, Full, Sites
from qkv.ops.recurrence import choose as recurrence
from qkv.ops.selection import choices
from qkv.ops.selection import onednn as permission

needs_operator = pytest.mark.skipif(not operator.available(), reason="this build has no fused operator")


def watched(monkeypatch: pytest.MonkeyPatch, twins: dict[str, Callable[..., Any]]) -> list[str]:
    """The names of the twins that are called, in order."""
    called: list[str] = []

    def watch(name: str, twin: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            called.append(name)
            return twin(*args)

        return run

    for name, twin in list(twins.items()):
        monkeypatch.setitem(twins, name, watch(name, twin))
    return called


LINEAR = [
    *((rows, training, "torch") for rows, training in [(1, False), (5, False), (80, False), (5, True)]),
    *(
        pytest.param(rows, training, "oneDNN", marks=needs_onednn)
        for rows, training in [(1, False), (5, False), (80, False), (5, True)]
    ),
    *(
        pytest.param(rows, training, "oneDNN operator", marks=needs_operator)
        for rows, training in [(1, False), (5, False), (80, False), (5, True)]
    ),
    (1, False, "split"),
]


@pytest.mark.parametrize(("rows", "training", "name"), LINEAR)
def test_a_linear_map_takes_the_quickest_path(
    monkeypatch: pytest.MonkeyPatch, rows: int, training: bool, name: str
) -> None:
    """Among them products of one row, which are slow on some machines by the path that is quickest for more."""
    races = inject(monkeypatch, quickest(name))
    called = watched(monkeypatch, linear.TWINS)
    x, weight = torch.ones(rows, 512), torch.ones(512, 512)
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(linear.linear(x, weight), x @ weight.t())
    assert called == [name]
    others = [path for path in (permission, operator, *[native] * (not training)) if path.available()]
    alone = not others and rows > 1  # torch, without a race
    assert [name in race for race in races] == [True] * (not alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", exact(["sdpa", "tiled", "sdpa, oneDNN"]))
@pytest.mark.parametrize("training", [True, False])
def test_causal_attention_takes_the_quickest_path(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype, training: bool
) -> None:
    races = inject(monkeypatch, quickest(name))
    called = watched(monkeypatch, attention.TWINS)
    q, positions = torch.ones(2, 8, 64, 16, dtype=dtype), torch.arange(64)[None]
    with torch.set_grad_enabled(training):
        attention.attention(q, q, q, AttentionProblem(Causal(), Sites(positions, positions, aligned=True), 0.25))
    assert called == [name if name in races[0] else "sdpa"]
    assert ("sdpa, oneDNN" in races[0]) == (dtype == torch.float32 and permission.available())


@pytest.mark.parametrize("name", ["sdpa", "products"])
def test_attention_under_any_mask_takes_the_quicker_path(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    inject(monkeypatch, quickest(name))
    called = watched(monkeypatch, attention.TWINS)
    q, positions = torch.ones(1, 2, 8, 16), torch.arange(8)[None]
    attention.attention(
        q, q, q, AttentionProblem(Full(), Sites(positions, positions.masked_fill(positions > 5, -1)), 0.25)
    )
    assert called == [name]


@pytest.mark.parametrize("name", ["torch", "torch, fp32"])
@pytest.mark.parametrize("form", ["autocast", "weights in bf16"])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_recurrence_below_fp32_takes_the_quicker_path(
    monkeypatch: pytest.MonkeyPatch, cell: str, form: str, name: str
) -> None:
    inject(monkeypatch, quickest(name))
    monkeypatch.setitem(
        recurrence.TWINS, "torch", recurrence.TWINS["torch, fp32"]
    )  # torch's own does not run on every machine
    called = watched(monkeypatch, recurrence.TWINS)
    dtype, gates = torch.float32 if form == "autocast" else torch.bfloat16, recurrence._GATES[cell]
    weights = tuple(
        torch.full(size, 0.1, dtype=dtype) for size in ((gates * 4, 6), (gates * 4, 4), (gates * 4,), (gates * 4,))
    )
    state = tuple(torch.zeros(2, 4, dtype=dtype) for _ in range(2 if cell == "lstm" else 1))
    with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
        recurrence.recur(cell, torch.ones(2, 3, 6, dtype=dtype), state, weights)  # pyright: ignore[reportArgumentType]
    assert called == [name]
    assert [choice.op for choice in choices.all_choices()] == [cell]
