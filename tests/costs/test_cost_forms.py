"""What is counted of encoder–decoders, and with every head, is what the built model has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.costs.strategies import HEADS, encoder_decoders, latent_models
from tests.inventory import assert_lists

from qkv.costs.cost import Cost, cost
from qkv.costs.counting.losses import random_batch, summed_loss
from qkv.costs.measuring.measure import Update, check, count_flops
from qkv.models.build import build
from qkv.spec.branches import GRU, LSTM, Attention, Convolution, FeedForward
from qkv.spec.heads import ClassificationHead, Head, TokenHead
from qkv.spec.masks import Causal, Full, Prefix
from qkv.spec.model import Block, Encoder, Latents, Model, Queries, Text
from qkv.spec.models.cross import AdditiveAttention, CrossAttention, FixedContext
from qkv.spec.parts import Learned, Sinusoidal
from qkv.spec.training import Training
from qkv.state.tree import nbytes
from qkv.system.errors import UserError
from qkv.training.optim.optimisers import build_optimizer

pytestmark = pytest.mark.slow

TEXT = Text(vocab_size=50, positions=Sinusoidal())
SEES_ALL = Block(branches=(Attention(mask=Full()), FeedForward()))
ENCODER = Encoder(num_layers=2, context_length=20, frontend=TEXT, blocks=(SEES_ALL,))
BLOCK = Block(branches=(Attention(), CrossAttention(), FeedForward()))


def model_of(*blocks: Block, **fields: Any) -> Model:
    return Model(
        **{
            "width": 32,
            "context_length": 24,
            "frontend": TEXT,
            "blocks": blocks or (BLOCK,),
            "encoder": ENCODER,
            **fields,
        }
    )


def not_counted(counted: Cost) -> int:
    """Torch's counter leaves out products of a matrix and a vector: the scores of additive attention times v."""
    model, found = counted.model, 0
    own = (model.layers, model.width, model.num_outputs or counted.length, counted.source_length)
    stacks = [own]
    if model.latents:
        inside = (
            [model.latents.layers[i] for i in model.latents.walk],
            model.latent_width,
            model.latents.count,
            counted.length,
        )
        stacks = [(*own[:3], model.latents.count), inside]
    for layers, width, length, memory in stacks:
        branches = [branch for block in layers for branch in block.branches]
        hidden = sum(branch.hidden or width for branch in branches if isinstance(branch, AdditiveAttention))
        found += 2 * counted.batch_size * length * memory * hidden
    return found


@settings(max_examples=6)
@given(model=encoder_decoders())
def test_parameters_of_an_encoder_decoder_are_those_of_the_built_one(model: Model) -> None:
    with torch.device("meta"):
        built = build(model)
    assert cost(model).parameters == sum(p.numel() for p in built.parameters())


@settings(max_examples=6)
@given(model=encoder_decoders(), batch=st.integers(1, 3), length=st.integers(1, 12), source=st.integers(1, 9))
def test_the_state_holds_what_is_needed_of_the_memory(model: Model, batch: int, length: int, source: int) -> None:
    built = build(model)
    with torch.no_grad():
        state = built.init_state(batch, length, built.encode(torch.zeros(batch, source, dtype=torch.long)))
    assert cost(model, batch, source_length=source).state_bytes(length) == nbytes(state)


@settings(max_examples=4)
@given(model=encoder_decoders(), batch=st.integers(1, 3), length=st.integers(2, 12), source=st.integers(2, 9))
def test_forward_flops_of_an_encoder_decoder_are_those_of_torchs_counter(
    model: Model, batch: int, length: int, source: int
) -> None:
    counted = cost(model, batch, length, source_length=source)
    assert counted.forward_flops == count_flops(counted)[0] + not_counted(counted)


@settings(max_examples=6)
@given(model=latent_models())
def test_parameters_of_a_model_with_latents_are_those_of_the_built_one(model: Model) -> None:
    with torch.device("meta"):
        built = build(model)
    assert cost(model).parameters == sum(p.numel() for p in built.parameters())


@settings(max_examples=5)
@given(model=latent_models(), batch=st.integers(1, 3), length=st.integers(2, 12))
def test_flops_of_a_model_with_latents_are_those_of_torchs_counter(model: Model, batch: int, length: int) -> None:
    counted = cost(model, batch, length)
    assert counted.forward_flops == count_flops(counted)[0] + not_counted(counted)


@pytest.mark.parametrize("recompute", [False, True])
def test_training_flops_count_latents(recompute: bool) -> None:
    counted = cost(MEASURED["latents"], 2, training=Training(recompute=recompute))
    assert counted.train_flops == count_flops(counted)[1]


