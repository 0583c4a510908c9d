"""Decoding steps by the native library against the same model part by part, in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from pydantic import create_model
from tests.ops.present import needs_native
from torch import Tensor

import qkv
from qkv.generation.decode.sample import generate
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.layers.branch import linear_maps
from qkv.layers.linear.lora import adapters, merged, wrap
from qkv.layers.tap import Recorder
from qkv.models.edit.quantize import quantize
from qkv.models.fast import native_step, native_token, runners
from qkv.models.fast.frozen_weights import unchanged
from qkv.models.fast.layout import lay_out
from qkv.models.fast.native_parts import FIELDS, beyond
from qkv.models.transformer import Transformer
from qkv.ops.native.step import INPUTS, Steps
from qkv.ops.selection.choices import twin_of
from qkv.spec.base import Spec
from qkv.spec.model import Model
from qkv.spec.models.adapt import LoRA
from qkv.spec.models.quantization import Quantization
from qkv.system.errors import UserError

pytestmark = needs_native

FORMS: dict[str, dict[str, Any]] = {
    "gpt2": {"branches": ["attention(4)", "feed_forward(activation=gelu_tanh)"]},
    "llama": {
        "branches": ["attention(4, num_kv_heads=2, bias=false, relative=rope)", "gated_feed_forward(bias=false)"],
        "norm": "rms_norm",
    },
    "one key head": {"branches": ["attention(4, num_kv_heads=1)", "feed_forward"]},
    "odd sizes": {"branches": ["attention(3, head_dim=10)", "feed_forward(hidden=57)"]},
    "part of the features": {"branches": ["attention(2, relative=rope(fraction=0.5))", "feed_forward(hidden=50)"]},
    "no norm weight": {"branches": ["attention(2)", "feed_forward"], "norm": "rms_norm(weight=false)"},
    "keys without a bias": {
        "branches": ["attention(4, num_kv_heads=2, value_dim=5, key_bias=false, relative=rope)", "feed_forward"]
    },
}


def built(form: dict[str, Any], width: int = 48, **more: Any) -> Transformer:
    sizes = {"width": width, "num_layers": 2, "context_length": 160, "frontend": {"kind": "text", "vocab_size": 50}}
    torch.manual_seed(0)
    model = qkv.build(Model.parse({**sizes, "blocks": [form], **more})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def decoded(model: Transformer, ids: Tensor, split: int) -> Tensor:
    """Logits of each position from ``split`` on, one position at a time."""
    with torch.inference_mode():
        _, state = model(ids[:, :split], model.init_state(len(ids)))
        found = []
        for i in range(split, ids.shape[1]):
            logits, state = model(ids[:, i : i + 1], state)
            found.append(logits[:, 0])
    return torch.stack(found, 1)


def used(model: Transformer) -> bool:
    step = native_step._made.get(model)
    return step is not None and step.known


def used_token(model: Transformer) -> bool:
    step = native_token._made.get(model)
    return step is not None and step.known


def by_tokens(model: Transformer, ids: Tensor, split: int) -> Tensor:
    """Logits of each position from ``split`` on, from one token of each row at a time."""
    with torch.inference_mode():
        _, state = model(ids[:, :split], model.init_state(len(ids)))
        found = []
        for i in range(split, ids.shape[1]):
            logits, state = model.decode(ids[:, i : i + 1].tolist(), state)
            found.append(logits)
    assert state.positions.tolist() == [ids.shape[1]] * len(ids)
    return torch.stack(found, 1)


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_steps_equal_the_parts_in_float64(name: str, rows: int) -> None:
    model, ids = built(FORMS[name]), tokens(rows, 12)
    found = decoded(model, ids, 5)
    assert used(model)
    assert twin_of("decoding step", "up to 32 new positions, all blocks") == "native"
    expected = decoded(copy.deepcopy(model).double(), ids, 5)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("activation", INPUTS[3:])
@pytest.mark.parametrize("kind", ["feed_forward", "gated_feed_forward"])
def test_activations(activation: str, kind: str) -> None:
    """With inputs from very small to where exponentials overflow."""
    model = built({"branches": ["attention(2)", f"{kind}(activation={activation})"]})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".up.weight" in name or ".gate_up.weight" in name:
                parameter.mul_(torch.logspace(-3, 3, len(parameter))[:, None])
    ids = tokens(2, 8)
    found, expected = decoded(model, ids, 4), decoded(copy.deepcopy(model).double(), ids, 4)
    assert used(model)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("name", ["gpt2", "llama", "odd sizes"])
def test_quantised_weights(name: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to the products of the layers, which round activations alike."""
    model, ids = built(FORMS[name], 64), tokens(3, 12)
    quantize(model, Quantization.parse({"bits": bits}))
    found = decoded(model, ids, 5)
    assert used(model)
    monkeypatch.setattr(runners, "native_step", lambda *given: None)
    torch.testing.assert_close(found, decoded(model, ids, 5), rtol=0, atol=1e-4 if bits == 16 else 0.02)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["gpt2", "llama", "odd sizes"])
