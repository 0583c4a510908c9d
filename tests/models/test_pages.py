"""Models whose keys and values are in pages, against the same in float64 and in dense stores."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.ops.present import needs_native
from torch import Tensor

import qkv
from qkv.layers.signal import Signal
from qkv.mixers.attention.attention import Attention
from qkv.models.fast import native_step, runners
from qkv.models.transformer import Transformer
from qkv.ops.native import pages as kernel
from qkv.spec.model import Model
from qkv.state import pages
from qkv.state.pages import Paged
from qkv.state.tree import rows

pytestmark = needs_native

READ = {
    "plain": "attention(4)",
    "rope, few key heads": "attention(4, num_kv_heads=2, relative=rope)",
    "alibi": "attention(4, num_kv_heads=1, relative=alibi)",
    "scaled alibi": "attention(4, relative=alibi(scaled=true))",
    "soft cap, norms": "attention(4, softcap=3.0, qk_norm=rms_norm)",
    "sink": "attention(4, learned_sink=true)",
    "odd widths": "attention(2, head_dim=10, value_dim=7)",
}
GATHERED = {
    "top k": "attention(4, top_k=3)",
    "rounded slopes": "attention(4, relative=alibi(rounded=bf16))",
    "learned distances": "attention(4, relative=t5)",
    "shaped": "attention(4, shaped=true)",
    "window": {"kind": "attention", "mask": "causal & window(4)"},
    "gru": "gru",
}


def built(branch: Any) -> Transformer:
    sizes = {"width": 32, "num_layers": 2, "context_length": 160, "frontend": {"kind": "text", "vocab_size": 50}}
    torch.manual_seed(0)
    model = qkv.build(
        Model.parse({**sizes, "init_std": 0.2, "blocks": [{"branches": [branch, "feed_forward"]}]})
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "sink" in name:
                parameter.add_(torch.randn_like(parameter))
    return model


def tokens(count: int, length: int) -> Tensor:
    return torch.randint(50, (count, length), generator=torch.Generator().manual_seed(count))


@torch.inference_mode()
def fed(model: Transformer, ids: Tensor, sizes: list[list[int]], in_pages: bool) -> list[Tensor]:
    """Logits of each row, in calls that give row b ``sizes[i][b]`` tokens; between them rows change places."""
    state, taken = model.init_state(len(ids), pages=in_pages), [0] * len(ids)
    order, out = list(range(len(ids))), [list[Tensor]() for _ in ids]
    for call in sizes:
        came = [call[row] for row in order]
        texts = torch.zeros(len(ids), max(came), dtype=torch.long)
        for place, row in enumerate(order):
            texts[place, : came[place]] = ids[row, taken[row] : taken[row] + came[place]]
        logits, state = model(Signal(texts, torch.tensor(came)), state)
        for place, row in enumerate(order):
            out[row].append(logits[place, : came[place]])
            taken[row] += came[place]
        order = [*order[1:], order[0]]
        state = rows(state, [*range(1, len(ids)), 0])
    stores = [store for block in state.blocks for store in block if isinstance(store, Paged)]
    assert bool(stores) == in_pages
    return [torch.cat(row) for row in out]


CALLS = [[9, 0, 30], [1, 1, 1], [5, 3, 0], [1, 1, 1], [20, 1, 4], [1, 1, 1], [1, 1, 1]]
"""Prompts, single tokens, a few tokens, more than the kernel takes."""


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("native", [True, False], ids=["native step", "part by part"])
def test_what_reads_pages_computes_what_dense_stores_give(
    name: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE", 4)
    if not native:
        monkeypatch.setattr(runners, "native_step", lambda *given: None)
    model, ids = built(READ[name]), tokens(3, 40)
    attention = model.branches[0]
    assert isinstance(attention, Attention)
    assert attention.reads_pages
    with patch.object(kernel, "attention", wraps=kernel.attention) as called:
        found = fed(model, ids, CALLS, True)
    in_step = native and name in ("plain", "rope, few key heads", "odd widths")
    assert called.call_count == (0 if in_step else 10), "a call of more than 16 tokens gathers"
    assert in_step == (model in native_step._made and native_step._made[model].known)
    expected = fed(copy.deepcopy(model).double(), ids, CALLS, False)
    for got, right in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=0, atol=3e-5)


@pytest.mark.parametrize("name", GATHERED)
def test_what_cannot_read_pages_has_none(name: str) -> None:
    model = built(GATHERED[name])
    assert not any(branch.reads_pages for branch in model.branches)
    assert model.page_bytes(100) == 0
    assert not any(isinstance(store, Paged) for block in model.init_state(2, pages=True).blocks for store in block)


def test_pages_that_are_gathered_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a tap looks on, or where there is no kernel."""
    monkeypatch.setattr(pages, "PAGE", 4)
    model, ids = built(READ["rope, few key heads"]), tokens(3, 40)
    expected = fed(model, ids, CALLS, False)
    monkeypatch.setattr(kernel, "suits", lambda q: False)
    monkeypatch.setattr(runners, "native_step", lambda *given: None)
    for got, right in zip(fed(model, ids, CALLS, True), expected, strict=True):
        torch.testing.assert_close(got, right, rtol=0, atol=3e-5)


def test_without_the_kernel_or_in_other_precisions_there_are_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(READ["plain"])
    assert not copy.deepcopy(model).double().branches[0].reads_pages
    assert not copy.deepcopy(model).bfloat16().branches[0].reads_pages
    monkeypatch.setattr(kernel, "_loaded", lambda: "there is no compiler")
    assert not model.branches[0].reads_pages


def test_bytes_of_pages_and_of_slots() -> None:
    model = built({"kind": "attention", "num_heads": 4})
    row = 2 * 2 * 32 * 4  # layers, keys and values, features, bytes
    assert model.page_bytes(1) == model.page_bytes(32) == 32 * row
    assert model.page_bytes(33) == 64 * row
    assert model.room_bytes(100, 3, pages=True) == 0
    assert model.room_bytes(100, 3) == 3 * 128 * row
