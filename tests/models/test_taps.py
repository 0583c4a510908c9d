"""Taps: points of a model, the values there, and others in their place."""

from __future__ import annotations

import pytest
import torch
from tests.models.stacks import model
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.observable import list_points
from qkv.layers.tap import Location, Recorder, Tap, TapSequence
from qkv.lens.capture.edits import replace
from qkv.lens.record import record
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.ops.attention import reference
from qkv.spec.branches import GRU, Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import ClassificationHead
from qkv.spec.masks import Causal, Full, Window
from qkv.spec.mixers.relative_attention import RelativeAttention
from qkv.spec.model import Block, Encoder, Latents, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import Alibi, BatchNorm, LayerNorm, Norm, RMSNorm, Rope
from qkv.system.errors import UserError

IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 3, 5]])
OTHER = torch.tensor([[9, 8, 7, 6, 5], [1, 2, 3, 4, 5]])
MIXERS = {
    "rope": Attention(num_heads=2, num_kv_heads=1, relative=Rope()),
    "alibi": Attention(num_heads=2, mask=Causal() & Window(size=3), relative=Alibi()),
    "top k": Attention(num_heads=2, top_k=2),
    "relative": RelativeAttention(num_heads=2),
}


def built(*branches: Attention | FeedForward | GatedFeedForward | GRU, **fields: object) -> Transformer:
    block = Block.parse({"branches": branches or (MIXERS["rope"], FeedForward()), **fields})
    return (
        build(
            Model(
                width=16, num_layers=2, context_length=16, frontend=Text(vocab_size=11), blocks=(block,), init_std=0.4
            )
        )
        .double()
        .eval()
    )


CONTEXT = Context(torch.arange(5)[None])


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
@torch.no_grad()
def test_weights_times_values_is_what_attention_gives(mixer: Attention) -> None:
    m, tap = built(mixer, FeedForward()), Recorder("v", "scores", "weights", "head_outputs", "output")
    m(IDS, tap=tap)
    for branch in (b for b in m.branches if b.spec == mixer):
        weights, v = tap[f"{branch.name}.weights"], tap[f"{branch.name}.v"]
        torch.testing.assert_close(tap[f"{branch.name}.scores"].softmax(-1), weights)
        mixed = weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
        torch.testing.assert_close(mixed, tap[f"{branch.name}.head_outputs"])
        torch.testing.assert_close(branch.ending()(mixed.transpose(1, 2).flatten(2)), tap[f"{branch.name}.output"])  # type: ignore[misc]


@pytest.mark.parametrize("order", ["pre", "parallel", "post", "sandwich"])
@torch.no_grad()
def test_a_branch_reads_its_norm_and_adds_its_output_to_the_stream(order: str) -> None:
    m = built(order=order)
    tap = Recorder("residual_before", "input", "output", "residual_after")
    logits, _ = m(IDS, tap=tap)
    stream = tap["frontend.output"]
    for block in m.blocks:
        entering = stream
        for slot in block.branches:  # type: ignore[union-attr]
            torch.testing.assert_close(tap[f"{slot.name}.residual_before"], stream)
            norm = block.norm if order == "parallel" else slot.norm
            read = stream if order == "post" else norm(entering if order == "parallel" else stream, CONTEXT)
            torch.testing.assert_close(tap[f"{slot.name}.input"], read)
            y = tap[f"{slot.name}.output"]
            y = slot.norm_after(y, CONTEXT) if order == "sandwich" else y
            stream = slot.norm(stream + y, CONTEXT) if order == "post" else stream + y
            torch.testing.assert_close(tap[f"{slot.name}.residual_after"], stream)
    torch.testing.assert_close(tap["norm.output"], m.norm(stream, CONTEXT))
    torch.testing.assert_close(tap["head.output"], logits)
    torch.testing.assert_close(m.head(tap["norm.output"]), logits)


@pytest.mark.parametrize("norm", [LayerNorm(), LayerNorm(bias=False), RMSNorm(), RMSNorm(weight=False)], ids=str)
@torch.no_grad()
def test_a_norm_divides_by_its_scale(norm: Norm) -> None:
    m = built(norm=norm)
    recorder = Recorder("scale", "input", "residual_before")
    m(IDS, tap=recorder)
    for path in ("blocks.1.branches.0", "blocks.0.branches.1"):
        x = recorder[f"{path}.residual_before"]
        centred = x - x.mean(-1, keepdim=True) if norm.kind == "layer_norm" else x
        scale = recorder[f"{path}.norm.scale"]
        torch.testing.assert_close(centred / scale, recorder[f"{path}.input"])
        halved = Recorder("input")
        m(IDS, tap=TapSequence(replace(f"{path}.norm.scale", lambda s: 2 * s), halved))
        torch.testing.assert_close(halved[f"{path}.input"], centred / scale / 2)


