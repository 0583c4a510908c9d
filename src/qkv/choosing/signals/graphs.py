"""Choose a recipe for graphs and this machine: encodings, model and training length."""

from __future__ import annotations

from typing import Any, cast

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.processors.processor import build_processor
from qkv.data.records.values import readable
from qkv.report.figures import counted
from qkv.spec.data import Data, TokenBuckets
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.models.wide import Subtrees
from qkv.spec.recipe import Recipe
from qkv.spec.signals.graphs import Graphs
from qkv.spec.tasks import Task as TaskSpec
from qkv.tasks.registry import build_task

_EPOCHS = 60
_FEW = 2_000
"""Number of graphs below which the model is smaller."""
_ROWS = 32
_SAMPLE = 300
_WALK, _DEGREE = 8, 8
_BUCKETS, _OUTPUTS = 1 << 17, 1 << 21
"""Maximum number of hash buckets for subtrees; maximum product of this number and the number of classes."""


@chooses(Graphs)
def choose_graphs(request: RecipeRequest) -> Recipe:
    """Choose a recipe for a task with one output per graph.

    Four models compete in heats (``qkv.training.race.heats``): attention among all nodes in parallel with propagation
    over the edges, propagation alone, sums over neighbours (GIN), and a network applied to each node alone, without
    edges and without encodings of the graph's structure. The winner is combined with a linear model of subtrees
    (``qkv.training.wide``).
    """
    graphs = request.values
    processor = _processor(request.data)
    training = training_of(len(graphs), _ROWS, _EPOCHS, request.machine.precision)
    tokens = max(512, _ROWS * _size(processor, graphs))
    return Recipe(
        description=f"{counted(len(graphs), 'graph')}: chosen for this data and this machine.",
        data=request.data.changed(processor=processor, batching=TokenBuckets(tokens=tokens)),
        model=_model(len(graphs), request.task),
        wide=_wide(request),
        task=request.task,
        training=training,
        quick=short_form(training.steps),
        candidates=_candidates(processor),
    )


def _processor(data: Data) -> Graphs:
    """Return the processor with standardised features, and with encodings of walks and degrees unless the data has its
    own encodings. The processor of a model that is fine-tuned is already fitted and returned unchanged.
    """
    processor = cast("Graphs", data.processor)
    if processor.given_columns is not None:
        return processor
    if not processor.encoding_columns and not processor.distances:
        processor = processor.changed(walk=_WALK, degree=_DEGREE)
    return processor.changed(scaling="standard") if processor.scaling == "none" else processor


def _size(processor: Graphs, graphs: list[Any]) -> int:
    """Return the mean number of nodes in a sample of readable graphs. Raises ``UserError`` if no graph is readable."""
    count = build_processor(processor.changed(num_features=0, tags=())).count  # type: ignore[attr-defined]
    sizes = readable(count, graphs[:: max(1, len(graphs) // _SAMPLE)], "graph")
    return max(1, round(sum(sizes) / len(sizes)))


def _model(count: int, task: TaskSpec) -> Model:
    width = 32 if count < _FEW else 64
    head = Head.kinds()[task.head].parse({"pooling": ["mean", "max", "mean_sqrt_len"], "dropout": 0.3})
    blocks = [{"branches": ["attention(4, mask=full)", "propagation"], "order": "parallel", "dropout": 0.2}]
    blocks += [{"branches": ["feed_forward"], "dropout": 0.2}]
    return Model.parse(
        {
            "width": width,
            "num_layers": 4,
            "frontend": "nodes",
            "blocks": blocks,
            "head": head,
            "init_std": 0.1,
        }
    )


def _wide(request: RecipeRequest) -> Subtrees:
    """Return the wide path: a linear map of hashed subtrees, with fewer hash buckets for more classes."""
    target = build_task(request.task, request.data).target.name  # type: ignore[attr-defined]
    targets = {row[target] for row in request.records.splits["train"] if isinstance(row[target], str)}
    return Subtrees(buckets=min(_BUCKETS, _OUTPUTS // max(1, len(targets))))


def _candidates(processor: Graphs) -> dict[str, dict[str, Any]]:
    """Return the models that compete in heats: name -> overrides of the recipe."""
    edges = [{"branches": ["propagation", "feed_forward"], "dropout": 0.2}]
    sums = [{"branches": ["gin"], "norm": "batch_norm", "dropout": 0.2}]
    bag = [{"branches": ["feed_forward"], "dropout": 0.2}]
    without = {f"data.processor.{name}": 0 for name in ("walk", "degree", "laplacian") if getattr(processor, name)}
    return {
        "transformer": {},
        "propagation": {"model.blocks": edges, "model.num_layers": 3},
        "sums": {"model.blocks": sums},
        "single_nodes": {"model.blocks": bag, "model.num_layers": 1, **without},
    }
