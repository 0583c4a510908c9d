"""Encoder, encoder–decoder and prefix decoder against their equals, padded rows and rows alone, readers of a memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.mixers.modules import built as built_branch
from tests.models.stacks import VOCABULARY, model
from torch import Tensor, nn

from qkv.layers.context import MEMORY, Context, Memory
from qkv.layers.norms import BatchNorm as BatchNormModule
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import GRU, LSTM, Attention, Branch, CausalConvolution, Convolution, FeedForward
from qkv.spec.heads import ClassificationHead, CTCHead, Head, LanguageModelHead, RegressionHead, SpanHead, TokenHead
from qkv.spec.masks import Causal, Full, Prefix
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import AdditiveAttention, CrossAttention, FixedContext
from qkv.spec.parts import BatchNorm, LayerNorm, NoNorm, NoPositions, Norm, RMSNorm, Rope, Sinusoidal

TEXT = Text(vocab_size=VOCABULARY, positions=Sinusoidal())
SEES_ALL = (Attention(mask=Full(), num_heads=2), FeedForward(hidden=20))
JUNK = 7
"""The id that stands in the padding."""


def encoder(*branches: Branch, **fields: Any) -> Encoder:
    return Encoder(**{"frontend": TEXT, "blocks": (Block(branches=branches or SEES_ALL),), "num_layers": 2, **fields})


def double(spec: Model, seed: int = 0) -> Transformer:
    """In float64, every weight drawn at random."""
    m = build(spec).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for p in m.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64) * (
            p.shape[-1] ** -0.5 if p.dim() > 1 else 0.3
        )
    return m


def some_ids(batch: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(ids: Tensor, lengths: Tensor, junk: int = JUNK) -> Tensor:
    return torch.where(torch.arange(ids.shape[1]) < lengths[:, None], ids, junk)


# What they are equal to.


def joined_attention(cross: Any, part: CrossAttention, width: int) -> Any:
    """Self-attention with the same weights."""
    fields = {
        name: getattr(part, name)
        for name in ("num_heads", "num_kv_heads", "head_dim", "value_dim", "temperature", "bias", "qk_norm")
    }
    own = built_branch(Attention(mask=Full(), **fields), width)
    own.qkv.weight.data = torch.cat((cross.query.weight, cross.memory.weight))
    if part.bias:
        own.qkv.bias.data = torch.cat((cross.query.bias, cross.memory.bias))
    for name in ("output", "query_norm", "key_norm"):
        if getattr(own, name) is not None:
            getattr(own, name).load_state_dict(getattr(cross, name).state_dict())
    return own


@pytest.mark.parametrize(
    "part",
    [
        CrossAttention(num_heads=2),
        CrossAttention(num_heads=4, num_kv_heads=2, bias=False, temperature=0.6),
        CrossAttention(num_heads=2, num_kv_heads=1, head_dim=5, value_dim=3, qk_norm=True),
    ],
)
@pytest.mark.parametrize("count", [1, 4, 9])
def test_cross_attention_is_self_attention_over_the_concatenation_that_sees_the_memory_alone(
    part: CrossAttention, count: int
) -> None:
    width, slots, lengths = 12, 6, torch.tensor([6, 2, 1])
    cross = built_branch(part, width)
    generator = torch.Generator().manual_seed(3)
    x, memory = (
        torch.randn(3, size, width, dtype=torch.float64, generator=generator).requires_grad_()
        for size in (count, slots)
    )
    shown = (torch.arange(slots + count) < lengths[:, None])[:, None].expand(-1, slots + count, -1)
    context = Context(torch.arange(slots + count)[None], visible=shown)
    expected = joined_attention(cross, part, width)(torch.cat((memory, x), 1), context)[0][:, slots:]
    seen = cross(x, Context(torch.arange(count)[None], memories={MEMORY: Memory((memory,), lengths)}))[0]
    torch.testing.assert_close(seen, expected)
    for got, right in zip(*(torch.autograd.grad(y.square().sum(), (x, memory)) for y in (seen, expected)), strict=True):
        torch.testing.assert_close(got, right)


def torch_block(theirs: Any, ours: Any, crossing: bool) -> None:
    """Copies the weights of one block into torch's layer; its attention keeps q, k and v in one matrix."""
    pairs = [
        (theirs.self_attn, ours.branches[0].body.qkv, ours.branches[0].body.output, theirs.norm1, ours.branches[0].norm)
    ]
    if crossing:
        cross = ours.branches[1].body
        joined = nn.Linear(1, 1, dtype=torch.float64)
        joined.weight, joined.bias = (
            nn.Parameter(torch.cat((a.detach(), b.detach())))
            for a, b in ((cross.query.weight, cross.memory.weight), (cross.query.bias, cross.memory.bias))
        )
        pairs.append((theirs.multihead_attn, joined, cross.output, theirs.norm2, ours.branches[1].norm))
    for attention, joined, output, norm, own_norm in pairs:
        attention.in_proj_weight.data, attention.in_proj_bias.data = joined.weight.data, joined.bias.data
        attention.out_proj.load_state_dict(output.state_dict())
        norm.load_state_dict(own_norm.state_dict())
    last = ours.branches[-1]
    theirs.linear1.load_state_dict(last.body.up.state_dict())
    theirs.linear2.load_state_dict(last.body.down.state_dict())
    (theirs.norm3 if crossing else theirs.norm2).load_state_dict(last.norm.state_dict())


