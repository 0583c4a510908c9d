"""Models whose input is read by latents: against torch's attention, padded rows and rows alone, visibility, refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.models.stacks import VOCABULARY, model
from tests.models.test_forms import JUNK, LENGTHS, double, padded, same_rows, some_ids
from tests.tasks.running import recipe_of
from tests.tasks.tables import recipe_for, rows_of, write_table
from tests.training.kill_storm import ignore
from torch import Tensor, nn
from torch.nn import functional as F

import qkv
from qkv.generation.embed import Embedding, embed_texts
from qkv.interop.mapping.normal import normal
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.base import problems_of
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.heads import ClassificationHead, LanguageModelHead, TokenHead
from qkv.spec.masks import Causal, Full
from qkv.spec.model import Block, Latents, Model, Queries, Text
from qkv.spec.models.cross import AdditiveAttention, CrossAttention, FixedContext
from qkv.spec.models.surgery import folded, unrolled
from qkv.spec.parts import BatchNorm, NoPositions, NoResidual, Sinusoidal
from qkv.spec.tokenizers import Bytes
from qkv.system.errors import UserError
from qkv.tokenizers.train import whole_bytes
from qkv.training.loop import train

FEED_FORWARD = FeedForward(hidden=20)
READS = Block(branches=(CrossAttention(num_heads=2, head_dim=3, value_dim=5), FEED_FORWARD))
BETWEEN = Block(branches=(Attention(num_heads=2, mask=Full()), FEED_FORWARD))
TEXT = Text(vocab_size=VOCABULARY, positions=Sinusoidal())
LATENTS = Latents(count=4, width=10, blocks=(READS, BETWEEN), num_layers=3)
CLASSES = ClassificationHead(num_classes=3)


def perceiver(**fields: Any) -> Model:
    """Queries for each position, of the width of the token vectors."""
    return model(**{"blocks": (READS,), "latents": LATENTS, "queries": Queries(), "frontend": TEXT, **fields})


FORMS: dict[str, Model] = {
    "positions": perceiver(),
    "sinusoidal positions": perceiver(queries=Queries(positions=Sinusoidal())),
    "the input": perceiver(queries=None),
    "the input, alone": perceiver(queries=None, latents=LATENTS.changed(width=None)),
    "tags": perceiver(head=TokenHead(num_classes=4)),
    "queries": perceiver(head=CLASSES, queries=Queries(count=3), frontend=TEXT.changed(width=6)),
    "one query": perceiver(
        head=ClassificationHead(num_classes=3, pooling="first"),
        queries=Queries(count=1),
        frontend=TEXT.changed(width=6),
    ),
    "latents": perceiver(
        head=CLASSES, queries=None, blocks=(), latents=LATENTS.changed(width=16), frontend=TEXT.changed(width=6)
    ),
    "additive": perceiver(
        latents=LATENTS.changed(blocks=(Block(branches=(AdditiveAttention(),)), BETWEEN)),
        blocks=(Block(branches=(AdditiveAttention(),)),),
    ),
    "fixed context": perceiver(
        latents=LATENTS.changed(blocks=(Block(branches=(FixedContext(pooling="mean"),)), BETWEEN))
    ),
    "batch norm": perceiver(norm=BatchNorm(), latents=LATENTS.changed(norm=BatchNorm())),
}


# What it is equal to.


def torch_attention(body: Any, queries: Tensor, memory: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Torch's function of many heads with the weights of a branch; ``memory`` may have a width of its own."""
    if hasattr(body, "qkv"):
        sizes = [body.qkv.out_features // 3] * 3
        weights, biases = body.qkv.weight.split(sizes), body.qkv.bias
    else:
        weights = (body.query.weight, *body.memory.weight.split(body.sizes))
        biases = torch.cat((body.query.bias, body.memory.bias))
    q, k, v = (x.transpose(0, 1) for x in (queries, memory, memory))
    out = F.multi_head_attention_forward(
        q, k, v, q.shape[-1], body.part.num_heads, None, biases, None, None, False, 0.0,
        body.output.weight, body.output.bias, False, hidden, False, use_separate_proj_weight=True,
        q_proj_weight=weights[0], k_proj_weight=weights[1], v_proj_weight=weights[2],
    )  # fmt: skip
    return out[0].transpose(0, 1)


def torch_block(block: Any, x: Tensor, memory: Tensor | None, hidden: Tensor | None = None) -> Tensor:
    """The pre-norm block of attention and feed-forward."""
    first, second = block.branches
    normed = F.layer_norm(x, x.shape[-1:], first.norm.weight, first.norm.bias)
    x = x + torch_attention(first.body, normed, normed if memory is None else memory, hidden)
    normed = F.layer_norm(x, x.shape[-1:], second.norm.weight, second.norm.bias)
    return x + F.linear(
        F.gelu(F.linear(normed, second.body.up.weight, second.body.up.bias)),
        second.body.down.weight,
        second.body.down.bias,
    )


@pytest.mark.parametrize("asks", [Queries(), None])
def test_a_model_with_latents_is_that_of_torch(asks: Queries | None) -> None:
    """Jaegle et al. 2022 with the same weights.

    The cross-attention is repeated, and the latents' norm is that of what the queries read.
    """
    reads, between = (
        Block(branches=(CrossAttention(num_heads=2), FEED_FORWARD)),
        Block(branches=(Attention(num_heads=5, mask=Full()), FEED_FORWARD)),
    )
    ours = double(
        perceiver(queries=asks, blocks=(reads,), latents=LATENTS.changed(blocks=(reads, between), num_layers=4))
    )
    assert ours.latents is not None
    ids = padded(some_ids(3, 9), LENGTHS)
    hidden = torch.arange(9) >= LENGTHS[:, None]
    waves = Transformer(perceiver()).frontend.positions
    assert waves is not None
    m = ours.frontend.table[ids] + waves(torch.arange(9))
    z = ours.latents.vectors.table.expand(3, -1, -1)
    for i, block in enumerate(ours.latents.blocks):
        z = torch_block(block, z, None if i % 2 else m, None if i % 2 else hidden)
    z = F.layer_norm(z, z.shape[-1:], ours.latents.norm.weight, ours.latents.norm.bias)  # type: ignore[arg-type]
    x = m if ours.queries is None else ours.queries.positions.table[:9].expand(3, -1, -1)  # type: ignore[index, operator]
    x = torch_block(ours.blocks[0], x, z)
    x = F.layer_norm(x, x.shape[-1:], ours.norm.weight, ours.norm.bias)  # type: ignore[arg-type]
    torch.testing.assert_close(ours(Signal(ids, lengths=LENGTHS))[0], x @ ours.frontend.table.t())


# Padding.


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_padded_rows_are_those_alone(form: str) -> None:
    m, ids = double(FORMS[form]), some_ids(3, 9)
    seen = m(Signal(padded(ids, LENGTHS), lengths=LENGTHS))[0]
    same_rows(seen, [m(ids[row : row + 1, :length])[0] for row, length in enumerate(LENGTHS.tolist())])


@pytest.mark.parametrize("form", [name for name in FORMS if name != "batch norm"])
def test_no_gradient_comes_from_padding(form: str) -> None:
    m, ids, found = double(FORMS[form]), some_ids(3, 9), []
    for junk in (0, JUNK):
        answer = m(Signal(padded(ids, LENGTHS, junk), lengths=LENGTHS))[0]
        real = answer if answer.dim() == 2 else answer[torch.arange(9) < LENGTHS[:, None]]
        m.zero_grad()
        real.square().sum().backward()
        found.append([p.grad.clone() for p in m.parameters() if p.grad is not None])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second)


