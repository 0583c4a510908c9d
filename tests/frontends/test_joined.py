"""Tests of several named inputs in one row: vectors at their places, decoding after them, shared beginnings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.generation.decode.beam import beam_search
from qkv.generation.decode.sample import Sampling
from qkv.generation.queue.prefixes import Prefixes
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.interop.onnx.graph import graph_of
from qkv.layers.signal import Signal, placeholder
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.errors import SpecError
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.system.errors import UserError

POINTS = {"kind": "contour_points", "points": 3, "positions": "none"}
CHANNELS = {"kind": "nodes", "num_columns": 2}
"""A front end of values of any length."""
GREEDY = Generation(max_new_tokens=6, temperature=0.0)


def model_of(**frontend: Any) -> Transformer:
    inputs = {"points": POINTS, "nodes": CHANNELS}
    spec = Model.parse(
        {
            "width": 16,
            "num_layers": 2,
            "context_length": 32,
            "frontend": {"kind": "joined", "vocab_size": 20, "inputs": inputs, **frontend},
            "blocks": [{"branches": ["attention(2)", "feed_forward(16)"]}],
            "init_std": 0.3,
        }
    )
    return build(spec, 1).double().eval()


def points(rows: int, seed: int = 0) -> Signal:
    return Signal(torch.randn(rows, 3, 3, generator=torch.Generator().manual_seed(seed)).double())


def row_of(*ids: int) -> Tensor:
    return torch.tensor([ids])


P, N = placeholder(0, 2), placeholder(1, 2)


def test_each_vector_stands_at_its_place() -> None:
    model = model_of()
    ids = torch.tensor([[5, P, P, P, 7, 1], [P, P, P, N, N, 2]])
    nodes = Signal(torch.randn(1, 2, 2).double())
    signal = Signal(ids, inputs={"points": points(2), "nodes": nodes})
    found, _ = model.frontend.embed(signal)
    table, frontend = model.frontend.table, model.frontend
    wanted = table[ids.clamp(min=0)].clone()
    inner: Any = frontend.inputs  # type: ignore[union-attr]
    mapped = points(2).values @ inner["points"].map.weight.T + inner["points"].map.bias
    wanted[0, 1:4], wanted[1, :3] = mapped[0], mapped[1]
    wanted[1, 3:5] = inner["nodes"].embed(nodes)[0][0]
    wanted = wanted + frontend.positions.table[:6]  # type: ignore[union-attr]
    torch.testing.assert_close(found, wanted)


def test_padding_of_a_value_is_no_position() -> None:
    model = model_of()
    longer = Signal(torch.randn(2, 4, 2).double(), torch.tensor([4, 1]))
    both = torch.tensor([[N, N, N, N, 3], [N, 3, 4, 5, 6]])
    together = model(Signal(both, inputs={"nodes": longer}))[0]
    alone = model(Signal(both[1:], inputs={"nodes": Signal(longer.values[1:, :1])}))[0]
    torch.testing.assert_close(together[1:], alone)


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_decoding_goes_on_after_the_values(cut: int) -> None:
    model = model_of()
    ids = row_of(4, P, P, P, 7, 8, 9, 3)
    signal = Signal(ids, inputs={"points": points(1)})
    whole = model(signal)[0]
    state = model.init_state(1)
    first, state = model(replace(signal, values=ids[:, : 5 + cut]), state)
    parts = [first]
    for i in range(5 + cut, 8):
        out, state = model(ids[:, i : i + 1], state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    decoded = model.decode([[11]], state).logits
    torch.testing.assert_close(decoded, model(replace(signal, values=row_of(*ids[0].tolist(), 11)))[0][:, -1])


def naive(model: Transformer, prompt: list[int], inputs: dict[str, Signal]) -> list[int]:
    """Greedy continuation by whole passes."""
    text = list(prompt)
    for _ in range(GREEDY.max_new_tokens):
        text.append(int(model(Signal(row_of(*text), inputs=inputs))[0][0, -1].argmax()))
    return text[len(prompt) :]


def test_every_way_to_generate_writes_the_same() -> None:
    model = model_of()
    prompts = [[4, P, P, P, 7], [P, P, P, 2, 2, 2, 9], [6, 1]]
    inputs: list[dict[str, Signal]] = [{"points": points(1, 1)}, {"points": points(1, 2)}, {}]
    with torch.inference_mode():
        wanted = [naive(model, prompt, own) for prompt, own in zip(prompts, inputs, strict=True)]
    sampling = Sampling(model, [], GREEDY)
    sampling.admit(prompts, inputs=inputs)
    for _ in range(GREEDY.max_new_tokens + 4):
        sampling.step()
        sampling.drop([row for row in sampling.running if sampling.is_full(row)])
    assert [sampling.texts[i][len(prompt) :] for i, prompt in enumerate(prompts)] == wanted
    assert [best[0].tokens for best in beam_search(model, prompts, GREEDY, inputs=inputs)] == wanted
    queue = RequestQueue(model, None)
    for prompt, own in zip(prompts, inputs, strict=True):
        queue.submit(Request(prompt, GREEDY, inputs=own))
    texts: dict[int, list[int]] = {}
    while not queue.idle:
        for delta in queue.step():
            assert not delta.error
            texts.setdefault(delta.number, []).extend(delta.tokens)
    assert [texts[number] for number in sorted(texts)] == wanted


def test_a_beginning_is_shared_only_with_the_same_values() -> None:
    model = model_of()
    first, second = (placeholder(0, 2, content) for content in (7, 8))
    kept = Prefixes(model, 1 << 30)
    values = {first: {"points": points(1, 1)}, second: {"points": points(1, 2)}}
    with torch.inference_mode():
        for mark in (first, first, second):
            prompt = [4, mark, mark, mark, *range(1, 20)]
            sampling = Sampling(model, [], GREEDY)
            sampling.engine.share(kept)
            sampling.admit([prompt], inputs=[values[mark]])
            while not sampling.is_full(0):
                sampling.step()
            sampling.drop({0})
            assert sampling.texts[0][len(prompt) :] == naive(model, prompt, values[mark])


def test_a_penalty_counts_tokens_only() -> None:
    model = model_of()
    generation = Generation(max_new_tokens=4, temperature=0.0, repetition_penalty=1.5)
    sampling = Sampling(model, [], generation)
    sampling.admit([[P, P, P]], inputs=[{"points": points(1)}])
    for _ in range(4):
        sampling.step()
    assert len(sampling.texts[0]) == 7


@pytest.mark.parametrize(
    ("ids", "inputs", "reason"),
    [
        (row_of(P, P, 3), {"points": points(1)}, "rows have 2 placeholder ids of the input 'points'"),
        (row_of(1, 2, 3), {"points": points(1)}, "rows have 0 placeholder ids of the input 'points'"),
        (
            row_of(P, P, P),
            {"nodes": Signal(torch.randn(1, 3, 2).double())},
            "rows have 3 placeholder ids of the input 'points'",
        ),
        (row_of(1, 2), {"sound": points(1)}, "the model has no input 'sound'; it reads points, nodes"),
        (row_of(P, P, P), None, "outside of the vocabulary"),
    ],
)
def test_values_that_do_not_fit_are_refused(ids: Tensor, inputs: dict[str, Signal] | None, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        model_of()(Signal(ids, inputs=inputs))


def test_a_text_with_values_does_not_slide() -> None:
    generation = Generation(max_new_tokens=40, temperature=0.0)
    with pytest.raises(UserError, match=r"the model has 32 positions; ask for fewer tokens$"):
        beam_search(model_of(), [[P, P, P]], generation, inputs=[{"points": points(1)}])


def test_an_onnx_file_is_refused() -> None:
    with pytest.raises(UserError, match="the input of 'joined' is not one tensor of one size"):
        graph_of(model_of())


@pytest.mark.parametrize(
    ("frontend", "reason"),
    [
        ({"inputs": {"more": "text"}}, "does not read the values of a processor"),
        ({"query": True}, "the placeholders of other inputs"),
    ],
)
def test_specs_that_cannot_be_joined_are_refused(frontend: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        model_of(**frontend)
