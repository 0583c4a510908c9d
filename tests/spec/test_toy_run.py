"""Parts of training, data, positions and memories defined here alone: one run with a toy part in each of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.data.batching.windows import RandomCrops
from qkv.frontends.frontend import Frontend
from qkv.layers.context import MEMORY, Context, Memory
from qkv.layers.layout import ROWS, Layouts
from qkv.layers.positions import Positions
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.mixers.attention.cross_attention import CrossAttention
from qkv.models.build import build
from qkv.models.edit.adapt import Adapting
from qkv.models.edit.transplant import transplant
from qkv.models.transformer import Transformer
from qkv.ops import positions as ops
from qkv.spec import data, frontends, parts, tasks, tokenizers, training
from qkv.spec.model import Model
from qkv.spec.models import adapt, cross
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.tasks.task import Scale, Totals
from qkv.tasks.text.next_token import language_figures, language_loss
from qkv.tasks.text.text_task import TextTask
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train


class ToyTokenizer(tokenizers.Tokenizer, kind="toy_tokenizer"):
    """Characters of the first text."""


@implements(ToyTokenizer)
def _tokenizer(part: ToyTokenizer, texts: Any) -> Tokenizer:
    return train(tokenizers.Characters(), list(texts)[:1])


class ToyBatching(data.Batching, kind="toy_batching"):
    """Windows at the beginning of the text."""


@implements(ToyBatching)
class _Beginning(RandomCrops):
    def batch(self, step: int) -> Any:
        return self.rows(np.zeros(self.batch_size, np.int64))


class ToySchedule(training.Schedule, kind="toy_schedule"):
    """Every other step."""


@implements(ToySchedule)
def _alternating(part: ToySchedule, step: int, steps: int, width: int) -> float:
    return float(step % 2)


class ToyAdapt(adapt.Adapt, kind="toy_adapt"):
    """Matrices alone."""


@implements(ToyAdapt)
class _Matrices(Adapting):
    def learning(self, model: Transformer, names: list[str]) -> set[str]:
        return {name for name in names if not name.endswith("bias")}


class ToyTask(tasks.Task, kind="toy_task"):
    """Language modelling at half of the loss."""

    needs = "causal"


@implements(ToyTask)
class _Half(TextTask):
    def summed_loss(self, model: Transformer, batch: Any, tap: Tap | None = None) -> Tensor:
        return language_loss(model, batch.input, batch.targets, tap=tap) / 2

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return language_figures(seen, scale)


class ToyPositions(parts.Positions, kind="toy_positions"):
    """A learned vector for even and one for odd positions."""


@implements(ToyPositions)
class _Parity(Positions):
    def __init__(self, part: ToyPositions, length: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2, width))

    def layouts(self) -> Layouts:
        return {"table": ROWS}

    def initialise(self, std: float) -> None:
        nn.init.constant_(self.table, std)

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.table[positions % 2]


class ToyScaling(parts.RopeScaling, kind="toy_scaling"):
    """Half of each frequency."""


@implements(ToyScaling)
def _slower(part: ToyScaling, base: float, rotated: int, dtype: torch.dtype) -> tuple[Tensor, float]:
    return ops.inverse_frequencies(rotated, base, dtype=dtype) / 2, 1.0


class ToyGrid(frontends.Frontend, kind="toy_grid"):
    """Vectors with places of two axes, whose sum is added to them."""


@implements(ToyGrid)
class _Grid(Frontend):
    axes = 2

    def __init__(self, part: ToyGrid, stack: Any, width: int, table: Any = None):
        super().__init__(part, stack)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return (
            signal.values * self.scale
            if signal.positions is None
            else signal.values * self.scale + signal.positions.sum(-1, keepdim=True)
        )

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, length, self.scale.numel(), generator=generator))


class ToyReader(cross.CrossAttention, kind="toy_reader"):
    """Cross-attention to a second memory, named style."""


@implements(ToyReader)
class _Reader(CrossAttention):
    memory_name = "style"


TOYS = (ToyTokenizer, ToyBatching, ToySchedule, ToyAdapt, ToyTask, ToyPositions, ToyScaling, ToyGrid, ToyReader)
for toy in TOYS:  # other tests ask for all kinds that there are
    toy.kinds().pop(toy.kind)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for toy in TOYS:
        monkeypatch.setitem(toy.kinds(), toy.kind, toy)


def test_a_run_with_a_toy_part_in_each_slot_of_training_and_data(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("ab ba cab " * 60)
    attention = {"kind": "attention", "num_heads": 2, "relative": {"kind": "rope", "scaling": "toy_scaling"}}
    model = {"width": 8, "context_length": 8, "frontend": {"kind": "text", "positions": "toy_positions"}}
    described = {
        "name": "toys",
        "data": {"source": str(tmp_path / "text.txt"), "tokenizer": "toy_tokenizer", "batching": "toy_batching"},
        "model": {**model, "blocks": [{"branches": [attention, "feed_forward(8)"]}]},
        "task": "toy_task",
        "training": {
            "steps": 4,
            "batch_size": 2,
            "schedule": "toy_schedule",
            "adapt": "toy_adapt",
            "validation": {"every": 4},
        },
    }
    run = qkv.train(Recipe.parse(described), tmp_path / "run")
    begun = build(run.recipe.model, run.recipe.training.seed)
    same = {name for name, tensor in run.model.state_dict().items() if torch.equal(tensor, begun.state_dict()[name])}
    assert same == {name for name in begun.state_dict() if name.endswith("bias")}
    assert run.tokenizer.vocab_size == 5
    again = qkv.load(tmp_path / "run")
    assert (again.recipe.task.kind, again.recipe.training.schedule.kind) == ("toy_task", "toy_schedule")
    assert {one.how for one in transplant(run.model, begun)} == {"kept"}


def test_a_front_end_reads_places_of_two_axes() -> None:
    model = build(Model.parse({"width": 4, "frontend": "toy_grid", "blocks": [], "norm": "none", "head": "regression"}))
    values, places = torch.zeros(1, 3, 4), torch.tensor([[[0, 0], [0, 1], [1, 1]]])
    assert model.features(Signal(values, positions=places))[0][0, :, 0].tolist() == [0, 1, 2]
    with pytest.raises(qkv.UserError, match=r"positions have the shape \(1, 3\); give \(1, 3, 2\)"):
        model.features(Signal(values, positions=places[..., 0]))


def test_two_memories_of_equal_length_have_lengths_of_their_own() -> None:
    text = {"kind": "text", "vocab_size": 7}
    blocks = [{"branches": ["cross_attention(2)", "toy_reader(2)", "attention(2)"]}]
    model = build(Model.parse({"width": 8, "frontend": text, "encoder": {"frontend": text}, "blocks": blocks})).eval()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    source, style = (torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    lengths = {MEMORY: [5, 3], "style": [2, 4]}
    memories = {name: Memory((x,), torch.tensor(lengths[name])) for name, x in ((MEMORY, source), ("style", style))}
    whole = model(ids, memory=memories)[0]
    for row in range(2):
        cut = {
            name: Memory((x.vectors[0][row : row + 1, : lengths[name][row]],), x.lengths[row : row + 1])
            for name, x in memories.items()
        }
        torch.testing.assert_close(model(ids[row : row + 1], memory=cut)[0], whole[row : row + 1], rtol=1e-5, atol=1e-6)
    decoded, state = [], model.init_state(2, memory=memories)
    for place in range(3):
        y, state = model(ids[:, place : place + 1], state)
        decoded.append(y)
    torch.testing.assert_close(torch.cat(decoded, 1), whole, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        qkv.UserError, match="this branch reads the memory 'style'; encode the source and pass the result as memory"
    ):
        model(ids, memory=memories[MEMORY])
