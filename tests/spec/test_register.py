"""A part is a spec class and what implements it.

One toy part for each slot, defined here alone, is trained and found in new files.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.house.source import Source, package, walked
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.frontends.frontend import Frontend
from qkv.layers.branch import Branch
from qkv.layers.context import Context
from qkv.layers.norms import Norm
from qkv.layers.relative import Relative
from qkv.layers.residuals import Residual
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.heads.head import Head
from qkv.ops import masks as predicates
from qkv.spec import branches, data, frontends, heads, masks, parts, tasks, tokenizers, training
from qkv.spec.base import Part
from qkv.spec.model import Model
from qkv.spec.models import adapt, merges, segmentation
from qkv.spec.position_wise import memory_layer
from qkv.spec.processors import Processor
from qkv.spec.register import implementation, implementations, implements, import_all
from qkv.spec.signals import image_sequences, images, series
from qkv.system.errors import UserError
from qkv.tasks.registry import PACKAGE, build_task
from qkv.training.optim.optimisers import build_optimizer


class ToyMixer(branches.Branch, kind="toy_mixer"):
    """A gate."""


@implements(ToyMixer)
class _Mixer(Branch):
    def __init__(self, part: ToyMixer, width: int):
        super().__init__(part, width)
        self.gate = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor, context: Context, state: Any = None) -> tuple[Tensor, Any]:
        return x * self.gate, state


class ToyFrontend(frontends.Frontend, kind="toy_frontend"):
    """Numbers as they are."""


@implements(ToyFrontend)
class _Frontend(Frontend):
    def __init__(self, part: ToyFrontend, stack: Any, width: int, table: Any = None):
        super().__init__(part, stack)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return signal.values + self.bias

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, length, self.bias.numel(), generator=generator))


class ToyNorm(parts.Norm, kind="toy_norm"):
    """Halves."""


@implements(ToyNorm)
class _Norm(Norm):
    def __init__(self, part: ToyNorm, width: int):
        super().__init__()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x / 2


class ToyResidual(parts.Residual, kind="toy_residual"):
    """Twice what a branch adds."""


@implements(ToyResidual)
class _Residual(Residual):
    def joined(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y / 2


class ToyRelative(parts.Relative, kind="toy_relative"):
    """The nearest key alone has a bias."""


@implements(ToyRelative)
class _Relative(Relative):
    def __init__(self, part: ToyRelative, attention: Any, widths: tuple[int, int]):
        super().__init__()

    def bias(self, q: Tensor, sites: Any, scale: float, context: Context) -> Tensor:
        return (sites.query[:, None, :, None] == sites.key[:, None, None, :]).to(q.dtype) * 3


class ToyMask(masks.Mask, kind="toy_mask"):
    """Keys at or before the query."""

    @property
    def causal(self) -> bool:
        return True


implements(ToyMask)(lambda part: predicates.Causal())


class ToyHead(heads.Head, kind="toy_head"):
    """The sum of all."""


@implements(ToyHead)
class _Head(Head):
    def __init__(self, part: ToyHead, width: int, table: object):
        super().__init__()

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return x.sum((1, 2))

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets, reduction="sum")


class ToyOptimizer(training.Optimizer, kind="toy_optimizer"):
    """Plain steps."""

    lr: float = 1e-4


@implements(ToyOptimizer)
def _optimizer(part: ToyOptimizer, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), part.lr)


TOYS = (ToyMixer, ToyFrontend, ToyNorm, ToyResidual, ToyRelative, ToyMask, ToyHead, ToyOptimizer)
for toy in TOYS:  # other tests ask for all kinds that there are
    toy.kinds().pop(toy.kind)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for toy in TOYS:
        monkeypatch.setitem(toy.kinds(), toy.kind, toy)


@pytest.mark.usefixtures("toys")
def test_a_toy_part_in_each_slot_is_trained() -> None:
    block = {
        "branches": [
            "toy_mixer",
            {"kind": "attention", "num_heads": 2, "mask": "toy_mask", "relative": "toy_relative"},
        ],
        "norm": "toy_norm",
        "residual": "toy_residual",
    }
    spec = Model.parse({"width": 4, "frontend": "toy_frontend", "blocks": [block], "norm": "none", "head": "toy_head"})
    model = build(spec)
    signal = model.frontend.random(2, 5, torch.Generator().manual_seed(0))
    answer, state = model(signal)
    assert (answer.shape, state, model.vocab_size) == ((2,), None, None)
    first, second = model.init_state(2), []
    for place in range(5):
        y, first = model.features(Signal(signal.values[:, place : place + 1]), first)
        second.append(y)
    torch.testing.assert_close(torch.cat(second, 1), model.features(signal)[0])
    optimizer = build_optimizer(training.Optimizer.parse("toy_optimizer"), model)
    losses = []
    for _ in range(3):
        loss = F.mse_loss(model(signal)[0], torch.ones(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_a_part_that_nothing_implements_is_named() -> None:
    class Lonely(parts.Norm, kind="lonely"):
        """Implemented nowhere."""

    with pytest.raises(
        UserError,
        match=r"no module implements 'lonely'; import the file that does, or mark it with @implements\(Lonely\)",
    ):
        implementation(Lonely(), "qkv.layers")
    parts.Norm.kinds().pop("lonely")


def test_modules_of_a_package_are_found_without_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "__init__.py").touch()
    lines = [
        "from qkv.spec.parts import Norm",
        "from qkv.spec.register import implements",
        "class Found(Norm, kind='found'): ...",
    ]
    (tmp_path / "toys" / "found.py").write_text("\n".join([*lines, "implements(Found)(lambda part, width: width)"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    import_all("toys")
    found = parts.Norm.parse("found")
    assert implementation(found, "toys")(found, 7) == 7
    assert type(found) in implementations(parts.Norm, "toys")
    parts.Norm.kinds().pop("found")
    sys.modules.pop("toys.found")


def test_a_package_whose_import_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halves").mkdir()
    (tmp_path / "halves" / "__init__.py").touch()
    lines = [
        "from qkv.spec.parts import Norm",
        "from qkv.spec.register import implements",
        "class Late(Norm, kind='late'): ...",
    ]
    (tmp_path / "halves" / "late.py").write_text(
        "\n".join(["import json", "json.missing", *lines, "implements(Late)(lambda part, width: width)"])
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AttributeError, match="missing"):
        import_all("halves")
    monkeypatch.setattr("json.missing", None, raising=False)
    assert "late" in {part.kind for part in implementations(parts.Norm, "halves")}
    parts.Norm.kinds().pop("late")
    sys.modules.pop("halves.late")


def test_every_kind_of_the_package_is_implemented() -> None:
    slots: dict[type[Part], tuple[str, ...]] = {
        branches.Branch: ("qkv.layers", "qkv.mixers"),
        frontends.Frontend: ("qkv.frontends",),
        parts.Norm: ("qkv.layers",),
        parts.Residual: ("qkv.layers",),
        parts.Positions: ("qkv.layers",),
        parts.Relative: ("qkv.layers",),
        masks.Mask: ("qkv.mixers",),
        heads.Head: ("qkv.models",),
        parts.RopeScaling: ("qkv.layers",),
        adapt.Adapt: ("qkv.models",),
        data.Batching: ("qkv.data.batching",),
        tokenizers.Tokenizer: ("qkv.tokenizers",),
        training.Optimizer: ("qkv.training",),
        training.Schedule: ("qkv.training",),
        tasks.Task: (PACKAGE,),
        tasks.Noise: ("qkv.tasks",),
        images.Augmentation: ("qkv.data.processors",),
        segmentation.Segmentation: ("qkv.models",),
        merges.Merge: ("qkv.models",),
    }
    for slot, packages in slots.items():
        own = {part for part in slot.kinds().values() if part.__module__.startswith("qkv.")}
        assert own
        assert own <= implementations(slot, *packages).keys()


def test_a_task_has_one_implementation_for_each_kind_of_input() -> None:
    def read(processor: Processor | None) -> data.Data:
        return data.Data(source="somewhere", processor=processor)

    codes = image_sequences.ImageCodes(run="somewhere")
    text, of_codes, again = (build_task(tasks.NextToken(), read(each)) for each in (None, codes, None))
    assert type(text) is type(again)
    assert type(of_codes) is not type(text)
    assert of_codes.processor is codes
    assert of_codes.reading(read(codes)) is of_codes
    one, other = (build_task(tasks.Regression(), read(each)) for each in (series.Series(), images.Images()))
    assert type(one) is type(other)


PLACES = {
    branches.TokenShift: 3,
    memory_layer.MemoryLayer: 3,
    frontends.Text: 6,  # the default of a model, too, and the base of three others
    images.Images: 5,  # a setting of patches that are generated, and the base of tiles and of images of any size
    images.Patches: 3,  # patches of sound are those of an image
    parts.BatchNorm: 3,
    parts.Scaled: 3,
    parts.LearnedSinusoidal: 3,
    parts.Shaw: 3,
    parts.YarnScaling: 2,
    masks.Strided: 3,  # its predicate in ops/masks.py has a name of its own
    heads.SpanHead: 3,
    tokenizers.AminoAcids: 2,
    data.Packed: 2,
    training.WarmupStableDecay: 2,
    training.Muon: 4,  # the update rule is a file of its own
    adapt.Last: 2,
    tasks.Permutation: 2,
    tasks.TokenMasking: 2,
    segmentation.RecurrentMemory: 2,
    segmentation.Megabyte: 2,
    segmentation.Scales: 2,
    merges.StridedConvolution: 2,
}
"""Source files that name a part of the package by its spec's class: those that a new part of its slot takes.

Conversion to other formats, presets, recipes chosen for data and specs that the native library computes use parts, and
are not counted.
"""
_USES = ("qkv/interop/", "models/families/", "models/fast/native_parts", "choosing/", "library/")


@pytest.mark.parametrize("part", PLACES, ids=lambda part: part.kind)
def test_a_part_is_named_in_as_many_source_files_as_stated(part: type[Part]) -> None:
    found = {
        source.name
        for source in package()
        if part.__name__ in _named(source) and not any(use in source.name for use in _USES)
    }
    assert len(found) <= PLACES[part], f"PLACES states {PLACES[part]} files, but these name it: {sorted(found)}"


@cache
def _named(source: Source) -> set[str]:
    """Names of classes of specs that a source file defines, imports as ``Name`` or uses as ``module.Name``."""
    nodes = walked(source.tree)
    imports = [
        node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qkv.spec")
    ]
    known = {alias.asname or alias.name: alias.name for node in imports for alias in node.names}
    used = (
        node
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known
    )
    defined = (
        {node.name for node in nodes if isinstance(node, ast.ClassDef)} if "qkv/spec/" in source.name else set[str]()
    )
    return defined | set(known.values()) | {node.attr for node in used}