def test_a_batch_norm_has_no_scale_of_a_vector() -> None:
    assert not [path for path in list_points(built(norm=BatchNorm())) if "branches" in path and "scale" in path]


@torch.no_grad()
def test_every_point_is_seen_with_a_state_too() -> None:
    m = built(MIXERS["rope"], FeedForward(), GRU(), GatedFeedForward())
    points = list_points(m)
    whole, steps, parts, state = Recorder(*points), Recorder(*points), [], m.init_state(2)
    logits, _ = m(IDS, tap=whole)
    assert {path for path, _ in whole} == points.keys()
    for place in range(5):
        y, state = m(IDS[:, place : place + 1], state, tap=steps)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), logits)
    for path in points:
        values = steps.calls(path)
        assert len(values) == 5, "decoding steps do not overwrite one another"
        if path.rpartition(".")[2] in ("weights", "scores"):
            torch.testing.assert_close(values[3][:, :, 0], whole[path][:, :, 3, :4])
        else:
            axis = (
                2 if values[0].shape[1] in (1, 2) and path.rpartition(".")[2] in ("q", "k", "v", "head_outputs") else 1
            )
            torch.testing.assert_close(torch.cat(values, axis), whole[path])


@torch.no_grad()
def test_a_value_in_the_place_of_another_decides_the_output() -> None:
    m = built(MIXERS["rope"], GatedFeedForward(), GRU())
    expected = m(IDS)[0]
    for path in list_points(m):
        assert not torch.allclose(m(IDS, tap=replace(path, lambda x: torch.full_like(x, 0.3)))[0], expected), path
        recorder = Recorder(path)
        torch.testing.assert_close(m(IDS, tap=recorder)[0], expected)
        same = replace(path, recorder[path].clone())
        torch.testing.assert_close(m(IDS, tap=same)[0], expected)


@torch.no_grad()
def test_activation_patching() -> None:
    """The last stream of another text makes its logits; a query of another text changes the positions after it."""
    m = built()
    values = record(m, OTHER, "residual_after", "q", "weights")
    last = "blocks.1.branches.1.residual_after"
    torch.testing.assert_close(m(IDS, tap=replace(last, values[last]))[0], m(OTHER)[0])
    path = "blocks.0.branches.0.q"
    third = replace(path, lambda q: torch.cat((q[:, :, :2], values[path][:, :, 2:3], q[:, :, 3:]), 2))
    changed, plain = m(IDS, tap=third)[0], m(IDS)[0]
    torch.testing.assert_close(changed[:, :2], plain[:, :2])
    assert all(not torch.allclose(changed[:, i], plain[:, i]) for i in range(2, 5))


@pytest.mark.parametrize("point", ["scores", "weights"])
@torch.no_grad()
def test_replaced_scores_and_weights_make_the_heads(point: str) -> None:
    m = built()
    path = f"blocks.0.branches.0.{point}"
    other = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    recorder = Recorder("v", "head_outputs", "weights")
    m(IDS, tap=TapSequence(replace(path, other), recorder))
    hidden = torch.ones(5, 5).triu(1).bool()  # keys that the mask hides stay hidden
    weights = other if point == "weights" else other.masked_fill(hidden, -torch.inf).softmax(-1)
    v = recorder["blocks.0.branches.0.v"].expand(-1, 2, -1, -1)
    torch.testing.assert_close(recorder["blocks.0.branches.0.head_outputs"], weights @ v)
    torch.testing.assert_close(recorder["blocks.0.branches.0.weights"], weights)


@torch.no_grad()
def test_an_ablated_head_adds_nothing() -> None:
    m = built()
    branch = m.branches[0]
    path = f"{branch.name}.head_outputs"
    recorder = Recorder("head_outputs", "output")

    def without_the_second(z: Tensor) -> Tensor:
        return torch.cat((z[:, :1], torch.zeros_like(z[:, 1:])), 1)

    m(IDS, tap=TapSequence(replace(path, without_the_second), recorder))
    first = recorder[path][:, 0]
    weight, bias = branch.ending().weight, branch.ending().bias  # type: ignore[union-attr]
    torch.testing.assert_close(first @ weight[:, : first.shape[-1]].T + bias, recorder[f"{branch.name}.output"])  # type: ignore[index,operator]


