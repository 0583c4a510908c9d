"""MEGABYTE: limits of the patch size, what an output reads, cost, state, surgery, generation, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.segments import through, vectors
from tests.models.stacks import VOCABULARY, ids, model

from qkv.costs.cost import cost
from qkv.generation.decode.sample import generate
from qkv.interop.mapping.normal import normal
from qkv.layers.branch import matrices
from qkv.layers.context import Context
from qkv.models.build import build
from qkv.models.stack.megabyte import Megabyte as MegabyteModule
from qkv.models.transformer import Transformer
from qkv.spec.branches import GRU, Attention, Branch, FeedForward
from qkv.spec.generation import Generation
from qkv.spec.masks import Full
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.models.segmentation import Megabyte, PatchStack
from qkv.spec.models.surgery import folded, operated, unrolled
from qkv.spec.parts import NoPositions, Reversible, Rope
from qkv.spec.recipe import Recipe
from qkv.spec.training import Training
from qkv.state.tree import nbytes
from qkv.system.errors import UserError

TEXT = Text(vocab_size=VOCABULARY, positions=NoPositions())
TURNED = Attention(num_heads=2, relative=Rope())
OVER = PatchStack(width=24, num_layers=2, blocks=(Block(branches=(TURNED, FeedForward())),))


def patched(size: int = 4, patches: PatchStack = OVER, *branches: Branch, **fields: Any) -> Model:
    block = Block(branches=branches or (TURNED, FeedForward()))
    given = {"frontend": TEXT, "init_std": 0.5, "segmentation": Megabyte(size=size, patches=patches)}
    return model(block, **{**given, **fields})


def built(spec: Model) -> tuple[Transformer, MegabyteModule]:
    m = build(spec).double().eval()
    for p in m.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    assert isinstance(m.segmentation, MegabyteModule)
    return m, m.segmentation


# What it is equal to.


@torch.no_grad()
def test_in_one_patch_only_the_model_s_own_blocks_read() -> None:
    """They read the row one position later, and what the start of the row says to each position."""
    (m, s), x = built(patched(size=8)), vectors(2, 7)
    h = s.patches.norm(s.patches.last(s.start.table[None], Context(torch.zeros(1, 1).long())), Context(torch.zeros(1)))
    said = (h @ s.split.weight.T).view(1, 8, 16)
    row = torch.cat((s.first.table.expand(2, 1, -1), x), 1) + said
    expected, _ = m.read(row, Context(torch.arange(8)[None]))
    torch.testing.assert_close(through(m, x), expected[:, 1:])


@torch.no_grad()
def test_patches_of_one_position_are_read_by_the_blocks_over_patches() -> None:
    """The model's own blocks then see one vector at a time."""
    (m, s), x = built(patched(size=1)), vectors(2, 7)
    row = torch.cat((s.start.table.expand(2, 1, -1), x @ s.join.weight.T), 1)
    h, _ = s.patches.read(row, Context(torch.arange(8)[None]))
    local = s.first.table + h @ s.split.weight.T
    expected, _ = m.read(local.view(-1, 1, 16), Context(torch.zeros(1, 1).long()))
    torch.testing.assert_close(through(m, x), expected.view(2, 8, 16)[:, 1:])


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 3, 4, 20])
def test_an_output_reads_its_position_and_all_before(size: int) -> None:
    (m, _), x = built(patched(size=size)), vectors(1, 11)
    y = through(m, x)
    for place in range(11):
        other = x.clone()
        other[:, place] = vectors(1, 12)[:, 11]
        changed = (through(m, other) - y).abs().amax((0, 2)) > 1e-9
        assert changed.tolist() == [False] * place + [True] * (11 - place)


# Cost and state.


def test_attention_costs_the_power_of_four_thirds() -> None:
    """Scores: P of a local row for each position, and N / P of patches for each patch; eight times N, P doubled."""
    half = Attention(num_heads=2)
    over = PatchStack(blocks=(Block(branches=(half,)),))

    def scores(length: int, size: int) -> int:
        found = cost(patched(size, over, half, context_length=length), 1, length - 1)
        return found.parts["attention"].attended + found.parts["segmentation's attention"].attended

    ratio = scores(4096, 16) / scores(512, 8)
    assert 8 ** (4 / 3) * 0.9 < ratio < 8 ** (4 / 3) * 1.1
    plain = cost(patched(8, over, half).changed(segmentation=None), 1, 4096).parts["attention"].attended
    assert plain > 50 * scores(4096, 16)


