"""Specs for the battery: several of each registered kind, and whole stacks. A kind without an entry fails the suite."""

from __future__ import annotations

from typing import Any

from tests.contracts.continuous_samples import CONTINUOUS_SAMPLES
from tests.contracts.gated_samples import GATED_SAMPLES, GATED_TWO_WAY
from tests.contracts.graph_samples import GRAPH_TWO_WAY
from tests.contracts.matrix_samples import MATRIX_SAMPLES, MATRIX_TWO_WAY
from tests.contracts.mixing_samples import MIXING_SAMPLES, MIXING_TWO_WAY
from tests.contracts.relative_samples import RELATIVE_SAMPLES, RELATIVE_TWO_WAY
from tests.contracts.retrieval_samples import RETRIEVAL_SAMPLES
from tests.contracts.sparse_samples import SPARSE_SAMPLES, SPARSE_TWO_WAY

from qkv.spec.branches import (
    GRU,
    LSTM,
    RNN,
    Attention,
    Branch,
    CausalConvolution,
    Convolution,
    FeedForward,
    GatedFeedForward,
    QueryScale,
    TokenShift,
)
from qkv.spec.heads import LanguageModelHead
from qkv.spec.masks import Blocks, Causal, Fixed, Full, Levels, Mask, Prefix, Strided, Window
from qkv.spec.mixers.gated_convolution import ConformerConvolution, GatedConvolution
from qkv.spec.mixers.latent_attention import DifferentialAttention, LatentAttention
from qkv.spec.mixers.linear_attention import LinearAttention
from qkv.spec.mixers.lsh_attention import CollisionAttention
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.blocks import DepthAverage
from qkv.spec.models.cross import AdditiveAttention, CrossAttention, FixedContext
from qkv.spec.models.segmentation import Megabyte, PatchStack, RecurrentMemory, Scales
from qkv.spec.parts import (
    Add,
    Alibi,
    Axial,
    BatchNorm,
    FactorGate,
    FeatureGate,
    Gated,
    HeadGate,
    LayerNorm,
    Learned,
    LearnedSinusoidal,
    LinearScaling,
    NoNorm,
    NoPositions,
    NoResidual,
    Resurrecting,
    Reversible,
    RMSNorm,
    Rope,
    RopeAxes,
    Scaled,
    Shaw,
    Sinusoidal,
    T5Buckets,
)
from qkv.spec.position_wise.experts import BalanceBias, MixtureOfExperts, NoBalance
from qkv.spec.position_wise.memory_layer import MemoryLayer
from qkv.spec.position_wise.product_keys import ProductKeyMemory

WIDTH = 16
VOCABULARY = 11


def masked(mask: Mask, **fields: Any) -> Attention:
    return Attention(mask=Causal() & mask, **fields)