def test_low_rank_adapters(name: str, rows: int) -> None:
    """Beside all products, of inputs of every kind; a merge and its end are noticed, and another scale is left to the
    layers.
    """
    model, ids = built(FORMS[name]), tokens(rows, 12)
    every = {path.rpartition(".")[2] for path in linear_maps(model)}
    wrap(model, linear_maps(model), LoRA(rank=3, alpha=6.0))
    for layer in adapters(model).values():
        torch.nn.init.normal_(layer.lora_b, std=0.1)
        layer.absorb_scale()
    assert {"qkv", "output", "down"} <= every
    expected = decoded(copy.deepcopy(model).double(), ids, 5)
    torch.testing.assert_close(decoded(model, ids, 5).double(), expected, rtol=0, atol=2e-5)
    with merged(model):
        torch.testing.assert_close(decoded(model, ids, 5).double(), expected, rtol=0, atol=2e-5)
        assert used(model)
    torch.testing.assert_close(decoded(model, ids, 5).double(), expected, rtol=0, atol=2e-5)
    assert used(model)
    next(iter(adapters(model).values())).scale = 2.0
    other = copy.deepcopy(model)
    decoded(other, ids, 5)
    assert not used(other)


def test_rows_of_different_lengths_and_stores_that_grow() -> None:
    model = built(FORMS["llama"])
    texts = [tokens(1, length)[0].tolist() for length in (3, 90, 41)]
    settings = qkv.Generation(max_new_tokens=60, temperature=0.0)
    together = generate(model, texts, settings)
    assert used_token(model)
    for text, written in zip(texts, together, strict=True):
        assert generate(copy.deepcopy(model).double(), [text], settings) == [written]


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("name", ["gpt2", "llama", "one key head", "odd sizes"])
def test_threads_divide_rows_of_different_lengths(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head of each row is computed by one thread, also with more threads than heads; in slots and in pages."""
    model, lengths = built(FORMS[name]), (70, 1, 90, 3, 41)
    texts = [tokens(1, length)[0].tolist() for length in lengths]
    settings = qkv.Generation(max_new_tokens=8, temperature=0.0)
    expected = generate(copy.deepcopy(model).double(), texts, settings)
    monkeypatch.setattr(Steps, "_threads", lambda self, past, counts, memory: threads)
    assert generate(model, texts, settings) == expected
    queue, found = RequestQueue(model, None), dict[int, list[int]]()
    for text in texts:
        queue.submit(Request(text, settings))
    while not queue.idle:
        for piece in queue.step():
            found.setdefault(piece.number, []).extend(piece.tokens)
    assert [found[i] for i in range(len(texts))] == expected
    assert used_token(model)


def test_changes_of_the_model_are_noticed() -> None:
    """New values, new tensors, new modules, hooks, taps and training."""
    model, ids = built(FORMS["gpt2"]), tokens(2, 8)
    first = decoded(model, ids, 4)
    layer: Any = model.branches[3]
    for change in (
        lambda: layer.down.weight.data.mul_(2),
        lambda: setattr(layer.down, "weight", torch.nn.Parameter(layer.down.weight.detach() * 1.5)),
        lambda: setattr(layer, "up", copy.deepcopy(layer.up).requires_grad_(False)),
        lambda: layer.up.weight.mul_(3),
        lambda: layer.down.register_forward_hook(lambda module, inputs, output: output * 0.5),
    ):
        change()
        found = decoded(model, ids, 4)
        torch.testing.assert_close(found.double(), decoded(copy.deepcopy(model).double(), ids, 4), rtol=0, atol=1e-4)
        first = found if not torch.equal(first, found) else first
    tap, state = Recorder("output"), model.init_state(2)
    with torch.inference_mode():
        model(ids[:, :1], state, tap=tap)
    assert any("blocks.1" in path for path, _ in tap)


@pytest.mark.parametrize(
    ("branch", "more"),
    [
        ("attention(2, mask=causal & window(4))", {}),
        ("attention(2, relative=alibi)", {}),
        ("attention(2, softcap=5.0)", {}),
        ("attention(2, qk_norm=rms_norm)", {}),
        ("gru", {}),
        ("attention(2)", {"order": "post"}),
        ("attention(2)", {"residual": "scaled"}),
    ],
)
def test_other_parts_are_called(branch: str, more: dict[str, Any]) -> None:
    model, ids = built({"branches": [branch, "feed_forward"], **more}), tokens(2, 9)
    found = decoded(model, ids, 4)
    assert not used(model)
    torch.testing.assert_close(found.double(), decoded(copy.deepcopy(model).double(), ids, 4), rtol=0, atol=1e-4)


WHOLE: dict[str, tuple[dict[str, Any], bool]] = {
    "learned positions": ({}, True),
    "no positions": ({"frontend": {"kind": "text", "vocab_size": 50, "positions": "none"}}, True),
    "positions with an offset": (
        {"frontend": {"kind": "text", "vocab_size": 50, "positions": {"kind": "learned", "offset": 2}}},
        True,
    ),
    "sinusoidal positions": ({"frontend": {"kind": "text", "vocab_size": 50, "positions": "sinusoidal"}}, False),
    "scaled embedding": ({"frontend": {"kind": "text", "vocab_size": 50, "scale": True}}, False),
    "own output matrix with a bias": ({"head": {"kind": "language_model", "tied": False, "bias": True}}, True),
    "no final norm": ({"norm": "none"}, True),
    "rms norm at the end": ({"norm": "rms_norm"}, True),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("form", ["gpt2", "llama"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_token_of_the_whole_model_equals_its_parts_in_float64(name: str, form: str, rows: int) -> None:
    more, embeds = WHOLE[name]
    model, ids = built(FORMS[form], **more), tokens(rows, 12)
    found = by_tokens(model, ids, 5)
    step = native_token._made.get(model)
    assert step is not None
    assert step.embeds == embeds
    wide = copy.deepcopy(model).double()
    torch.testing.assert_close(found.double(), by_tokens(wide, ids, 5), rtol=0, atol=2e-5)
    assert not used_token(wide)
    torch.testing.assert_close(by_tokens(wide, ids, 5), decoded(wide, ids, 5))


def by_pieces(model: Transformer, ids: Tensor, pieces: Sequence[Sequence[int]], pages: bool) -> tuple[Tensor, Tensor]:
    """(logits of ``decode``, logits of calls with padding) of all tokens, read in ``pieces``: the number of new tokens
    of each row. Logits (M, V) are row by row within each piece.
    """
    decoded, padded = list[Tensor](), list[Tensor]()
    with torch.inference_mode():
        one, other = (model.init_state(len(ids), pages=pages) for _ in range(2))
        done = [0] * len(ids)
        for counts in pieces:
            texts = [
                ids[i, begin : begin + count].tolist()
                for i, (begin, count) in enumerate(zip(done, counts, strict=True))
            ]
            logits, one = model.decode(texts, one)
            decoded.append(logits)
            logits, other = model(qkv.Signal.of_rows(texts), other)
            padded += [logits[i, :count] for i, count in enumerate(counts)]
            done = [a + b for a, b in zip(done, counts, strict=True)]
    assert one.positions.tolist() == other.positions.tolist() == done
    return torch.cat(decoded), torch.cat(padded)


@pytest.mark.parametrize("pages", [False, True])
@pytest.mark.parametrize("more", [{}, {"frontend": {"kind": "text", "vocab_size": 50, "positions": "sinusoidal"}}])
@pytest.mark.parametrize("name", FORMS)
def test_several_positions_of_a_row_equal_the_parts_in_float64(name: str, more: dict[str, Any], pages: bool) -> None:
    """Different numbers in each row, from the beginning and across a page; one of them without a new position."""
    model, ids = built(FORMS[name], **more), tokens(3, 60)
    pieces = [(9, 2, 15), (1, 1, 1), (4, 4, 4), (13, 1, 16), (5, 20, 0), (1, 9, 1)]
    found = by_pieces(model, ids, pieces, pages)
    assert used(model)
    assert used_token(model)
    wide = copy.deepcopy(model).double()
    for own, expected in zip(found, by_pieces(wide, ids, pieces, pages), strict=True):
        torch.testing.assert_close(own.double(), expected, rtol=0, atol=2e-5)
    assert not used_token(wide)


@pytest.mark.parametrize(("counts", "native"), [((16, 16), True), ((17, 16), False), ((33, 0), False)])
def test_more_positions_than_a_step_takes_are_read_by_the_parts(
    counts: tuple[int, ...], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids, calls = built(FORMS["llama"]), tokens(2, 40), list[Any]()
    run = Steps.run
    monkeypatch.setattr(Steps, "run", lambda self, *given: calls.append(given) or run(self, *given))
    with torch.inference_mode():
        expected = model(ids)[0]
        logits, state = model.decode([ids[i, :n].tolist() for i, n in enumerate(counts)], model.init_state(2))
    assert state.positions.tolist() == list(counts)
    assert len(calls) == native
    own = torch.cat([expected[i, :n] for i, n in enumerate(counts)])
    torch.testing.assert_close(logits, own, rtol=0, atol=1e-4)


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("width", [64, 80])
def test_a_token_with_quantised_tables(bits: int, width: int) -> None:
    model, ids = built(FORMS["llama"], width), tokens(3, 12)
    quantize(model, Quantization.parse({"bits": bits}))
    found = by_tokens(model, ids, 5)
    assert used_token(model)
    with torch.inference_mode():
        _, state = model(ids[:, :5], model.init_state(3))
        expected = []
        for i in range(5, 12):
            vectors, state = model.features(ids[:, i : i + 1], state)
            expected.append(model.head(vectors)[:, 0])
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=0, atol=1e-4 if bits == 16 else 0.02)


@pytest.mark.parametrize("more", [{"softcap": 4.0}, {"scale": 0.5}, {"transform": "gelu"}])
def test_other_heads_are_called(more: dict[str, Any]) -> None:
    model, ids = built(FORMS["gpt2"], head={"kind": "language_model", **more}), tokens(2, 9)
    found = by_tokens(model, ids, 4)
    assert not used_token(model)
    assert used(model)
    torch.testing.assert_close(found.double(), by_tokens(copy.deepcopy(model).double(), ids, 4), rtol=0, atol=1e-4)


def test_a_token_is_refused_as_by_the_parts() -> None:
    """Unknown ids, full states and other numbers of rows."""
    model, ids = built(FORMS["gpt2"]), tokens(2, 4)
    with torch.inference_mode():
        _, state = model(ids, model.init_state(2, capacity=5))
        for wrong in ([[3], [50]], [[-1], [3]]):
            with pytest.raises(UserError, match="outside of the vocabulary"):
                model.decode(wrong, state)
        with pytest.raises(UserError, match="have different numbers of rows"):
            model.decode([[1], [2], [3]], state)
        with pytest.raises(UserError, match="holds 5 positions and 6 are needed"):
            model.decode([[1], [2, 3]], state)
        state = model.decode([[1], [2]], state).state
        with pytest.raises(UserError, match="holds 5 positions and 6 are needed"):
            model.decode([[1], [2]], state)
        _, state = model(tokens(1, 160), model.init_state(1))
        with pytest.raises(UserError, match="161 positions are more than the 160"):
            model.decode([[1]], state)
    assert used_token(model)


def test_weights_in_columns_are_known_once_they_are_laid_out() -> None:
    model, ids = built(FORMS["gpt2"]), tokens(2, 8)
    weight = model.branches[3].down.weight  # type: ignore[union-attr]
    weight.data = weight.data.t().contiguous().t()
    first = decoded(model, ids, 4)
    assert not used(model)
    lay_out(model)
    torch.testing.assert_close(decoded(model, ids, 4), first, rtol=0, atol=2e-5)
    assert used(model)


def test_a_promise_spares_the_comparison_until_it_ends_or_weights_are_laid_out() -> None:
    model, ids = built(FORMS["gpt2"]), tokens(2, 8)
    by_tokens(model, ids, 4)
    step = native_token._made.get(model)
    assert step is not None
    parts = (model.frontend, *model.walked, model.norm, model.head)
    other: Any = model.branches[3]
    with unchanged():
        assert step.current(parts)
        kept, other.down.weight = other.down.weight, torch.nn.Parameter(other.down.weight.detach() * 1.5)
        assert step.current(parts)  # not compared again
        with unchanged():
            assert step.current(parts)
        other.down.weight = kept
        kept.data = kept.data.t().contiguous().t()  # columns, which are laid out as rows
        with unchanged():
            lay_out(model)
        assert not step.current(parts)
    assert step.current(parts) is False
    found = by_tokens(model, ids, 4)
    torch.testing.assert_close(found.double(), by_tokens(copy.deepcopy(model).double(), ids, 4), rtol=0, atol=1e-4)


def later(kind: type[Spec], monkeypatch: pytest.MonkeyPatch) -> type[Spec]:
    """``kind`` as a later version of it may be: with one more field, of which the library knows nothing."""
    found = create_model("Later", __base__=kind, extra=(bool, False))
    monkeypatch.setitem(FIELDS, found, FIELDS[kind])
    return found


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_a_field_that_is_added_later_is_not_ignored(kind: type[Spec], monkeypatch: pytest.MonkeyPatch) -> None:
    more = later(kind, monkeypatch)
    assert beyond(kind()) == ""
    assert beyond(more()) == ""
    assert beyond(more(extra=True)).endswith("with extra")


def test_a_model_whose_attention_has_such_a_field_decodes_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = built(FORMS["gpt2"]), torch.arange(12)[None]
    expected = decoded(model, ids, 6)
    assert used(model)
    attention, other = model.walked[0].spec.branches
    more = later(type(attention), monkeypatch)(num_heads=attention.num_heads, extra=True)
    model.walked[0].spec = model.walked[0].spec.changed(branches=(more, other))
    native_step._made.pop(model)
    torch.testing.assert_close(decoded(model, ids, 6), expected)
    assert not used(model)
    assert native_step._made[model].unknown == "attention with extra"