def test_what_latents_cost_grows_with_the_input_times_their_number() -> None:
    """O(N M): a further position of the input costs a constant, and of that constant each latent as much as another."""

    def flops(latents: int, length: int) -> int:
        reads = Block(branches=(CrossAttention(), FeedForward()))
        model = model_of(
            reads,
            encoder=None,
            latents=Latents(count=latents),
            queries=Queries(count=2),
            head=ClassificationHead(num_classes=2),
        )
        return cost(model.changed(context_length=96), 1, length).forward_flops

    slopes = [[flops(m, n + 24) - flops(m, n) for n in (24, 48)] for m in (8, 16, 24)]
    assert all(first == second for first, second in slopes)
    few, more, most = (slope for slope, _ in slopes)
    assert more - few == most - more == 24 * 8 * 2 * 2 * 32  # scores and sums of values, 32 features each


@pytest.mark.parametrize("memory", ["last", "layers"])
def test_a_deep_encoder_decoder_costs_what_its_layers_cost(memory: str) -> None:
    """Middle layers stand for each other: everything grows by equal steps; parameters are those of the built model."""
    five, nine, many = (
        model_of(num_layers=n, encoder=ENCODER.changed(memory=memory, num_layers=n)) for n in (5, 9, 13)
    )
    counted = [cost(model, 2) for model in (five, nine, many)]
    for figure in ("parameters", "forward_flops", "train_flops", "state_bytes"):
        a, b, c = (found() if callable(found := getattr(one, figure)) else found for one in counted)
        assert c - b == b - a > 0, figure
    with torch.device("meta"):
        assert counted[2].parameters == sum(p.numel() for p in build(many).parameters())
    a, b, c = (one.memory.activations for one in counted)
    assert c - b == b - a > 0


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("memory", ["last", "layers"])
def test_training_flops_count_both_stacks(memory: str, recompute: bool) -> None:
    encoder = ENCODER.changed(memory=memory, num_layers=3)
    counted = cost(model_of(num_layers=3, encoder=encoder), 2, training=Training(recompute=recompute))
    assert counted.train_flops == count_flops(counted)[1]


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.kind)
@settings(max_examples=8)
@given(data=st.data())
def test_every_head_has_its_parameters_and_flops(kind: type[Head], data: st.DataObject) -> None:
    model = model_of(SEES_ALL, encoder=ENCODER if kind.reads_memory else None, head=data.draw(HEADS[kind]))
    counted = cost(model, 3, 7)
    with torch.device("meta"):
        assert counted.parameters == sum(p.numel() for p in build(model).parameters())
    assert counted.forward_flops == count_flops(counted)[0]


def test_every_head_is_drawn() -> None:
    known = [name for name, kind in Head.kinds().items() if kind.__module__.startswith("qkv.")]
    assert_lists("tests/costs/strategies.py, HEADS", (kind.kind for kind in HEADS), known)


SIZES: dict[str, dict[str, Any]] = {
    "ctc": {"num_classes": 3, "blank": 0},
    "contrastive": {"latent_width": 8, "codes": 5},
    "codebook": {"codes": 512, "grid": (4, 6), "cell": 2, "height": 8, "width": 12, "channels": 1, "upsampling": (8,)},
    "mixture": {"features": 5},
    "speech_codes": {"codebooks": 2, "codes": 9},
    "spectrum_decoder": {"hop": 8},
    "wave_decoder": {"network": {"channels": 4, "strides": (2, 2)}},
}
"""Sizes of heads that data determines, for rows of 24 positions."""
MEASURED: dict[str, Model] = {
    "resampler": model_of(
        num_layers=3,
        width=64,
        encoder=ENCODER.changed(
            width=48, latents=Latents(count=3, width=32, rounds=2, blocks=(Block(branches=(CrossAttention(),)),))
        ),
    ),
    "cross attention": model_of(num_layers=3, width=64),
    "layer to layer": model_of(num_layers=2, width=64, encoder=ENCODER.changed(memory="layers")),
    "additive attention": model_of(Block(branches=(GRU(), AdditiveAttention())), width=64),
    "fixed context": model_of(
        Block(branches=(LSTM(), FixedContext())),
        width=64,
        encoder=ENCODER.changed(blocks=(Block(branches=(GRU(direction="both"),)),)),
    ),
    "convolution": model_of(
        Block(branches=(GRU(), CrossAttention(value_dim=8))),
        width=64,
        encoder=ENCODER.changed(blocks=(Block(branches=(Convolution(),)),)),
    ),
    "latents": model_of(
        Block(branches=(CrossAttention(), FeedForward())),
        width=64,
        encoder=None,
        queries=Queries(),
        latents=Latents(count=8, width=48, num_layers=4),
    ),
    "prefix": model_of(
        Block(branches=(Attention(mask=Causal() | Prefix()), FeedForward())), width=64, num_layers=3, encoder=None
    ),
    **{
        f"{kind.kind} head": model_of(
            SEES_ALL,
            width=64,
            num_layers=3,
            encoder=ENCODER if kind.reads_memory else None,
            head=kind(**SIZES.get(kind.kind, {"num_classes": 3} if "num_classes" in kind.model_fields else {})),
        )
        for kind in HEADS
    },
}