def vaswani() -> tuple[Transformer, nn.TransformerEncoder, nn.TransformerDecoder]:
    """The post-norm model of Vaswani et al. 2017, and torch's two stacks with the same weights."""
    width, heads, hidden, norm = 16, 4, 24, LayerNorm(eps=1e-5)
    feed_forward = FeedForward(hidden=hidden, activation="relu")
    ours = double(
        model(
            Block(
                branches=(Attention(num_heads=heads), CrossAttention(num_heads=heads), feed_forward),
                order="post",
                norm=norm,
            ),
            num_layers=2,
            norm=NoNorm(),
            encoder=encoder(
                blocks=(
                    Block(branches=(Attention(mask=Full(), num_heads=heads), feed_forward), order="post", norm=norm),
                ),
                num_layers=3,
                norm=NoNorm(),
            ),
        )
    )
    assert ours.encoder is not None
    sizes = (width, heads, hidden, 0.0)
    options: dict[str, Any] = {"batch_first": True, "dtype": torch.float64}
    reads = nn.TransformerEncoder(nn.TransformerEncoderLayer(*sizes, **options), 3, enable_nested_tensor=False).eval()
    writes = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **options), 2).eval()
    for theirs, own in zip(reads.layers, ours.encoder.blocks, strict=True):
        torch_block(theirs, own, crossing=False)
    for theirs, own in zip(writes.layers, ours.blocks, strict=True):
        torch_block(theirs, own, crossing=True)
    return ours, reads, writes


def test_an_encoder_decoder_is_that_of_torch() -> None:
    """The post-norm block of Vaswani et al. 2017, padding on both sides, the same weights."""
    ours, reads, writes = vaswani()
    assert ours.encoder is not None
    source, target = some_ids(3, 7), some_ids(3, 5, seed=2)
    known = torch.tensor([7, 3, 5])
    x, y = (
        stack.frontend(Signal(ids), Context(torch.arange(ids.shape[1])[None]))
        for stack, ids in ((ours.encoder, source), (ours, target))
    )
    hidden_keys = torch.arange(7) >= known[:, None]
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    memory = reads(x, src_key_padding_mask=hidden_keys)
    expected = writes(y, memory, tgt_mask=later, memory_key_padding_mask=hidden_keys) @ ours.frontend.table.t()
    seen = ours(target, memory=ours.encode(Signal(source, lengths=known)))[0]
    # The angles of sinusoidal positions are computed once for both, so what is left is the order of sums.
    torch.testing.assert_close(seen, expected, rtol=1e-9, atol=1e-9)


# Padding.