SAMPLES: dict[str, tuple[Branch, ...]] = {
    **RELATIVE_SAMPLES,
    **SPARSE_SAMPLES,
    **MIXING_SAMPLES,
    **MATRIX_SAMPLES,
    **GATED_SAMPLES,
    **RETRIEVAL_SAMPLES,
    **CONTINUOUS_SAMPLES,
    "attention": (
        Attention(),
        Attention(num_heads=1, bias=False, output_bias=True, temperature=0.5),
        Attention(num_kv_heads=2, relative=Rope()),
        Attention(num_kv_heads=1, head_dim=6, value_dim=3, qk_norm=RMSNorm()),
        Attention(num_kv_heads=2, relative=Rope(), qk_norm=LayerNorm(eps=0.1)),
        Attention(num_kv_heads=2, relative=Rope(), qk_norm=RMSNorm(), qk_norm_over="all_heads"),
        Attention(num_kv_heads=2, relative=Rope(), qk_norm=LayerNorm(eps=0.1), qk_norm_over="each_head"),
        Attention(relative=Rope(), qk_norm=RMSNorm(zero_centred=True), qk_norm_after="rotation"),
        Attention(
            relative=Rope(fraction=0.5),
            qk_norm=LayerNorm(weight=False, bias=False),
            qk_norm_over="all_heads",
            qk_norm_after="rotation",
        ),
        Attention(num_kv_heads=2, relative=Rope(), clip=0.4, value_dim=3),
        Attention(relative=Rope(), query_scale=QueryScale(rate=0.7, length=3, first=1)),
        Attention(relative=Rope(fraction=0.5, base=100.0, scaling=LinearScaling(factor=4.0))),
        Attention(relative=Alibi()),
        Attention(relative=Alibi(scaled=True), num_kv_heads=2),
        Attention(num_heads=16, head_dim=4, relative=Alibi(scaled=True, rounded="bf16")),
        masked(Window(size=4, sinks=1), relative=Alibi(rounded="bf16")),
        masked(Window(size=1)),
        masked(Window(size=3), num_kv_heads=2, relative=Rope()),
        masked(Window(size=3, sinks=2), relative=Alibi()),
        masked(Window(size=1, sinks=1)),
        masked(Window(size=500, sinks=3)),
        masked(Window(size=5, sinks=1) & Window(size=3, sinks=2)),
        masked(Window(size=2) | Strided(stride=3)),
        masked(Fixed(stride=4, summary=2)),
        masked(Blocks(size=3), relative=Rope()),
        masked(Blocks(size=3, back=1), num_kv_heads=2),
        Attention(softcap=0.5, num_kv_heads=2, relative=Rope()),
        masked(Window(size=3, sinks=1), softcap=0.3, relative=T5Buckets()),
        Attention(top_k=3, num_kv_heads=2),
        Attention(top_k=1, relative=Alibi()),
        masked(Window(size=5, sinks=1), top_k=2, relative=Rope()),
        Attention(num_heads=WIDTH, qk_norm=LayerNorm(), top_k=3),
        masked(Window(size=4, sinks=1), num_heads=2, head_dim=1, qk_norm=LayerNorm(), top_k=2),
        Attention(num_heads=2, head_dim=12, relative=RopeAxes(sections=(1, 3, 2))),
        Attention(relative=Shaw(max_distance=3), num_kv_heads=2, temperature=0.7),
        Attention(relative=Shaw(max_distance=2, values=True), value_dim=3, top_k=4),
        masked(Window(size=4, sinks=1), relative=Shaw(max_distance=5, values=True)),
        Attention(shaped=True, num_kv_heads=2, relative=Rope()),
        Attention(shaped=True, values="identity", output="none", bias=False),
        masked(Window(size=4, sinks=1), shaped=True, values="identity", num_kv_heads=2, value_dim=8),
        Attention(output="none", num_heads=2),
        Attention(relative=T5Buckets(num_buckets=6, max_distance=9)),
        Attention(learned_sink=True, num_kv_heads=2, relative=Rope()),
        Attention(key_bias=False, num_kv_heads=2, relative=Rope()),
        masked(Window(size=4, sinks=1), key_bias=False, values="identity"),
        masked(Window(size=4, sinks=1), learned_sink=True, relative=Alibi(), head_dim=5, value_dim=3),
        masked(Fixed(stride=4, summary=2), learned_sink=True, relative=Shaw(max_distance=2, values=True)),
        masked(Window(size=6), relative=T5Buckets(num_buckets=5, max_distance=5), top_k=3),
        Attention(output_gate=FeatureGate(), num_kv_heads=2, value_dim=3, relative=Rope()),
        masked(Window(size=4), output_gate=HeadGate(), bias=False),
        Attention(output_gate=HeadGate(function="softplus"), num_kv_heads=2),
        masked(Window(size=4), output_gate=FactorGate(factor=0.7), value_dim=3),
        Attention(output_norm=RMSNorm(eps=0.1), num_heads=2, value_dim=3),
    ),
    "collision_attention": (
        CollisionAttention(gradient="exact", mask=Causal()),
        CollisionAttention(gradient="exact", mask=Causal(), num_kv_heads=2, hash_length=3, qk_norm=LayerNorm(eps=0.1)),
        CollisionAttention(gradient="exact", mask=Causal(), num_kv_heads=1, head_dim=6, value_dim=3, bias=False),
        CollisionAttention(gradient="exact", mask=Causal() & Window(size=4, sinks=1), hash_length=1),
    ),
    "latent_attention": (
        LatentAttention(),
        LatentAttention(num_heads=2, kv_rank=5, query_rank=7, head_dim=3, rope_dim=4, value_dim=6, temperature=0.7),
        LatentAttention(kv_rank=3, rope_dim=0, norm=NoNorm(), value_dim=9),
        LatentAttention(mask=Causal() & Window(size=4, sinks=1), num_heads=8, kv_rank=6, norm=LayerNorm(eps=0.1)),
        LatentAttention(mask=Causal() & Window(size=3), base=100.0, scaling=LinearScaling(factor=4.0)),
    ),
    "token_shift": (TokenShift(), TokenShift(groups=4)),
    "causal_convolution": (
        CausalConvolution(),
        CausalConvolution(kernel_size=1),
        CausalConvolution(kernel_size=2, dilation=4),
        CausalConvolution(kernel_size=3, dilation=2, gated=False),
    ),
    "gated_convolution": (
        GatedConvolution(),
        GatedConvolution(kernel_size=1, bias=True),
        GatedConvolution(kernel_size=5),
    ),
    "rnn": (RNN(), RNN(hidden=5)),
    "gru": (GRU(), GRU(hidden=5)),
    "lstm": (LSTM(), LSTM(hidden=5)),
    "feed_forward": (
        FeedForward(),
        FeedForward(hidden=5, activation="relu2", bias=False),
        FeedForward(hidden=7, activation="xielu"),
    ),
    "memory_layer": (
        MemoryLayer(),
        MemoryLayer(num_slots=5, key_dim=3, num_heads=2),
        MemoryLayer(num_slots=7, activation="gelu"),
    ),
    "mixture_of_experts": (
        MixtureOfExperts(num_experts=5, hidden=6),
        MixtureOfExperts(num_experts=4, top_k=1, hidden=5, gated=False, activation="gelu", bias=True),
        MixtureOfExperts(num_experts=6, top_k=3, num_shared=2, hidden=4, router="sigmoid", balance=BalanceBias()),
        MixtureOfExperts(num_experts=4, hidden=3, router="sigmoid", choice="logits", weights_of="inputs"),
        MixtureOfExperts(num_experts=4, hidden=3, num_shared=1, balance=BalanceBias(), norm=RMSNorm()),
        MixtureOfExperts(num_experts=5, top_k=3, hidden=3, router="sparse_mixer", jitter=0.4, normalised=False),
        MixtureOfExperts(num_experts=3, hidden=3, normalised=False, scale=2.5, balance=NoBalance()),
        MixtureOfExperts(
            num_experts=6,
            hidden=4,
            num_shared=1,
            shared_hidden=5,
            shared_gate=True,
            shared_scale=0.5,
            router="sigmoid",
            router_bias=True,
            groups=3,
            top_groups=2,
            limit=0.3,
            shift=1.0,
            balance=BalanceBias(),
        ),
    ),
    "product_key_memory": (
        ProductKeyMemory(num_keys=5, top_k=4),
        ProductKeyMemory(num_keys=3, top_k=9, num_heads=1, key_dim=6, query_norm=LayerNorm()),
    ),
    "cross_attention": (
        CrossAttention(),
        CrossAttention(num_kv_heads=2, bias=False, output_bias=True, temperature=0.5),
        CrossAttention(num_heads=2, num_kv_heads=1, head_dim=6, value_dim=3, qk_norm=RMSNorm()),
        CrossAttention(num_heads=2, qk_norm=LayerNorm(eps=0.1)),
        CrossAttention(num_kv_heads=2, key_bias=False),
    ),
    "differential_attention": (
        DifferentialAttention(),
        DifferentialAttention(num_kv_heads=2, head_dim=4, value_dim=3, bias=False, relative=Rope(), start=0.2, eps=0.1),
        DifferentialAttention(num_heads=2, mask=Causal() & Window(size=3), qk_norm=RMSNorm(), temperature=0.5),
    ),
    "additive_attention": (AdditiveAttention(), AdditiveAttention(hidden=5)),
    "fixed_context": tuple(FixedContext(pooling=pooling) for pooling in ("first", "last", "mean", "max")),
    "gated_feed_forward": (
        GatedFeedForward(),
        GatedFeedForward(hidden=5, activation="gelu", bias=True),
        GatedFeedForward(hidden=5, limit=0.3, shift=1.0),
        GatedFeedForward(hidden=5, norm=LayerNorm(eps=0.1)),
        GatedFeedForward(hidden=5, gate_factor=0.4, bias=True),
    ),
}