RECURRENT = ("additive attention", "fixed context", "convolution")
"""Models whose first state, which is 0, and last state have no gradient."""
CASES = [
    *((name, False, "fp32") for name in MEASURED),
    ("cross attention", True, "fp32"),
    ("cross attention", False, "bf16"),
]


@pytest.mark.parametrize(("name", "recompute", "precision"), CASES)
def test_what_is_predicted_is_what_is_measured(name: str, recompute: bool, precision: str) -> None:
    training = Training(recompute=recompute)
    counted = cost(MEASURED[name], 16, 24, precision, training)
    rows = check(counted, lambda m: Update(m, summed_loss, build_optimizer(training.optimizer, m), 1, precision))
    found = {row.quantity: row.error for row in rows}
    assert found["parameters"] == 0
    assert abs(found["FLOPs, forward"]) <= 0.05
    assert abs(found["FLOPs, training step"]) <= (0.05 if name in RECURRENT else 0)
    assert abs(found["peak memory, training step"]) <= 0.15
    assert found.get("decoding state", 0) == 0
    assert ("decoding state" in found) == counted.writes


IMAGES = {"kind": "patches", "patch": 2, "height": 8, "width": 12, "channels": 1}


@pytest.mark.parametrize(
    "model",
    [
        {"blocks": [{"branches": ["random_mixing", "feed_forward"]}], "head": "classification(3)"},
        {"head": {"kind": "codebook", **SIZES["codebook"]}},
        {"head": "classification(3)", "frontend": {**IMAGES, "patch": 1, "stem": [4]}},
    ],
    ids=["matrix of random numbers", "distances to codes", "convolution of pixels"],
)
def test_what_has_no_gradient_costs_no_backward_pass(model: dict[str, Any]) -> None:
    blocks = [{"branches": ["attention(4, mask=full)", "feed_forward"]}]
    whole = {"width": 64, "num_layers": 3, "frontend": IMAGES, "blocks": blocks, **model}
    counted = cost(Model.parse(whole), 4)
    assert (counted.forward_flops, counted.train_flops) == count_flops(counted)
    assert counted.train_flops < 3 * counted.forward_flops


def test_batches_suit_the_form() -> None:
    counted = cost(MEASURED["cross attention"], 3, 5, source_length=7)
    batch = random_batch(build(counted.model), counted)
    assert batch.source is not None
    assert (batch.input.values.shape, batch.source.values.shape) == ((3, 5), (3, 7))
    assert counted.to_dict()["source_length"] == 7


def test_a_source_is_by_default_as_long_as_the_encoder_reads() -> None:
    assert cost(model_of()).source_length == 20
    assert cost(model_of(encoder=None, blocks=(SEES_ALL,))).source_length == 0


def test_a_step_reads_nothing_of_the_encoder() -> None:
    few, many = (cost(model_of(encoder=ENCODER.changed(num_layers=layers))) for layers in (1, 5))
    assert many.parameters > few.parameters
    assert (many.step_bytes(), many.step_flops(), many.state_bytes()) == (
        few.step_bytes(),
        few.step_flops(),
        few.state_bytes(),
    )


def test_a_shared_table_counts_once() -> None:
    apart, shared = (cost(model_of(encoder=ENCODER.changed(share_embedding=share))) for share in (False, True))
    assert apart.parameters - shared.parameters == 50 * 32
    assert shared.parts["encoder embedding"].parameters == 0


def test_a_longer_source_costs_nothing_but_its_own() -> None:
    short, long = (cost(model_of(), source_length=length) for length in (5, 20))
    assert long.parts["attention"] == short.parts["attention"]
    assert long.parts["cross_attention"].flops > short.parts["cross_attention"].flops
    assert long.parts["encoder feed_forward"].flops == 4 * short.parts["encoder feed_forward"].flops


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        (
            model_of(encoder=None, blocks=(SEES_ALL,)),
            {"source_length": 5},
            "a source length of 5 is given, but the model has no encoder",
        ),
        (model_of(), {"source_length": 0}, "the source length is 0"),
        (
            model_of(encoder=ENCODER.changed(frontend=Text())),
            {},
            "model.encoder.frontend.vocab_size is unknown without the tokenizer",
        ),
        (
            model_of(encoder=ENCODER.changed(frontend=Text(vocab_size=9, positions=Learned()))),
            {"source_length": 21},
            r"21 positions are more than the 20 of the learned position table \(model.encoder.context_length\)",
        ),
        (
            model_of(SEES_ALL, encoder=None, head=ClassificationHead()),
            {},
            "model.head.num_classes is unknown without the data",
        ),
        (model_of(SEES_ALL, encoder=None, head=TokenHead()), {}, "model.head.num_classes is unknown without the data"),
    ],
)
def test_what_cannot_be_counted(model: Model, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        cost(model, **options)