# Who sees what.


@torch.no_grad()
def test_latents_see_the_input_as_a_set() -> None:
    """Without positions its order says nothing."""
    m = double(perceiver(frontend=TEXT.changed(positions=NoPositions()), head=CLASSES, queries=Queries(count=2)))
    ids = some_ids(2, 7)
    torch.testing.assert_close(m(ids)[0], m(ids.flip(1))[0])
    assert not torch.allclose(m(ids)[0], m((ids + 1) % VOCABULARY)[0])


@torch.no_grad()
def test_each_answer_reads_the_whole_input() -> None:
    """A query says where it stands and not what stands there."""
    m, ids = double(perceiver()), some_ids(1, 6)
    changed = ids.clone()
    changed[0, 5] = (changed[0, 5] + 1) % VOCABULARY
    differs = (m(ids)[0] - m(changed)[0]).abs().amax(-1)
    assert bool((differs > 1e-9).all())


@torch.no_grad()
def test_one_latent_is_all_that_is_known_of_the_input() -> None:
    """With a memory of one vector all queries have one attention: without residual and positions, one answer."""
    alone = Block(branches=(CrossAttention(num_heads=2),), residual=NoResidual())
    m = double(perceiver(latents=LATENTS.changed(count=1), blocks=(alone,)))
    answer = m(some_ids(1, 6))[0]
    torch.testing.assert_close(answer, answer[:, :1].expand_as(answer))


@torch.no_grad()
def test_a_tap_sees_the_latents_branches_and_what_they_read() -> None:
    m, tap = double(perceiver()), Recorder("output")
    m(some_ids(2, 5), tap=tap)
    inside = [f"latents.blocks.{i}.branches.{j}" for i in range(3) for j in range(2)]
    modules = ["frontend", *inside, "blocks.0.branches.0", "blocks.0.branches.1", "norm", "head"]
    assert [path for path, _ in tap] == [f"{module}.output" for module in modules]