HEADS: dict[str, Head] = {
    **{
        f"classes, {how}": ClassificationHead(num_classes=3, pooling=how)
        for how in ("first", "last", "mean", "max", "attention")
    },
    "regression": RegressionHead(pooling="max", hidden=6),
    "tags": TokenHead(num_classes=4),
    "tags, hidden": TokenHead(num_classes=4, hidden=7, activation="gelu", norm=LayerNorm(eps=0.1), hidden_bias=False),
    "transcription": CTCHead(num_classes=4, blank=3),
    "classes, hidden": ClassificationHead(
        num_classes=3, pooling="first", hidden=6, activation="silu", norm=RMSNorm(), bias=False
    ),
    "spans": SpanHead(),
    "masked words": LanguageModelHead(bias=True, transform="gelu"),
}
READERS: dict[str, tuple[Branch, ...]] = {
    "attention": SEES_ALL,
    "recurrent, both directions": (GRU(direction="both"), LSTM(direction="both", hidden=6)),
    "convolution": (Convolution(kernel_size=4), Convolution(kernel_size=3, gated=False)),
}
WRITERS: dict[str, tuple[Branch, ...]] = {
    "cross attention": (Attention(num_heads=2), CrossAttention(num_heads=2), FeedForward()),
    "additive attention": (GRU(), AdditiveAttention()),
    "fixed context": (LSTM(), FixedContext(pooling="last")),
    "convolution": (CausalConvolution(), CrossAttention(num_heads=1)),
}
NORMS: dict[str, Norm] = {
    "layer": LayerNorm(),
    "rms": RMSNorm(),
    "rms, zero-centred": RMSNorm(zero_centred=True),
    "batch": BatchNorm(),
    "none": NoNorm(),
}
LENGTHS = torch.tensor([9, 1, 4])


def same_rows(whole: Tensor, alone: list[Tensor]) -> None:
    """Row by row, over the real positions where there is an axis of them."""
    for row, one in enumerate(alone):
        seen = whole[row : row + 1]
        torch.testing.assert_close(seen if one.dim() < 3 else seen[:, : one.shape[1]], one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_padded_rows_of_an_encoder_are_those_alone(head: str, reader: str, norm: str) -> None:
    block = Block(branches=READERS[reader], norm=NORMS[norm])
    m = double(model(block, num_layers=2, frontend=TEXT, norm=NORMS[norm], head=HEADS[head]))
    ids = some_ids(3, 9)
    seen = m(Signal(padded(ids, LENGTHS), lengths=LENGTHS))[0]
    same_rows(seen, [m(ids[row : row + 1, :length])[0] for row, length in enumerate(LENGTHS.tolist())])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("reader", READERS)
@torch.no_grad()
def test_padded_rows_of_an_encoder_decoder_are_those_alone(reader: str, writer: str, norm: str) -> None:
    reads = encoder(blocks=(Block(branches=READERS[reader], norm=NORMS[norm]),), norm=NORMS[norm])
    m = double(model(Block(branches=WRITERS[writer], norm=NORMS[norm]), frontend=TEXT, norm=NORMS[norm], encoder=reads))
    sources, targets, written = some_ids(3, 9), some_ids(3, 6, seed=2), torch.tensor([2, 6, 5])
    memory = m.encode(Signal(padded(sources, LENGTHS), lengths=LENGTHS))
    seen = m(Signal(padded(targets, written), lengths=written), memory=memory)[0]
    alone = [
        m(targets[row : row + 1, :n], memory=m.encode(sources[row : row + 1, :length]))[0]
        for row, (length, n) in enumerate(zip(LENGTHS.tolist(), written.tolist(), strict=True))
    ]
    same_rows(seen, alone)


def prefix_decoder(norm: Norm | None = None, **fields: Any) -> Model:
    attention = Attention(num_heads=2, mask=Causal() | Prefix(), relative=Rope())
    norm = norm or LayerNorm()
    text = Text(vocab_size=VOCABULARY, positions=NoPositions())
    return model(
        Block(branches=(attention, FeedForward()), norm=norm), num_layers=2, frontend=text, norm=norm, **fields
    )


@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_padded_rows_of_a_prefix_decoder_are_those_alone(norm: str) -> None:
    m, ids, prefix = double(prefix_decoder(NORMS[norm])), some_ids(3, 9), torch.tensor([4, 1, 0])
    seen = m(Signal(padded(ids, LENGTHS), lengths=LENGTHS, prefix=prefix))[0]
    same_rows(
        seen,
        [m(Signal(ids[row : row + 1, :n], prefix=prefix[row : row + 1]))[0] for row, n in enumerate(LENGTHS.tolist())],
    )


def losses(m: Transformer, answer: Tensor, real: Tensor) -> Tensor:
    return (answer[real].double() ** 2).sum()


@pytest.mark.parametrize("norm", [name for name in NORMS if name != "batch"])
@pytest.mark.parametrize("writer", WRITERS)
def test_no_gradient_comes_from_padding(writer: str, norm: str) -> None:
    """Whatever stands there, the gradients are the same."""
    reads = encoder(GRU(direction="both"), Attention(mask=Full(), num_heads=2))
    m = double(model(Block(branches=WRITERS[writer], norm=NORMS[norm]), frontend=TEXT, encoder=reads))
    sources, targets, written = some_ids(3, 9), some_ids(3, 6, seed=2), torch.tensor([2, 6, 5])
    found = []
    for junk in (0, JUNK):
        memory = m.encode(Signal(padded(sources, LENGTHS, junk), lengths=LENGTHS))
        answer = m(Signal(padded(targets, written, junk), lengths=written), memory=memory)[0]
        m.zero_grad()
        losses(m, answer, torch.arange(6) < written[:, None]).backward()
        found.append([p.grad.clone() for p in m.parameters() if p.grad is not None])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second)


