"""Path patching: the effect of one part of a model on another along the direct path between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.layers.observable import list_points
from qkv.layers.tap import Recorder, matches
from qkv.lens.capture.edits import patch, replace
from qkv.lens.capture.metrics import Metric
from qkv.lens.capture.regions import Region
from qkv.models.block import Slot
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError


@torch.no_grad()
def patch_path(model: Transformer, inputs: Any, other: Any, sender: Region, receiver: Region, metric: Metric) -> Tensor:
    """Return the metric of ``inputs`` when ``receiver`` reads ``sender`` as it is for ``other`` (Wang et al. 2023).

    Only the direct path counts: the outputs of all other branches stay as they are for ``inputs``.

        1. run on ``other``: value of the sender               3. run on ``inputs`` with this value in its place:
        2. run on ``inputs`` with it, other branches frozen:      the metric
           value of the receiver

    sender: such as ``Region("blocks.3.branches.0.head_outputs", heads=[2])``.
    receiver: such as ``Region("blocks.5.branches.0.q", heads=[1])``, the ``input`` of a branch, or ``head.output``.

    Raises ``UserError`` for a sender that is not a single point.
    """
    paths = [path for path in list_points(model) if matches(sender.point, path)]
    if len(paths) > 1:
        raise UserError(f"the sender of a path is one point; {sender.point!r} is {', '.join(paths)}")
    branches = {slot.name for slot in model.modules() if isinstance(slot, Slot)}
    outputs = [f"{name}.output" for name in branches if not sender.point.startswith(f"{name}.")]
    with evaluating(model):
        with model.tapped(Recorder(*outputs)) as frozen:
            metric(model, inputs)
        with model.tapped(Recorder(sender.point)) as sent:
            metric(model, other)
        fixed = (replace(place, value) for place, value in frozen.records.items())
        with model.tapped(patch(sender, sent), *fixed, receiver.point) as reading:
            metric(model, inputs)
        with model.tapped(patch(receiver, reading)):
            return metric(model, inputs)