def test_blocks_computed_again_have_the_same_gradients() -> None:
    found = []
    for again in (False, True):
        m = double(perceiver())
        m.recompute_blocks(again)
        m(some_ids(2, 5))[0].square().sum().backward()
        found.append([p.grad for p in m.parameters()])
    for first, second in zip(*found, strict=True):
        assert first is not None
        torch.testing.assert_close(first, second)


def test_every_branch_is_counted_and_those_that_end_one_start_small() -> None:
    m = build(perceiver(init_std=1.0))
    assert len(m.every_branch) == 8
    endings = [branch.ending() for branch in m.latents.branches]  # type: ignore[union-attr]
    stds = [float(ending.weight.detach().std()) for ending in endings if isinstance(ending, nn.Linear)]
    assert all(0.2 < std < 0.6 for std in stds)  # 6^-½ = 0.41


@pytest.mark.parametrize(
    ("once", "walk"), [(0, (0, 1, 2, 0, 1, 2, 0, 1, 2)), (1, (0, 1, 2, 1, 2, 1, 2)), (2, (0, 1, 2, 2, 2))]
)
@torch.no_grad()
def test_rounds_are_the_same_layers_again(once: int, walk: tuple[int, ...]) -> None:
    short = double(perceiver(latents=LATENTS.changed(rounds=3, once=once)))
    pattern = (READS, BETWEEN, READS)
    long = double(perceiver(latents=LATENTS.changed(blocks=tuple(pattern[i] for i in walk), num_layers=None)))
    own = short.state_dict()
    copied = {f"latents.blocks.{place}.": f"latents.blocks.{i}." for place, i in enumerate(walk)}
    for name in long.state_dict():
        prefix = next((prefix for prefix in copied if name.startswith(prefix)), "")
        long.state_dict()[name].copy_(own[copied.get(prefix, "") + name.removeprefix(prefix)])
    torch.testing.assert_close(short(some_ids(2, 5))[0], long(some_ids(2, 5))[0])


def test_a_text_of_any_length_has_the_mean_of_all_latents() -> None:
    tokenizer = whole_bytes(Bytes(), ())
    m = double(FORMS["latents"].changed(frontend=TEXT.changed(width=6, vocab_size=256)))
    texts = ["a", "what stands in the longer text"]
    seen = embed_texts(m, tokenizer, texts, Embedding(normalise=False))
    alone = [m.features(torch.tensor([tokenizer.encode(text)]))[0][0].mean(0) for text in texts]
    torch.testing.assert_close(torch.from_numpy(seen), torch.stack(alone).detach().float())


# What is said of it, and what is not possible.


def test_it_does_not_decode() -> None:
    causal = perceiver(
        latents=LATENTS.changed(blocks=(READS, Block(branches=(Attention(num_heads=2, mask=Causal()), FEED_FORWARD))))
    )
    assert not causal.decodes
    assert not causal.causal
    with pytest.raises(UserError, match=r"model\.latents: "):
        build(causal).init_state(1)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"segments": torch.zeros(1, 4, dtype=torch.long)}, "packed documents"),
        ({"visible": torch.ones(1, 4, 4, dtype=torch.bool)}, "a table of visible keys"),
        ({"prefix": torch.tensor([2])}, "a prefix"),
    ],
)
def test_what_keeps_vectors_of_a_row_apart_is_refused(given: dict[str, Tensor], sentence: str) -> None:
    with pytest.raises(UserError, match=f"latents read whole rows and cannot respect {sentence} "):
        build(perceiver())(Signal(some_ids(1, 4), **given))


def test_queries_of_a_learned_table_end_with_it() -> None:
    m = build(perceiver(context_length=8))
    assert m(some_ids(1, 8))[0].shape == (1, 8, VOCABULARY)
    with pytest.raises(UserError, match="9 positions are more than the 8 that the learned position table holds"):
        m(some_ids(1, 9))