def test_batch_norm_learns_from_real_tokens_of_source_and_target_alone() -> None:
    """In training the statistics are those of the real tokens: junk in the padding, or more of it, changes nothing."""
    blocks = Block(branches=(Attention(num_heads=2), CrossAttention(num_heads=2)), norm=BatchNorm())
    reads = encoder(blocks=(Block(branches=SEES_ALL, norm=BatchNorm()),), norm=BatchNorm())
    spec = model(blocks, frontend=TEXT, norm=BatchNorm(), encoder=reads)
    sources, targets, written = some_ids(3, 9), some_ids(3, 6, seed=2), torch.tensor([2, 6, 5])
    found = []
    for junk, more in ((0, 0), (JUNK, 0), (JUNK, 4)):
        m = double(spec).train()
        rows = [torch.cat((ids, some_ids(3, more)), 1) for ids in (sources, targets)]
        memory = m.encode(Signal(padded(rows[0], LENGTHS, junk), lengths=LENGTHS))
        answer = m(Signal(padded(rows[1], written, junk), lengths=written), memory=memory)[0][:, :6]
        real = torch.arange(6) < written[:, None]
        losses(m, answer, real).backward()
        norms = [norm for norm in m.modules() if isinstance(norm, BatchNormModule)]
        assert len(norms) == 8
        found.append([answer[real].detach(), *(p.grad for p in m.parameters()), *(n.running_mean for n in norms)])
    for other in found[1:]:
        for first, second in zip(found[0], other, strict=True):
            torch.testing.assert_close(first, second)
    mean = found[0][-1]
    assert mean.abs().max() > 0


# Who reads which memory.


def layered(memory: str = "layers", **fields: Any) -> Model:
    reads = encoder(num_layers=3, memory=memory, **fields)
    return model(
        Block(branches=(Attention(num_heads=2), CrossAttention(num_heads=2), FeedForward())),
        frontend=TEXT,
        num_layers=3,
        encoder=reads,
    )


@torch.no_grad()
def test_layer_i_reads_the_normed_output_of_encoder_layer_i() -> None:
    m, source = double(layered()), some_ids(2, 5)
    assert m.encoder is not None
    memory = m.encode(source)
    assert len(memory.vectors) == 3
    context = Context(torch.arange(5)[None])
    x = m.encoder.frontend(Signal(source), context)
    for vectors, block in zip(memory.vectors, m.encoder.blocks, strict=True):
        x = block(x, context)[0]
        torch.testing.assert_close(vectors, m.encoder.norm(x, context))


@pytest.mark.parametrize("changed", [0, 1, 2])
@torch.no_grad()
def test_a_layer_reads_the_memory_of_its_own_number_and_no_other(changed: int) -> None:
    m, source, target = double(layered()), some_ids(2, 5), some_ids(2, 4, seed=2)
    memory = m.encode(source)
    vectors = tuple(v + (i == changed) for i, v in enumerate(memory.vectors))
    outputs = [Recorder("output"), Recorder("output")]
    for known, tap in zip((memory, Memory(vectors, memory.lengths)), outputs, strict=True):
        m(target, memory=known, tap=tap)
    crossing = [f"blocks.{i}.branches.1.output" for i in range(3)]
    differs = [not torch.allclose(outputs[0][name], outputs[1][name]) for name in crossing]
    assert differs == [i >= changed for i in range(3)]
    first = f"blocks.{changed}.branches.0.output"
    torch.testing.assert_close(outputs[0][first], outputs[1][first], msg="what comes before the branch does not change")


