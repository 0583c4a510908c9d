"""Random specs of small models, over every registered branch, norm, residual and kind of position."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from qkv.spec import branches as branch
from qkv.spec import heads, parts
from qkv.spec.branches import HeadedAttention
from qkv.spec.masks import Causal, Full, Window
from qkv.spec.mixers.gated_attention import GAU, GatedAttention, MixedChunkAttention
from qkv.spec.mixers.hyper_attention import HyperAttention
from qkv.spec.mixers.latent_attention import LatentAttention
from qkv.spec.mixers.linear_attention import Elu, Favor, LinearAttention
from qkv.spec.mixers.lsh_attention import CollisionAttention, LSHAttention
from qkv.spec.mixers.matrix_state import GatedDelta, Mamba2, Retention
from qkv.spec.mixers.relative_attention import DisentangledAttention, RelativeAttention
from qkv.spec.mixers.sparse_attention import GlobalLocalAttention
from qkv.spec.model import Block, Encoder, Latents, Model, Queries, Text
from qkv.spec.models import cross
from qkv.spec.models.blocks import DepthAverage
from qkv.spec.models.forecasts import Gaussian, Point, Quantiles, StudentT
from qkv.spec.models.quantizers import ProjectedQuantizer, ResidualQuantizer, ScalarQuantizer, SplitQuantizer
from qkv.spec.position_wise import memory_layer
from qkv.spec.position_wise.experts import BalanceBias, BalanceLoss, MixtureOfExperts
from qkv.spec.position_wise.product_keys import ProductKeyMemory
from qkv.spec.signals.codecs import SeaNet, SpectrumDecoder, WaveDecoder
from qkv.spec.signals.speech import SpeechHead

WIDTH = 16
MASKS = st.sampled_from([Causal(), Full(), Causal() & Window(size=3, sinks=2), Causal() & Window(size=99)])
RELATIVES = st.sampled_from(
    [
        parts.NoRelative(),
        parts.Rope(),
        parts.Shaw(max_distance=3),
        parts.Shaw(values=True),
        parts.T5Buckets(num_buckets=6),
        parts.T5Buckets(num_buckets=6, shared=True),
    ]
)
ACTIVATIONS = st.sampled_from(
    ["relu", "relu2", "gelu", "gelu_tanh", "silu", "quick_gelu", "sigmoid", "tanh", "identity"]
)
DIRECTIONS = st.sampled_from(["forward", "backward", "both"])
SIZES = st.none() | st.sampled_from([6, 20])

HEAD_NORMS = st.sampled_from(
    [parts.NoNorm(), parts.RMSNorm(), parts.RMSNorm(weight=False), parts.LayerNorm(), parts.LayerNorm(bias=False)]
)

BRANCHES: dict[type[branch.Branch], st.SearchStrategy[Any]] = {
    branch.Attention: st.builds(
        branch.Attention,
        num_heads=st.just(4),
        num_kv_heads=st.sampled_from([None, 1, 2]),
        head_dim=SIZES,
        value_dim=SIZES,
        mask=MASKS,
        relative=RELATIVES,
        top_k=st.sampled_from([None, 3]),
        softcap=st.sampled_from([None, 2.0]),
        bias=st.booleans(),
        output_bias=st.sampled_from([None, True, False]),
        qk_norm=HEAD_NORMS.filter(lambda norm: not norm.identity),
        qk_norm_over=st.sampled_from(["head", "each_head", "all_heads"]),
        clip=st.sampled_from([None, 0.5]),
    ),
    DisentangledAttention: st.builds(
        DisentangledAttention,
        num_heads=st.just(4),
        num_kv_heads=st.sampled_from([None, 2]),
        head_dim=SIZES,
        mask=MASKS,
        position_buckets=st.sampled_from([None, 6]),
        max_distance=st.just(9),
        position_to_content=st.booleans(),
        share_projections=st.booleans(),
        key_bias=st.booleans(),
        shared=st.booleans(),
        table_norm=st.sampled_from([parts.NoNorm(), parts.LayerNorm()]),
        qk_norm=HEAD_NORMS,
    ),
    RelativeAttention: st.builds(
        RelativeAttention,
        num_heads=st.just(4),
        num_kv_heads=st.sampled_from([None, 2]),
        value_dim=SIZES,
        mask=MASKS,
        max_distance=st.sampled_from([None, 4]),
        bias=st.booleans(),
        by_type=st.booleans(),
    ),
    GlobalLocalAttention: st.builds(
        GlobalLocalAttention,
        num_heads=st.sampled_from([2, 4]),
        head_dim=SIZES,
        window=st.sampled_from([0, 2, 99]),
        num_global=st.sampled_from([None, 1, 5]),
        bias=st.booleans(),
    ),
    CollisionAttention: st.builds(
        CollisionAttention,
        num_heads=st.just(4),
        num_kv_heads=st.sampled_from([None, 2]),
        value_dim=SIZES,
        mask=MASKS,
        hash_length=st.sampled_from([1, 9]),
        bias=st.booleans(),
    ),
    LSHAttention: st.builds(
        LSHAttention,
        num_heads=st.sampled_from([2, 4]),
        head_dim=SIZES,
        mask=MASKS,
        num_hashes=st.sampled_from([1, 3]),
        num_buckets=st.sampled_from([(4,), (2, 6)]),
        chunk_length=st.sampled_from([2, 5, 64]),
        chunks_after=st.sampled_from([0, 1]),
        bias=st.booleans(),
    ),
    HyperAttention: st.builds(
        HyperAttention,
        num_heads=st.sampled_from([2, 4]),
        head_dim=SIZES,
        mask=st.sampled_from(["causal", "full"]),
        block=st.sampled_from([2, 5]),
        samples=st.sampled_from([1, 4]),
        sampling=st.sampled_from(["uniform", "value_norm"]),
        exact_up_to=st.sampled_from([1, 3, 64]),
        bias=st.booleans(),
    ),
    LinearAttention: st.builds(
        LinearAttention,
        num_heads=st.sampled_from([1, 4]),
        features=st.sampled_from([Elu(), Favor(num_features=5)]),
        mask=st.sampled_from(["causal", "full"]),
        chunk=st.sampled_from([3, 64]),
        bias=st.booleans(),
    ),
    Retention: st.builds(
        Retention,
        num_heads=st.sampled_from([1, 4]),
        value_dim=SIZES,
        base=st.sampled_from([None, 100.0]),
        chunk=st.sampled_from([3, 64]),
    ),
    Mamba2: st.builds(
        Mamba2,
        num_heads=st.sampled_from([2, 4]),
        state_size=st.sampled_from([3, 8]),
        num_groups=st.sampled_from([1, 2]),
        kernel_size=st.integers(1, 4),
        chunk=st.sampled_from([3, 64]),
    ),
    GatedDelta: st.builds(
        GatedDelta,
        num_heads=st.sampled_from([1, 4]),
        value_dim=SIZES,
        decay=st.booleans(),
        kernel_size=st.integers(1, 4),
        chunk=st.sampled_from([3, 64]),
    ),
    LatentAttention: st.builds(
        LatentAttention,
        kv_rank=st.sampled_from([None, 5]),
        query_rank=st.sampled_from([None, 7]),
        head_dim=SIZES,
        rope_dim=st.sampled_from([None, 0, 6]),
        value_dim=SIZES,
        mask=MASKS,
    ),
    **{
        kind: st.builds(
            kind,
            hidden=SIZES,
            key_dim=st.sampled_from([2, 6]),
            base=st.sampled_from([None, 100.0]),
            mask=st.sampled_from(["causal", "full"]),
            bias=st.booleans(),
        )
        for kind in (GAU, MixedChunkAttention)
    },
    branch.TokenShift: st.builds(branch.TokenShift, groups=st.sampled_from([2, 4])),
    branch.CausalConvolution: st.builds(
        branch.CausalConvolution, kernel_size=st.integers(1, 4), dilation=st.integers(1, 3), gated=st.booleans()
    ),
    **{kind: st.builds(kind, hidden=SIZES, direction=DIRECTIONS) for kind in (branch.RNN, branch.GRU, branch.LSTM)},
    branch.Convolution: st.builds(branch.Convolution, kernel_size=st.integers(1, 4), gated=st.booleans()),
    memory_layer.MemoryLayer: st.builds(
        memory_layer.MemoryLayer,
        num_slots=SIZES,
        key_dim=SIZES,
        num_heads=st.sampled_from([1, 4]),
        activation=ACTIVATIONS | st.just("softmax"),
    ),
    MixtureOfExperts: st.builds(
        MixtureOfExperts,
        num_experts=st.sampled_from([3, 4]),
        top_k=st.sampled_from([1, 2, 3]),
        num_shared=st.sampled_from([0, 2]),
        hidden=SIZES,
        gated=st.booleans(),
        bias=st.booleans(),
        router=st.sampled_from(["softmax", "sigmoid"]),
        balance=st.sampled_from([BalanceLoss(), BalanceBias()]),
    ),
    ProductKeyMemory: st.builds(
        ProductKeyMemory,
        num_keys=st.sampled_from([3, 6]),
        top_k=st.sampled_from([1, 7]),
        num_heads=st.sampled_from([1, 4]),
        key_dim=SIZES,
    ),
    branch.FeedForward: st.builds(branch.FeedForward, hidden=SIZES, activation=ACTIVATIONS, bias=st.booleans()),
    branch.GatedFeedForward: st.builds(
        branch.GatedFeedForward, hidden=SIZES, activation=ACTIVATIONS, bias=st.booleans()
    ),
}
NORMS = st.sampled_from(
    [
        parts.LayerNorm(),
        parts.LayerNorm(bias=False),
        parts.RMSNorm(),
        parts.RMSNorm(weight=False),
        parts.RMSNorm(zero_centred=True),
        parts.BatchNorm(),
        parts.NoNorm(),
    ]
)
# Reversible blocks go with reversible blocks alone, and are counted in test_cost_forms.
RESIDUALS = st.sampled_from([parts.Add(), parts.Scaled(), parts.Gated(), parts.NoResidual(), parts.Resurrecting()])
POSITIONS = st.sampled_from(
    [
        parts.Learned(),
        parts.Learned(offset=2),
        parts.Axial(shape=(4, 3)),
        parts.Sinusoidal(),
        parts.LearnedSinusoidal(hidden=7),
        parts.NoPositions(),
    ]
)


def blocks(branches: st.SearchStrategy[Any]) -> st.SearchStrategy[Block]:
    """Blocks of 1 to 3 of ``branches`` in any order, norm and residual; several side by side are added to something."""
    adding = RESIDUALS.filter(lambda part: part != parts.NoResidual())
    return st.integers(1, 3).flatmap(
        lambda count: (
            blocks_of(branches, count, ["pre", "post", "sandwich", "res_post"], RESIDUALS)
            | blocks_of(branches, count, ["parallel"], adding if count > 1 else RESIDUALS)
        )
    )


def blocks_of(
    branches: st.SearchStrategy[Any], count: int, orders: list[str], residuals: st.SearchStrategy[Any]
) -> st.SearchStrategy[Block]:
    """Blocks of so many branches."""
    return st.builds(
        Block,
        branches=st.lists(branches, min_size=count, max_size=count).map(tuple),
        order=st.sampled_from(orders),
        norm=NORMS,
        residual=residuals,
        norms=st.just(()) | st.lists(NORMS, min_size=count, max_size=count).map(tuple),
    )


@st.composite
def models(draw: st.DrawFn, causal: bool = False) -> Model:
    """Models of one to four layers; ``causal`` ones decode."""
    pattern = tuple(draw(st.lists(blocks(st.one_of(*BRANCHES.values())), min_size=1, max_size=2)))
    positions = draw(POSITIONS)
    join = draw(st.sampled_from(["add", "concatenate"])) if not isinstance(positions, parts.NoPositions) else "add"
    tied = draw(st.booleans()) and join == "add"
    model = Model(
        width=WIDTH,
        num_layers=draw(st.sampled_from([None, 3, 4])),
        depth_average=draw(st.sampled_from([None, None, DepthAverage(), DepthAverage(dilation=2)])),
        context_length=12,
        frontend=Text(
            vocab_size=draw(st.integers(2, 40)),
            positions=positions,
            join=join,
            norm=draw(NORMS),
            types=draw(st.sampled_from([0, 0, 3])),
            embedding_width=draw(st.sampled_from([None, None, 6])) if not tied else None,
        ),
        rounds=draw(st.sampled_from([1, 1, 2])),
        blocks=pattern,
        norm=draw(NORMS),
        head=heads.LanguageModelHead(tied=tied, bias=draw(st.booleans())),
    )
    return _decoding(model) if causal else model


def _decoding(model: Model) -> Model:
    pattern = tuple(block.changed(branches=tuple(_causal(part) for part in block.branches)) for block in model.blocks)
    return model.changed(blocks=pattern)


def _causal(part: branch.Branch) -> branch.Branch:
    if part.causal:
        return part
    if isinstance(part, branch.Convolution):
        return branch.CausalConvolution(kernel_size=part.kernel_size, gated=part.gated)
    if isinstance(part, HeadedAttention):
        return branch.Attention()
    if isinstance(part, branch.Recurrent):
        return part.changed(direction="forward")
    return part.changed(mask="causal" if isinstance(part, (LinearAttention, GatedAttention)) else Causal())


MEMORY_BRANCHES: dict[type[cross.MemoryBranch], st.SearchStrategy[Any]] = {
    cross.CrossAttention: st.builds(
        cross.CrossAttention,
        num_heads=st.just(4),
        num_kv_heads=st.sampled_from([None, 1, 2]),
        head_dim=SIZES,
        value_dim=SIZES,
        bias=st.booleans(),
        key_bias=st.booleans(),
        output_bias=st.sampled_from([None, True, False]),
        qk_norm=HEAD_NORMS,
    ),
    cross.AdditiveAttention: st.builds(cross.AdditiveAttention, hidden=SIZES),
    cross.FixedContext: st.builds(cross.FixedContext, pooling=st.sampled_from(["first", "last", "mean", "max"])),
}


def answering(head: type[heads.Head], **fields: Any) -> st.SearchStrategy[Any]:
    """Heads with a layer before the answer, or without."""
    biases = {"hidden_bias": st.booleans(), "bias": st.booleans()}
    with_layer = st.builds(
        head, hidden=st.sampled_from([6, 20]), activation=ACTIVATIONS, norm=HEAD_NORMS, **biases, **fields
    )
    return with_layer | st.builds(head, **biases, **fields)


_POOLING = st.sampled_from(get_args(heads.PoolingName))
POOLINGS = _POOLING | st.lists(_POOLING, min_size=1, max_size=3).map(tuple)
WORDS: dict[str, st.SearchStrategy[Any]] = {
    "bias": st.booleans(),
    "softcap": st.sampled_from([None, 5.0]),
    "scale": st.sampled_from([1.0, 0.25]),
    "norm": HEAD_NORMS,
    "transform_bias": st.booleans(),
}
HEADS: dict[type[heads.Head], st.SearchStrategy[Any]] = {
    heads.LanguageModelHead: st.builds(
        heads.LanguageModelHead, tied=st.booleans(), transform=st.none() | ACTIVATIONS, **WORDS
    )
    | st.builds(
        heads.LanguageModelHead,
        tied=st.just(False),
        transform=ACTIVATIONS,
        transform_width=st.just(6),
        transform_hidden=st.sampled_from([None, 5]),
        **WORDS,
    ),
    heads.ClassificationHead: answering(heads.ClassificationHead, num_classes=st.integers(1, 5), pooling=POOLINGS),
    heads.LabelsHead: answering(heads.LabelsHead, num_classes=st.integers(1, 5), pooling=POOLINGS),
    heads.RegressionHead: answering(heads.RegressionHead, pooling=POOLINGS),
    heads.TokenHead: answering(heads.TokenHead, num_classes=st.integers(1, 5)),
    heads.CRFHead: answering(heads.CRFHead, num_classes=st.integers(1, 5)),
    heads.CTCHead: answering(heads.CTCHead, num_classes=st.integers(2, 5), blank=st.integers(0, 1)),
    heads.ContrastiveHead: st.builds(
        heads.ContrastiveHead,
        groups=st.integers(1, 2),
        codes=st.integers(2, 5),
        code_width=st.just(4),
        features=st.integers(2, 6),
        latent_width=st.integers(1, 5),
    ),
    heads.MatchingHead: st.builds(
        heads.MatchingHead,
        features=st.integers(1, 6),
        bias=st.booleans(),
        objective=st.sampled_from(["softmax", "sigmoid"]),
        pooling=POOLINGS,
        source_pooling=POOLINGS,
    ),
    heads.SpanHead: st.just(heads.SpanHead()),
    heads.VectorsHead: st.just(heads.VectorsHead()),
    heads.EdgesHead: st.builds(heads.EdgesHead, hidden=st.none() | st.integers(1, 5)),
    heads.DistilledHead: st.builds(heads.DistilledHead, num_classes=st.integers(1, 5)),
    SpeechHead: st.builds(SpeechHead, codebooks=st.integers(1, 3), codes=st.integers(1, 6)),
    WaveDecoder: st.builds(
        WaveDecoder,
        quantizer=st.sampled_from(
            [
                ScalarQuantizer(codebooks=2, levels=(3, 4)),
                ResidualQuantizer(codes=5),
                ProjectedQuantizer(codes=5, code_width=3),
                SplitQuantizer(codebooks=3, codes=5, code_width=3),
            ]
        ),
        network=st.just(SeaNet(channels=4, strides=(2,))),
    ),
    SpectrumDecoder: st.builds(
        SpectrumDecoder,
        quantizer=st.just(ScalarQuantizer(codebooks=2, levels=(3, 4))),
        hop=st.sampled_from([4, 8]),
        frames=st.integers(1, 2),
    ),
    heads.CodebookHead: st.builds(
        heads.CodebookHead,
        codes=st.integers(2, 9),
        code_width=st.integers(1, 6),
        upsampling=st.sampled_from([(), (3,)]),
        restart=st.sampled_from([0.0, 0.1]),
        grid=st.just((1, 7)),
        cell=st.just(2),
        height=st.just(2),
        width=st.just(14),
        channels=st.integers(1, 3),
    ),
    heads.MixtureHead: st.builds(heads.MixtureHead, components=st.integers(1, 4), features=st.integers(1, 5)),
    heads.ForecastHead: st.builds(
        heads.ForecastHead,
        over=st.sampled_from(["mean", "channels", "steps"]),
        form=st.sampled_from([Point(), Quantiles(), Gaussian(), StudentT()]),
        horizon=st.integers(1, 5),
        channels=st.integers(1, 3),
    ),
}


@st.composite
def latent_models(draw: st.DrawFn) -> Model:
    """Models whose input is read by latents in their own widths: blocks that begin with queries, the input, or none."""
    reads = Block(
        branches=(draw(st.one_of(*MEMORY_BRANCHES.values())), draw(BRANCHES[branch.FeedForward])), norm=draw(NORMS)
    )
    between = draw(blocks(BRANCHES[branch.Attention]))
    form = draw(st.sampled_from(["positions", "count", "input", "latents"]))
    queries = {
        "positions": Queries(positions=draw(POSITIONS.filter(lambda part: part.kind != "none"))),
        "count": Queries(count=3),
    }
    head = (
        heads.ClassificationHead(num_classes=3)
        if form in ("count", "latents")
        else heads.LanguageModelHead(tied=draw(st.booleans()))
    )
    own = draw(st.sampled_from([None, 12])) if form in ("count", "latents") else None
    return Model(
        width=WIDTH,
        context_length=12,
        frontend=Text(vocab_size=draw(st.integers(2, 40)), positions=draw(POSITIONS), width=own),
        latents=Latents(
            count=draw(st.integers(1, 5)),
            width=None if form == "latents" else draw(st.sampled_from([None, 32])),
            num_layers=draw(st.integers(2, 4)),
            blocks=(reads, between),
            norm=draw(NORMS),
            rounds=draw(st.integers(1, 3)),
            once=draw(st.integers(0, 1)),
        ),
        queries=queries.get(form),
        blocks=() if form == "latents" else (reads,),
        head=head,
    )


@st.composite
def encoder_decoders(draw: st.DrawFn) -> Model:
    """Causal models of one to three layers whose every block reads the output of an encoder of as many."""
    layers, share = draw(st.integers(1, 3)), draw(st.booleans())
    text = Text(vocab_size=draw(st.integers(2, 40)), positions=draw(POSITIONS))
    encoder = Encoder(
        num_layers=layers,
        context_length=9,
        frontend=text if share else Text(vocab_size=draw(st.integers(2, 40)), positions=draw(POSITIONS)),
        blocks=(draw(blocks(st.one_of(*BRANCHES.values()))),),
        norm=draw(NORMS),
        memory=draw(st.sampled_from(["last", "layers"])),
        share_embedding=share,
    )
    block = draw(blocks(st.one_of(*BRANCHES.values(), *MEMORY_BRANCHES.values())))
    reads = draw(st.one_of(*MEMORY_BRANCHES.values()))
    if (
        block.order == "parallel" and block.residual == parts.NoResidual()
    ):  # of one branch, which gets a second beside it
        block = block.changed(residual=parts.Add())
    model = Model(
        width=WIDTH,
        num_layers=layers,
        context_length=12,
        frontend=text,
        blocks=(
            block.changed(branches=(*block.branches, reads), norms=(*block.norms, draw(NORMS)) if block.norms else ()),
        ),
        norm=draw(NORMS),
        encoder=encoder,
    )
    return _decoding(model)