@torch.no_grad()
def test_encoder_and_decoder_do_not_overwrite_one_another() -> None:
    block = Block(branches=(Attention(mask=Full()), FeedForward()))
    encoder = Encoder(frontend=Text(vocab_size=9), blocks=(block,), num_layers=2, memory="layers")
    m = build(model(Block(branches=(Attention(), CrossAttention(num_heads=2))), num_layers=2, encoder=encoder)).eval()
    tap = Recorder("*")
    memory = m.encode(torch.tensor([[3, 1, 4]]), tap)
    logits, _ = m(torch.tensor([[2, 6]]), memory=memory, tap=tap)
    assert {path for path, _ in tap} == list_points(m).keys()
    assert tap["encoder.frontend.output"].shape == (1, 3, m.spec.width)
    assert tap["frontend.output"].shape == (1, 2, m.spec.width)
    for layer, vectors in enumerate(memory.vectors):
        assert torch.equal(tap.calls("encoder.norm.output")[layer], vectors)
    zero = replace("encoder.norm.output", torch.zeros_like(memory.vectors[0]))
    empty = m.encode(torch.tensor([[3, 1, 4]]), zero)
    assert not torch.allclose(m(torch.tensor([[2, 6]]), memory=empty)[0], logits)


@torch.no_grad()
def test_a_repeated_block_has_a_record_for_each_time() -> None:
    latents = Latents(count=4, blocks=(Block(branches=(CrossAttention(num_heads=2), FeedForward())),), rounds=2)
    m = build(model(latents=latents, blocks=(), head=ClassificationHead(num_classes=3))).eval()
    name = "latents.blocks.0.branches.1"
    tap = Recorder("weights", "residual_after")
    out, _ = m(torch.tensor([[3, 1, 4, 1]]), tap=tap)
    path = f"{name}.residual_after"
    values = tap.calls(path)
    assert len(values) == 2
    assert not torch.allclose(values[0], values[1])
    for call in (0, 1):
        place = Location(call, name, "residual_after")
        assert torch.equal(tap.records[place], values[call])
        other = replace(place, torch.zeros_like(values[call]))
        changed = Recorder("residual_after")
        assert not torch.allclose(m(torch.tensor([[3, 1, 4, 1]]), tap=TapSequence(other, changed))[0], out)
        assert not changed.calls(path)[call].any()
        assert changed.calls(path)[1 - call].any()


def test_nothing_is_computed_that_no_tap_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    m = built()
    monkeypatch.setattr(reference, "scores", lambda *_: pytest.fail("no tap asks for scores"))
    m(IDS, tap=Recorder("q", "residual_after", "head_outputs"))
    m(IDS, tap=Tap())
    with pytest.raises(pytest.fail.Exception):
        m(IDS, tap=Recorder("scores"))


@pytest.mark.parametrize(
    ("point", "sentence"),
    [
        ("query", "the model has no point 'query'; its points are output, residual_before, input, q, k, v, scores"),
        ("router", "the model has no point 'router'; its points are output"),
        ("blocks.7.branches.0.q", "no point 'blocks.7.*; its points of this name are blocks.0.branches.0.q, blocks.1"),
        ("blocks.*.q", "the model has no point"),
    ],
)
def test_a_point_that_does_not_exist_is_refused(point: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        built()(IDS, tap=Recorder(point))


def test_a_function_is_no_tap() -> None:
    with pytest.raises(UserError, match="a tap is an object of the class Tap"):
        built()(IDS, tap=print)


def test_a_value_of_another_shape_is_refused() -> None:
    tap = replace("blocks.0.branches.0.q", torch.zeros(2, 2, 4, 8))
    with pytest.raises(UserError, match=r"at 'blocks.0.branches.0.q' does not fit its shape \[2, 2, 5, 8\]"):
        built()(IDS, tap=tap)


def test_a_path_without_or_with_several_values_is_refused() -> None:
    m, tap = built(), Recorder("frontend.output")
    with pytest.raises(UserError, match="no value at"):
        tap["frontend.output"]
    for _ in range(2):
        m(IDS, tap=tap)
    with pytest.raises(UserError, match="2 values, one for each call"):
        tap["frontend.output"]


def test_points_are_listed_without_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    m = built()
    monkeypatch.setattr(type(m), "forward", lambda *_: pytest.fail("the model is run"))
    points = list_points(m)
    assert points["blocks.1.branches.0.q"].startswith("queries (B, H, N, Dk)")
    assert all("(" in about for about in points.values()), "each description has a shape"


def test_gradients_with_a_tap_are_those_without_where_blocks_are_computed_again() -> None:
    m = built().train()
    m.recompute_blocks(True)
    tap = Recorder("residual_after")
    grads = [torch.autograd.grad(m(IDS, tap=each)[0].square().sum(), list(m.parameters())) for each in (None, tap)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
    assert len(tap.calls("blocks.0.branches.0.residual_after")) == 1