BIDIRECTIONAL: tuple[Branch, ...] = (
    *RELATIVE_TWO_WAY,
    *SPARSE_TWO_WAY,
    *GRAPH_TWO_WAY,
    *MIXING_TWO_WAY,
    *MATRIX_TWO_WAY,
    *GATED_TWO_WAY,
    Attention(mask=Full()),
    Attention(mask=Causal() | Prefix(length=6)),
    Attention(mask=Window(size=3), relative=Rope()),
    Attention(mask=Blocks(size=4)),
    Attention(mask=Full(), top_k=3, relative=T5Buckets(num_buckets=8, max_distance=6)),
    Attention(mask=Full(), relative=Shaw(max_distance=2, values=True)),
    Attention(mask=Full(), learned_sink=True, num_kv_heads=2),
    Attention(mask=Full(), key_bias=False, value_dim=5),
    Attention(mask=Full(), value_convolution=5, output_gate=HeadGate()),
    Attention(mask=Window(size=3), value_convolution=3, value_dim=5, top_k=2),
    CollisionAttention(gradient="exact", mask=Full(), value_convolution=3),
    CollisionAttention(gradient="exact", mask=Window(size=4), num_kv_heads=2, hash_length=2),
    Attention(mask=Full(), shaped=True, values="identity", output="none"),
    LatentAttention(mask=Full(), kv_rank=6),
    Convolution(),
    Convolution(kernel_size=4, gated=False),
    ConformerConvolution(kernel_size=5, norm=LayerNorm()),
    ConformerConvolution(kernel_size=4, bias=False, activation="gelu", norm=BatchNorm()),
    RNN(direction="backward"),
    GRU(direction="both", hidden=6),
    LSTM(direction="both"),
    LSTM(direction="backward", hidden=5),
)
"""Not causal: these must fail the battery."""

