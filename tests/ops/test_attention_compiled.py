"""Attention in a compiled graph: one graph, the same numbers, whichever path was chosen."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.ops.attention_cases import Case
from tests.ops.clock import forget_choices
from tests.ops.compare import assert_all_same, outputs_and_gradients

from qkv.ops.attention import choose, reference
from qkv.ops.attention.twins import boxed
from qkv.ops.selection.choices import Choice

CASES = [
    Case("causal", queries=70, widths=(8, 8)),
    Case("full", queries=9, heads=(3, 3), widths=(4, 4)),
    Case("wide window", widths=(4, 4)),
    Case("causal", queries=70, softcap=0.5),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.mask)
@pytest.mark.parametrize("twin", ["sdpa", *boxed.TWINS])
def test_one_graph_with_the_outputs_and_gradients_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, twin: str, case: Case
) -> None:
    forget_choices(monkeypatch)
    monkeypatch.setattr(choose, "_SMALLEST", 1)
    monkeypatch.setattr(choose, "_measured", lambda case, *_: Choice("attention", case, twin, "given"))
    problem, inputs = case.problem(), case.inputs(torch.float32)
    choose.attention(*(t.requires_grad_() for t in inputs), problem)
    torch._dynamo.reset()
    compiled = torch.compile(partial(choose.attention, problem=problem), backend="aot_eager", fullgraph=True)
    expected = outputs_and_gradients(partial(reference.attention, problem=problem), [t.double() for t in inputs])
    assert_all_same(outputs_and_gradients(compiled, inputs), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("twin", boxed.TWINS)
def test_what_a_box_says_of_itself_is_true(twin: str, dtype: torch.dtype) -> None:
    """Shapes, strides, precision, gradients: as the compiler assumes them."""
    q, k, v = (t.requires_grad_() for t in Case("causal", heads=(2, 2), widths=(4, 4)).inputs(dtype))
    torch.library.opcheck(
        torch.ops.qkv.attention.default,
        (q, k, v, twin, True, 0.5),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    out, rest = torch.ops.qkv.attention.default(q, k, v, twin, True, 0.5)
    given = (torch.randn_like(out), *(t.detach() for t in (q, k, v, out, rest)), twin, True, 0.5)
    torch.library.opcheck(
        torch.ops.qkv.attention_backward.default, given, test_utils=("test_schema", "test_faketensor")
    )
    assert (out.dtype, out.shape, out.is_contiguous()) == (dtype, q.shape, True)