def test_costs_are_those_of_the_built_model() -> None:
    spec = patched(4, context_length=64)
    m, counted = build(spec), cost(spec, 2, 37)
    assert counted.parameters == sum(p.numel() for p in m.parameters())
    assert counted.total.matrices == sum(p.numel() for p in matrices(m))
    assert counted.total.state == m.state_bytes(37, 2)
    linear = {name: part.flops for name, part in counted.parts.items()}
    plain = cost(spec.changed(segmentation=None), 2, 40).parts["feed_forward"].flops
    assert linear["feed_forward"] == plain  # 38 outputs in ten patches
    assert linear["segmentation"] == 2 * 2 * 24 * 4 * 16 * (9 + 10)  # joined and split
    assert cost(spec, 2, 37, training=Training(recompute=True)).train_flops > counted.train_flops


@pytest.mark.parametrize(("chunk", "path"), [(4, ()), (3, ("blocks", 0, "branches", 0))])
def test_hashed_attention_is_exact_in_patches_of_one_chunk(chunk: int, path: tuple[str | int, ...]) -> None:
    """A patch is read with a learned vector in front, so that three positions fill one of four."""
    spec = patched(4, OVER, LSHAttention(chunk_length=chunk))
    assert spec.first_inexact(2)[0] == ()
    assert spec.first_inexact(3)[0] == spec.first_inexact(1000)[0] == path


@torch.no_grad()
def test_the_state_grows_with_the_patches_alone() -> None:
    m, _ = built(patched(4, OVER, TURNED, GRU()))
    sizes = {}
    for length in (1, 3, 4, 7, 39):
        _, state = m(ids(3, length), m.init_state(3, length))
        sizes[length] = nbytes(state.blocks)
        assert m.state_bytes(length, 3) == sizes[length]
    assert sizes[1] == sizes[3] < sizes[4] == sizes[7]
    assert sizes[39] - sizes[7] == 3 * 8 * 2 * (2 * 24) * (9 - 1)


@torch.no_grad()
def test_generated_text_is_the_most_likely_of_whole_forward_passes() -> None:
    (m, _), prompt = built(patched(3)), [1, 5, 2, 7, 7]
    (found,) = generate(m, [prompt], Generation(max_new_tokens=9, temperature=0.0))
    expected = list(prompt)
    for _ in range(9):
        expected.append(int(m(torch.tensor([expected]))[0][0, -1].argmax()))
    assert found == expected[len(prompt) :]


# Surgery and initialisation.


def test_layers_over_patches_are_unrolled_folded_and_replaced() -> None:
    spec = patched(4, OVER.changed(num_layers=3))
    whole = unrolled(spec)
    assert whole.segmentation is not None
    assert whole.segmentation.inner is not None
    assert len(whole.segmentation.inner.blocks) == 3
    assert folded(whole) == spec
    assert normal(spec) == normal(whole) != spec
    recipe = Recipe(data={"source": "x.txt"}, task="next_token", model=spec)  # type: ignore[arg-type]
    changed = operated(recipe, ["segmentation.patches.blocks.*.mixer=linear_attention"]).model.segmentation
    assert isinstance(changed, Megabyte)
    assert [block.branches[0].kind for block in changed.patches.layers] == ["linear_attention"] * 3
    assert changed.patches.blocks[0].branches[0].num_heads == 2  # type: ignore[attr-defined]


def test_branches_over_patches_are_among_those_of_the_model() -> None:
    m = build(patched())
    assert [branch.name for branch in m.every_branch if "segmentation" in branch.name] == [
        f"segmentation.patches.blocks.{i}.branches.{j}" for i in range(2) for j in range(2)
    ]
    ending = m.get_parameter("segmentation.patches.blocks.0.branches.0.body.output.weight")
    assert 0.2 < ending.std().item() < 0.3  # 0.5 / √4


# Refusals.

SENTENCES: list[tuple[Megabyte, str]] = [
    (
        Megabyte(patches=PatchStack(blocks=(Block(branches=(Attention(mask=Full()),)),))),
        r"^segmentation\.patches\.blocks\.0\.branches\.0: 'megabyte' reads one segment after",
    ),
    (
        Megabyte(patches=PatchStack(blocks=(Block(residual=Reversible()),))),
        r"^segmentation\.patches\.blocks\.0\.residual: .* use 'add'",
    ),
    (
        Megabyte(patches=PatchStack(width=18)),
        r"^segmentation\.patches\.blocks\.0\.branches\.0\.num_heads: 4 heads do not divide the width 18",
    ),
    (
        Megabyte(patches=PatchStack(blocks=(Block(branches=(LSHAttention(),)),))),
        r"^segmentation\.patches\.blocks\.0\.branches\.0: decoding reads patches one by one",
    ),
]


@pytest.mark.parametrize(("part", "sentence"), SENTENCES)
def test_what_cannot_read_patches_is_refused(part: Megabyte, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Model.parse({"width": 16, "frontend": TEXT, "segmentation": part})