GROUPS: dict[str, tuple[Branch, ...]] = {
    "bidirectional": BIDIRECTIONAL,
    "whole rows": (*MIXING_TWO_WAY, *MATRIX_TWO_WAY, *GATED_TWO_WAY),
    "learned distances": tuple(
        part
        for part in SAMPLES["attention"]
        if isinstance(part, Attention) and isinstance(part.relative, (Shaw, T5Buckets))
    ),
    "top k": tuple(part for part in SAMPLES["attention"] if isinstance(part, Attention) and part.top_k),
}
"""What a fault may be looked for in, beside the samples of one kind."""

PRODUCTS: tuple[Branch, ...] = (
    *(parts[0] for parts in GATED_SAMPLES.values()),
    *(MIXING_SAMPLES[kind][0] for kind in ("gmlp", "monet")),
    MATRIX_SAMPLES["mamba"][0],
    GatedConvolution(),
)
"""Products of several factors of their input, which grow beyond bounds unless each vector is normed."""

EVERYTHING: tuple[Branch, ...] = (
    Attention(num_kv_heads=2, relative=Rope()),
    masked(Window(size=3, sinks=2)),
    LinearAttention(chunk=4),
    LatentAttention(kv_rank=6, query_rank=5),
    TokenShift(),
    CausalConvolution(dilation=2),
    RNN(),
    GRU(),
    LSTM(),
    *(parts[0] for parts in (*RELATIVE_SAMPLES.values(), *SPARSE_SAMPLES.values(), *RETRIEVAL_SAMPLES.values())),
    *(MIXING_SAMPLES[kind][0] for kind in ("random_mixing", "spatial_shift")),
    *PRODUCTS,
    *(parts[0] for kind, parts in MATRIX_SAMPLES.items() if kind not in ("linear_attention", "mamba", "rg_lru")),
    GatedFeedForward(hidden=24),
    *(parts[0] for parts in CONTINUOUS_SAMPLES.values()),
)
"""Most ways for positions to exchange information, in one stack. Orders and residuals know a branch only by the state
contract, which each keeps alone: a third of all is in a stack of each.
"""

