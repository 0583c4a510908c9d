"""Choose a recipe for the prediction of edges."""

from __future__ import annotations

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import MINUTES, short_form
from qkv.data.graphs.nodes import open_graph
from qkv.report.figures import counted
from qkv.spec.heads import EdgesHead
from qkv.spec.mixers.graphs import Propagation
from qkv.spec.model import Block, Model
from qkv.spec.models.wide import PairFeatures
from qkv.spec.parts import NoNorm, NoResidual
from qkv.spec.recipe import Recipe
from qkv.spec.signals.graphs import Graphs, Nodes
from qkv.spec.tasks import EdgePrediction
from qkv.spec.training import AdamW, Checkpoints, Constant, Training, Validation

_STEPS, _EVERY, _PATIENCE = 300, 10, 10
_WIDTH = 64


@chooses(EdgePrediction)
def choose_edges(request: RecipeRequest) -> Recipe:
    """Choose a recipe that predicts the missing edges of a graph.

    Two steps of propagation give each node a vector. On the validation edges, this model competes with a logistic
    regression on common neighbours and similarity, and with each of these two indices alone.
    """
    data = request.data
    table = open_graph(data)
    processor = data.processor or Graphs(scaling="rows", walk=8, degree=8)
    size = f"{table.graph['num_nodes']:,} nodes, {counted(len(table.graph['edges']), 'edge')}"
    return Recipe(
        description=f"{size}: two steps of propagation, beside common neighbours.",
        data=data.changed(processor=processor),
        model=Model(
            width=_WIDTH,
            frontend=Nodes(input_dropout=0.2),
            blocks=(Block(branches=(Propagation(steps=2),), norm=NoNorm(), residual=NoResidual()),),
            head=EdgesHead(dropout=0.2),
            init_std=0.2,
        ),
        wide=PairFeatures(),
        task=EdgePrediction(),
        training=Training(
            steps=_STEPS,
            minutes=MINUTES,
            batch_size=1,
            optimizer=AdamW(lr=1e-2, weight_decay=0.01),
            schedule=Constant(),
            validation=Validation(every=_EVERY, batches=None, patience=_PATIENCE),
            checkpoints=Checkpoints(every=_EVERY),
        ),
        quick=short_form(_STEPS),
    )