@pytest.mark.parametrize("memory", ["last", "layers"])
@torch.no_grad()
def test_decoding_reads_the_same_memory_as_one_call(memory: str) -> None:
    m, source, target, known = double(layered(memory)), some_ids(3, 9), some_ids(3, 6, seed=2), LENGTHS
    read = m.encode(Signal(source, lengths=known))
    state, outs = m.init_state(3, memory=read), []
    for i in range(6):
        y, state = m(target[:, i : i + 1], state)
        outs.append(y)
    torch.testing.assert_close(torch.cat(outs, 1), m(target, memory=read)[0])


@pytest.mark.parametrize("memory", ["last", "layers"])
def test_it_learns_what_only_the_source_can_tell(memory: str) -> None:
    """The target is the source in reverse order."""
    m = build(layered(memory).changed(width=32, init_std=0.1), seed=1)
    generator = torch.Generator().manual_seed(0)
    optimizer, loss = torch.optim.AdamW(m.parameters(), lr=4e-3), torch.tensor(9.0)
    for _ in range(80):
        source = torch.randint(4, (48, 3), generator=generator)
        target = source.flip(1)
        ids = torch.cat((torch.full((48, 1), 4), target[:, :-1]), 1)
        loss = nn.functional.cross_entropy(m(ids, memory=m.encode(source))[0].flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.2, "blind to the source it is ln 4 = 1.39"


def test_one_table_for_source_and_target() -> None:
    apart, shared = (build(layered(share_embedding=share)) for share in (False, True))
    assert shared.encoder is not None
    assert apart.encoder is not None
    assert shared.encoder.frontend.table is shared.frontend.table
    assert apart.encoder.frontend.table is not apart.frontend.table
    counts = [sum(p.numel() for p in m.parameters()) for m in (apart, shared)]
    assert counts[0] - counts[1] == VOCABULARY * 16
    shared.encode(some_ids(1, 3)).vectors[-1].sum().backward()
    assert shared.frontend.table.grad is not None


@pytest.mark.parametrize("memory", ["last", "layers"])
def test_computing_blocks_again_changes_nothing_in_either_stack(memory: str) -> None:
    m, source, target, grads = double(layered(memory)), some_ids(2, 5), some_ids(2, 4, seed=2), []
    for again in (False, True):
        m.zero_grad()
        m.recompute_blocks(again)
        assert m.encoder is not None
        assert (m.recompute, m.encoder.recompute) == (again, again)
        m(target, memory=m.encode(source))[0].square().sum().backward()
        grads.append([p.grad.clone() for p in m.parameters()])
    for first, second in zip(*grads, strict=True):
        torch.testing.assert_close(first, second)


# A prefix in place of an encoder.


@torch.no_grad()
def test_the_prefix_sees_itself_and_the_rest_what_came_before() -> None:
    """For each row of its own prefix: the positions whose change reaches position i, in one layer."""
    spec, prefix, length = prefix_decoder().changed(num_layers=1), torch.tensor([3, 0, 6]), 6
    m, ids = double(spec), some_ids(3, length)
    before = m(Signal(ids, prefix=prefix))[0]
    for row, own in enumerate(prefix.tolist()):
        for j in range(length):
            changed = ids.clone()
            changed[row, j] = (ids[row, j] + 1) % VOCABULARY
            after = m(Signal(changed, prefix=prefix))[0]
            reached = [i for i in range(length) if not torch.allclose(after[row, i], before[row, i])]
            assert reached == [i for i in range(length) if j <= i or j < own], f"row {row}, position {j}"
            others = [other for other in range(3) if other != row]
            torch.testing.assert_close(after[others], before[others])


@torch.no_grad()
def test_a_prefix_of_nothing_is_a_causal_model_and_one_of_all_an_encoder() -> None:
    spec, ids = prefix_decoder(), some_ids(2, 6)
    for prefix, mask in ((0, Causal()), (6, Full())):
        other = spec.changed(
            blocks=(Block(branches=(Attention(num_heads=2, mask=mask, relative=Rope()), FeedForward())),)
        )
        torch.testing.assert_close(double(spec)(Signal(ids, prefix=torch.full((2,), prefix)))[0], double(other)(ids)[0])