FURTHER: tuple[Branch, ...] = (
    DifferentialAttention(num_kv_heads=2),
    MATRIX_SAMPLES["rg_lru"][0],
    SAMPLES["collision_attention"][0],
)
"""All other ways: in one stack of all, the choices of sparse mixers would change with the rounding of those before."""


def stack(blocks: tuple[Block, ...], text: Text | None = None, **fields: Any) -> Model:
    text = text or Text(vocab_size=VOCABULARY)
    return Model(width=WIDTH, context_length=1100, frontend=text, blocks=blocks, **{"init_std": 0.3, **fields})


def positions(part: Any, **fields: Any) -> Text:
    return Text(vocab_size=VOCABULARY, positions=part, **fields)


STACKS: dict[str, Model] = {
    "pre": stack((Block(branches=EVERYTHING),)),
    "further mixers": stack((Block(branches=FURTHER),)),
    "post, batch norm": stack(
        # Batch norm does not bound single vectors: through more branches, rounding would be seen.
        (Block(branches=tuple(b for b in EVERYTHING[::2] if b not in PRODUCTS), order="post", norm=BatchNorm()),),
        positions(Sinusoidal()),
        norm=BatchNorm(),
        init_std=0.1,
    ),
    "sandwich, rms norm, layer scale": stack(
        (Block(branches=EVERYTHING[::3], order="sandwich", norm=RMSNorm(), residual=Scaled()),),
        positions(LearnedSinusoidal(hidden=9)),
    ),
    "positions after the norm of embeddings": stack(
        (Block(branches=(Attention(), FeedForward())),),
        positions(Sinusoidal(halves=True, closed=True, offset=2), norm=LayerNorm(), norm_first=True),
    ),
    "norms of outputs, factors of embeddings and branches": stack(
        (
            Block(
                branches=(EVERYTHING[0], FeedForward()),
                order="res_post",
                norms=(LayerNorm(weight=False, bias=False), LayerNorm(zero_centred=True)),
                residual=Add(factor=0.4),
            ),
        ),
        Text(vocab_size=VOCABULARY, multiplier=3.5),
        num_layers=2,
    ),
    "parallel, gated residual": stack(
        (Block(branches=EVERYTHING[1::3], order="parallel", residual=Gated(initial=0.7)),), positions(NoPositions())
    ),
    "gates of the input": stack((Block(branches=(Attention(), FeedForward()), residual=Resurrecting()),), num_layers=2),
    "reversible": stack(
        (
            Block(branches=EVERYTHING[2::3], residual=Reversible()),
            Block(order="sandwich", norm=RMSNorm(), residual=Reversible()),
        ),
        head=LanguageModelHead(tied=False),
        init_std=0.2,
    ),
    "axes of positions": stack((Block(branches=(GRU(),)),), positions(Axial(shape=(50, 25), widths=(6, 10)))),
    "axes of positions, added": stack((Block(branches=(GRU(),)),), positions(Axial(shape=(11, 10, 12)))),
    "one kind a block, mixed orders": stack(
        (
            Block(branches=(EVERYTHING[0], FeedForward()), order="parallel"),
            Block(branches=(EVERYTHING[1], EVERYTHING[2]), order="post", norm=RMSNorm()),
            Block(branches=(EVERYTHING[3], EVERYTHING[4]), order="sandwich"),
            Block(branches=(GRU(),), residual=NoResidual()),
        ),
        num_layers=5,
    ),
    "a norm for each branch": stack(
        (
            Block(branches=(EVERYTHING[0], GRU()), order="parallel", norms=(LayerNorm(), RMSNorm(eps=0.1))),
            Block(branches=(EVERYTHING[1], FeedForward()), norms=(NoNorm(), LayerNorm()), factors=(0.5, 2.0)),
            Block(
                branches=(EVERYTHING[3], GatedFeedForward(hidden=24)),
                order="sandwich",
                norms=(RMSNorm(eps=0.1), LayerNorm()),
            ),
        ),
    ),
    "what can be rewound": stack(
        (
            Block(branches=(Attention(), FeedForward()), norm=NoNorm(), residual=Scaled(initial=0.3)),
            Block(branches=(Attention(relative=Alibi()), GatedFeedForward()), order="parallel"),
            Block(branches=(Attention(relative=T5Buckets()), Attention(relative=Shaw(values=True), top_k=4))),
        ),
        positions(Learned(), join="concatenate"),
        head=LanguageModelHead(tied=False, bias=True, softcap=5.0),
    ),
    "one table of distances, scaled head": stack(
        (
            Block(
                branches=(
                    Attention(relative=T5Buckets(num_buckets=6, max_distance=9, shared=True), num_kv_heads=2),
                    FeedForward(),
                )
            ),
        ),
        positions(NoPositions()),
        num_layers=3,
        head=LanguageModelHead(scale=0.25),
    ),
    "simplified blocks": stack(
        (
            Block(
                branches=(
                    Attention(values="identity", output="none", shaped=True, bias=False, relative=Rope()),
                    FeedForward(),
                ),
                order="parallel",
                residual=NoResidual(),
            ),
        ),
        positions(NoPositions()),
        num_layers=3,
    ),
    "depth average": stack(
        (
            Block(branches=(Attention(num_kv_heads=2, relative=Rope()), FeedForward())),
            Block(branches=(GRU(),), order="post"),
        ),
        positions(NoPositions()),
        num_layers=5,
        depth_average=DepthAverage(dilation=2),
    ),
    "depth average, now and then": stack(
        (Block(branches=(Attention(mask=Causal() & Window(size=4)), FeedForward()), order="sandwich"),),
        num_layers=6,
        depth_average=DepthAverage(period=2),
    ),
    "plain": stack((Block(residual=Add()),), positions(Learned(), scale=True)),
}


