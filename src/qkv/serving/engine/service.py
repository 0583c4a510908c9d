"""State of a server: its models by name, limits and metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from qkv.models.edit.sharing import weight_bytes
from qkv.serving.engine.metrics import Metrics
from qkv.serving.engine.model import ServedModel
from qkv.serving.errors import ApiError
from qkv.serving.limits import Limits
from qkv.serving.requests.conversations import Conversations
from qkv.system.errors import nearest
from qkv.system.openmp import release_team


class Service:
    """Models by name, with limits and metrics."""

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits):
        self.models, self.limits = dict(models), limits
        self.weight_bytes = weight_bytes(network for model in models.values() for network in model.networks)
        """Bytes of the weights of all models; shared weights are counted once."""
        self.conversations = Conversations()
        self.metrics = Metrics({name: model.worker for name, model in models.items()}, self.weight_bytes)

    def warm(self) -> Iterator[tuple[str, float]]:
        """Warm up each model; yield its name and the seconds that this took."""
        release_team()  # this thread has loaded the models, and computes no more
        for name, model in self.models.items():
            began = time.monotonic()
            model.worker.warm()
            yield name, time.monotonic() - began

    def model(self, name: str | None) -> ServedModel:
        """Return the model ``name``; None: the only model. Raises ``ApiError``: 404 for an unknown name, 400 for None
        if there are several models.
        """
        if name is None:
            if len(self.models) > 1:
                raise ApiError(f"model: this server has {len(self.models)}; {nearest('', self.models)}", param="model")
            return next(iter(self.models.values()))
        if name not in self.models:
            sentence = f"there is no model {name!r}; {nearest(name, self.models)}"
            raise ApiError(sentence, 404, param="model", code="model_not_found")
        return self.models[name]