ONLY: tuple[Branch, ...] = (FEED_FORWARD,)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "latents that read nothing": (
        {"latents": LATENTS.changed(blocks=(BETWEEN,))},
        "latents.blocks: no branch of these blocks reads the input",
    ),
    "blocks that read nothing": (
        {"blocks": (Block(branches=ONLY),)},
        "blocks: no branch of these blocks reads the latents",
    ),
    "queries for nobody": (
        {"blocks": (), "head": CLASSES},
        "queries: the model has no blocks that read them",
    ),
    "queries without latents": (
        {"latents": None, "blocks": (BETWEEN,)},
        "queries: there are no latents for them to read",
    ),
    "latents as the answer, too wide": (
        {"blocks": (), "queries": None, "head": CLASSES},
        "latents.width: the head reads the latents, so their width must be the model's, 16, not 10",
    ),
    "input as queries, too wide": (
        {"queries": None, "frontend": TEXT.changed(width=6)},
        "frontend.width: the blocks read these vectors",
    ),
    "a width of its own": (
        {"latents": None, "queries": None, "blocks": (BETWEEN,), "frontend": TEXT.changed(width=6)},
        "frontend.width: the blocks read vectors of 16 features, not of 6",
    ),
    "an answer for each position": (
        {"queries": Queries(count=2)},
        "head: a head of the kind 'language_model' needs one vector per position",
    ),
    "no layer for the rounds": (
        {"latents": {**LATENTS.to_dict(), "rounds": 2, "once": 3}},
        "latents.once: 3 layers are applied once, and none of 3 is left for rounds; give fewer",
    ),
    "heads that do not divide": (
        {"latents": LATENTS.changed(width=11)},
        "latents.blocks.1.branches.0.num_heads: 2 heads do not divide",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_a_sentence(case: str) -> None:
    fields, sentence = REFUSED[case]
    with pytest.raises(ValidationError) as raised:
        perceiver(**fields)
    found = [f"{'.'.join(map(str, p.path))}: {p.sentence}" for p in problems_of(raised.value, Model)]
    assert any(sentence in each for each in found), found


def test_queries_need_positions() -> None:
    with pytest.raises(ValidationError):
        Queries(positions=NoPositions())


def test_a_tied_head_needs_vectors_of_its_width() -> None:
    with pytest.raises(UserError, match=r"^head\.tied: .* 16, but they have 6 features"):
        perceiver().changed(frontend=TEXT.changed(width=6))
    assert build(perceiver(frontend=TEXT.changed(width=6), head=LanguageModelHead(tied=False))).head.weight.shape == (
        VOCABULARY,
        16,
    )


def test_two_ways_of_writing_it_are_one() -> None:
    written = perceiver(
        frontend=TEXT.changed(width=16), latents=LATENTS.changed(blocks=(READS, BETWEEN, READS), num_layers=None)
    )
    assert normal(written) == normal(perceiver())
    assert folded(unrolled(perceiver())).latents == LATENTS
    assert normal(perceiver(latents=LATENTS.changed(once=1))) == normal(perceiver())


# Learning, from recipes.

LEARNS = {
    "width": 16,
    "context_length": 16,
    "frontend": {"kind": "text", "width": 24},
    "latents": {
        "count": 6,
        "width": 20,
        "blocks": [
            {"branches": ["cross_attention(2)", "feed_forward(16)"]},
            {"branches": ["attention(2, mask=full)", "feed_forward(16)"]},
        ],
    },
    "queries": {},
    "blocks": [{"branches": ["cross_attention(2)", "feed_forward(16)"]}],
    "norm": "layer_norm",
}


def test_masked_words_are_learned_through_latents(tmp_path: Path) -> None:
    recipe = recipe_of("masked_tokens", {**LEARNS, "head": "language_model(tied=false)"}, tmp_path, "bytes")
    settings = {"steps": 60, "batch_size": 16, "optimizer": "adamw(lr=1e-2)", "validation": {"every": 60, "batches": 2}}
    run = train(
        recipe.changed(training=type(recipe.training).parse({**settings, "schedule": "constant"})),
        tmp_path / "run",
        on_event=ignore,
    )
    untrained = 5.55  # log 257
    assert run.val_loss is not None
    assert run.val_loss < 0.65 * untrained
    (answer,) = qkv.predict(run, {"text": "The cat s<mask>t"})
    assert answer["answer"].startswith("The cat s")


def test_texts_are_told_apart_through_latents(tmp_path: Path) -> None:
    source = write_table(tmp_path / "table.jsonl", rows_of("classification", 80))
    fields = {
        **LEARNS,
        "context_length": 32,
        "queries": {"count": 1},
        "head": "classification(pooling=first)",
        "init_std": 0.1,
    }
    settings = {
        "steps": 80,
        "batch_size": 16,
        "optimizer": "adamw(lr=1e-2)",
        "validation": {"every": 80, "batches": None},
    }
    recipe = recipe_for("classification", source, {"tokenizer": "word_list(60, min_frequency=1)"}, settings, **fields)
    assert qkv.evaluate(train(recipe, tmp_path / "run", on_event=ignore), "train")["accuracy"] >= 95


@pytest.mark.parametrize("task", ["next_token", "masked_tokens"])
def test_a_task_that_writes_refuses_latents(task: str, tmp_path: Path) -> None:
    given = {**LEARNS, "head": "language_model(tied=false)"}
    if task == "masked_tokens":
        assert recipe_of(task, given, tmp_path).model.latents is not None
        return
    with pytest.raises(
        SpecError, match=r"model\.latents: latents read a whole text at once, but the task 'next_token' needs"
    ):
        recipe_of(task, given, tmp_path)