def encoder(*branches: Branch, **fields: Any) -> Encoder:
    text = Text(vocab_size=VOCABULARY, positions=Sinusoidal())
    return Encoder(**{"context_length": 16, "frontend": text, "blocks": (Block(branches=branches),), **fields})


SEES_ALL = (Attention(mask=Full(), num_kv_heads=2), FeedForward())

FORMS: dict[str, Model] = {
    "layer to layer, one table": stack(
        (Block(branches=(Attention(), CrossAttention(), FeedForward()), norm=RMSNorm()),),
        positions(Sinusoidal()),
        num_layers=3,
        encoder=encoder(
            *SEES_ALL,
            num_layers=3,
            memory="layers",
            share_embedding=True,
            norm=RMSNorm(),
            depth_average=DepthAverage(),
        ),
    ),
    "cross attention": stack(
        (Block(branches=(Attention(), CrossAttention(num_kv_heads=1), FeedForward()), order="post"),),
        num_layers=2,
        encoder=encoder(*SEES_ALL, num_layers=3),
    ),
    "additive attention, GRU": stack(
        (Block(branches=(GRU(), AdditiveAttention(hidden=7)), order="sandwich"),),
        positions(NoPositions()),
        encoder=encoder(GRU(direction="both"), frontend=positions(NoPositions())),
    ),
    "fixed context, LSTM": stack(
        (Block(branches=(FixedContext(), LSTM()), order="post", residual=Gated(initial=0.7)),),
        positions(NoPositions()),
        encoder=encoder(LSTM(), frontend=positions(NoPositions()), norm=BatchNorm()),
    ),
    "convolution, cross attention": stack(
        (
            Block(
                branches=(CausalConvolution(dilation=2), CrossAttention(num_heads=2, qk_norm=RMSNorm())),
                order="parallel",
            ),
        ),
        num_layers=2,
        encoder=encoder(Convolution(kernel_size=4), num_layers=2),
    ),
    "prefix, seen by all": stack(
        (Block(branches=(Attention(mask=Prefix() | Causal() & Window(size=3)),)),), positions(Sinusoidal())
    ),
    "prefix, in a ring": stack(
        (Block(branches=(Attention(mask=Causal() & Window(size=5) & (Prefix() | Strided(stride=2))),)),),
        positions(Sinusoidal()),
    ),
    "prefix": stack(
        (Block(branches=(Attention(mask=Causal() | Prefix(), relative=Rope()), FeedForward())),),
        positions(Sinusoidal()),
        num_layers=2,
    ),
}
"""Encoder–decoders, and a decoder that reads its source as a prefix."""

