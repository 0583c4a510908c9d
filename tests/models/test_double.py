"""A float64 model computes in float64: nothing from ids to answers and losses is rounded to single precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar

import pytest
import torch
from tests.contracts.samples import BIDIRECTIONAL, SAMPLES, STACKS, describe
from tests.contracts.subjects import OneBranch
from tests.inventory import assert_lists
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.layers.context import Context, PositionGrid
from qkv.layers.norms import build_norm
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.heads.cross_entropy import chunked_cross_entropy, cross_entropy
from qkv.spec import heads
from qkv.spec.branches import Attention, Branch
from qkv.spec.heads import Head
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.quantizers import ProjectedQuantizer, ResidualQuantizer, ScalarQuantizer, SplitQuantizer
from qkv.spec.parts import Norm, RMSNorm
from qkv.spec.signals.codecs import SeaNet, SpectrumDecoder, WaveDecoder
from qkv.spec.signals.speech import SpeechHead

T = TypeVar("T")
POOLINGS: tuple[Literal["first", "last", "mean", "max", "attention"], ...] = (
    "first",
    "last",
    "mean",
    "max",
    "attention",
)
HEADS: tuple[Head, ...] = (
    heads.LanguageModelHead(),
    heads.LanguageModelHead(tied=False, transform="gelu", norm=RMSNorm(), softcap=3.0),
    *(heads.ClassificationHead(pooling=how, num_classes=3) for how in POOLINGS),
    heads.LabelsHead(num_classes=3),
    *(heads.RegressionHead(pooling=how) for how in POOLINGS),
    heads.TokenHead(num_classes=3, hidden=5),
    heads.CRFHead(num_classes=3),
    heads.SpanHead(),
    heads.VectorsHead(),
    heads.EdgesHead(hidden=3),
    heads.DistilledHead(num_classes=3),
    heads.CodebookHead(codes=4, upsampling=(3,), grid=(1, 3), cell=2, height=2, width=6, channels=1),
    heads.CTCHead(num_classes=3, blank=1),
    SpeechHead(codebooks=2, codes=3),
    heads.MatchingHead(features=3),
    heads.MatchingHead(features=3, pooling=("first", "max"), bias=True, objective="sigmoid"),
    heads.ContrastiveHead(latent_width=4, codes=5, code_width=4, features=4),
    SpectrumDecoder(hop=4, frames=1),
    *(
        WaveDecoder(quantizer=quantizer, network=SeaNet(channels=4, strides=(2,)))
        for quantizer in (
            ScalarQuantizer(),
            ResidualQuantizer(codes=5),
            SplitQuantizer(codebooks=3, codes=5),
            ProjectedQuantizer(codes=5),
        )
    ),
    heads.MixtureHead(components=2, features=3),
    *(heads.ForecastHead(over=over, horizon=3, channels=2) for over in ("mean", "channels", "steps")),
)
BRANCHES = [part for parts in SAMPLES.values() for part in parts if '"rounded":"bf16"' not in part.model_dump_json()]
"""All but slopes that are rounded to bf16 by definition."""


class Narrowed(TorchDispatchMode):
    """Fails where float64 becomes a narrower float, and where a narrower one meets it. Single numbers may, and what was
    just drawn: the rotations of hashing are the same numbers in every precision."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.randn.generator:
            self.drawn[out.data_ptr()] = out
        given, made = (self._kinds(tree) for tree in ((args, kwargs), out))
        assert torch.float64 not in given or made <= {torch.float64}, f"{func}: float64 becomes {made}"
        assert torch.float64 not in made or given <= {torch.float64}, f"{func}: {given} become float64"
        return out

    def _kinds(self, tree: Any) -> set[torch.dtype]:
        leaves = [t for t in tree_leaves(tree) if isinstance(t, Tensor) and t.is_floating_point() and t.numel() > 1]
        return {t.dtype for t in leaves if t.data_ptr() not in self.drawn}


def watched(run: Callable[[], T]) -> T:
    """``run()``, once before it is watched: implementations are timed, and chosen, in the first call."""
    run()
    with Narrowed():
        return run()


@pytest.mark.parametrize("part", [*BRANCHES, *BIDIRECTIONAL], ids=describe)
def test_branches(part: Branch) -> None:
    s = OneBranch(part)
    x = s.inputs(2, 7).requires_grad_()
    watched(lambda: s.whole(x, torch.tensor([7, 4])).sum().backward())
    if part.causal:
        with torch.no_grad():
            watched(lambda: s.call(x[:, 5:6], s.call(x[:, :5], s.start(2))[1]))


@pytest.mark.parametrize("kind", Norm.kinds())
def test_norms(kind: str) -> None:
    x, context = torch.ones(2, 3, 6, dtype=torch.float64, requires_grad=True), Context(torch.arange(3)[None])
    context = replace(context, grid=PositionGrid((1, 3)))
    for part in (Norm.kinds()[kind](), *([RMSNorm(zero_centred=True)] if kind == "rms_norm" else [])):
        norm = build_norm(part, 6).double()
        watched(lambda norm=norm: norm(x, context).sum().backward())


def test_every_kind_of_head_is_here() -> None:
    assert_lists("tests/models/test_double.py, HEADS", (type(head).kind for head in HEADS), Head.kinds())


@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_heads(head: Head) -> None:
    block = Block(branches=(Attention(num_heads=2),))
    encoder = Encoder(frontend=Text(vocab_size=5)) if head.reads_memory else None
    m = build(Model(width=8, frontend=Text(vocab_size=5), blocks=(block,), head=head, encoder=encoder)).double()
    signal = Signal(torch.tensor([[1, 2, 3], [4, 0, 0]]), lengths=torch.tensor([3, 1]))
    watched(lambda: m(signal, memory=m.encode(signal) if encoder else None)[0].sum().backward())


@pytest.mark.parametrize("name", STACKS)
@torch.no_grad()
def test_stacks(name: str) -> None:
    m = build(STACKS[name]).double().eval()
    watched(lambda: m(torch.tensor([[1, 2, 3, 4]])))


@pytest.mark.parametrize("rows", [None, 2], ids=["whole", "in shares"])
def test_cross_entropy(rows: int | None) -> None:
    head, hidden = torch.nn.Linear(4, 3).double(), torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 2, 1])
    loss = watched(
        lambda: (
            cross_entropy(head(hidden), targets) if rows is None else chunked_cross_entropy(hidden, head, targets, rows)
        )
    )
    expected = -head(hidden).log_softmax(-1)[range(3), targets].sum()
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)