ANEW: tuple[Branch, ...] = tuple(branch for branch in EVERYTHING if not branch.reads_types)
"""Mixers that can begin anew in each segment of a row."""
OVER_PATCHES = tuple(branch for branch in ANEW if branch.exactness.length is None)
"""Those of them that decode rows of any length as they are trained."""

OVER_SCALES = tuple(branch for branch in OVER_PATCHES if branch.sized_for(1, None).longest_row is None)
"""Those of them without weights of positions."""
ON_LEVELS = [Causal() & Levels(factors=(1, 3), see=see) for see in ("within", "across")]

SEGMENTED: dict[str, Model] = {
    "recurrent memory": stack(  # a sixth of them: over 220 segments, a recurrence through all amplifies rounding
        (Block(branches=ANEW[::6], norm=RMSNorm()),),
        positions(NoPositions()),
        segmentation=RecurrentMemory(segment=5, num_memory=2),
    ),
    "recurrent memory, post": stack(
        (Block(branches=(Attention(relative=Rope(), num_kv_heads=1), FeedForward()), order="post"),),
        positions(Sinusoidal()),
        num_layers=2,
        segmentation=RecurrentMemory(segment=3, num_memory=1),
    ),
    "recurrent memory, segments of one position": stack(
        (Block(branches=(Attention(), GRU())),), segmentation=RecurrentMemory(segment=1, num_memory=3)
    ),
    "recurrent memory, long segments": stack((Block(),), segmentation=RecurrentMemory(segment=40, num_memory=2)),
    "patches, every mixer": stack(
        (Block(branches=ANEW, norm=RMSNorm()),),
        positions(NoPositions()),
        segmentation=Megabyte(size=3, patches=PatchStack(width=24, blocks=(Block(branches=OVER_PATCHES),))),
        init_std=0.2,
    ),
    "patches, post": stack(
        (Block(branches=(Attention(num_kv_heads=1), FeedForward()), order="post"),),
        positions(Sinusoidal()),
        num_layers=2,
        segmentation=Megabyte(
            size=4, patches=PatchStack(blocks=(Block(branches=(Attention(relative=Rope()),)), Block(branches=(GRU(),))))
        ),
    ),
    "patches of one position": stack((Block(),), segmentation=Megabyte(size=1)),
    "long patches": stack((Block(),), segmentation=Megabyte(size=40)),
    "scales, every mixer": stack(
        (Block(branches=OVER_SCALES, norm=RMSNorm()),),
        positions(NoPositions()),
        segmentation=Scales(factors=(1, 2, 6), pool="max"),
        init_std=0.2,
    ),
    "scales, within and across": stack(
        tuple(Block(branches=(Attention(mask=mask), FeedForward()), order="post") for mask in ON_LEVELS),
        positions(Sinusoidal()),
        segmentation=Scales(factors=(1, 3)),
    ),
    "scales, a window": stack(
        (Block(branches=(Attention(relative=Rope(), num_kv_heads=1, mask=Causal() & Window(size=4)), FeedForward())),),
        segmentation=Scales(factors=(1, 2, 4), pool="last"),
    ),
    "one scale": stack((Block(),), segmentation=Scales(factors=(1,))),
}
"""Decoders whose blocks read a row in segments."""


def describe(part: Branch) -> str:
    """``attention(num_kv_heads=2, relative=rope)``: the kind and what differs from its defaults."""
    plain, said = type(part)(), []
    for name in type(part).model_fields:
        value = getattr(part, name)
        if value != getattr(plain, name):
            said.append(f"{name}={getattr(value, 'kind', value) if name != 'mask' else value}")
    return f"{part.kind}({', '.join(said)})" if said else part.kind
