"""Modules after the pooling of a sentence-transformers folder: Dense, LayerNorm, Normalize, Dropout.

Dense        f(W x + b)            f: the activation that its config names
LayerNorm    of the vector         Normalize   x / |x|         Dropout   x
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.interop.files.folder import read_json, stored_tensors
from qkv.interop.mapping.config import Config
from qkv.system.errors import UserError, nearest

ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid, nn.SiLU)
}
KINDS = ("Dense", "LayerNorm", "Normalize", "Dropout")
"""Kinds of modules that may follow the pooling."""


class Projection(NamedTuple):
    """Module after the pooling. ``width``: size of its vectors; ``digest``: name of its kind and its weights."""

    layer: nn.Module
    width: int
    digest: str

    def __repr__(self) -> str:
        return self.digest


class _Unit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """Scale each vector to L2 norm 1."""
        return F.normalize(x, dim=-1)


def read_projections(modules: Sequence[tuple[str, Path]], width: int) -> tuple[Projection, ...]:
    """Read the modules (kind, folder) after a pooling to vectors of the size ``width``.

    Raises ``UserError`` for an unknown kind or setting, and for weights of another shape than the config gives.
    """
    projections = list[Projection]()
    for kind, folder in modules:
        layer = _read(kind, folder, width)
        tensors = layer.state_dict()
        content = b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors.values())
        width = int(tensors["0.weight"].shape[0]) if kind == "Dense" else width
        projections.append(Projection(layer.eval(), width, f"{kind} {hashlib.sha256(content).hexdigest()}"))
    return tuple(projections)


def _read(kind: str, folder: Path, width: int) -> nn.Module:
    if kind == "Normalize":
        return _Unit()
    if kind == "Dropout":
        return nn.Identity()
    file = folder / "config.json"
    config = Config(read_json(file), str(file))
    reading = config.integer("in_features" if kind == "Dense" else "dimension")
    if reading != width:
        raise UserError(f"{file}: {kind} reads vectors of size {reading}, but those before it have {width}")
    if kind == "LayerNorm":
        config.finish(())
        norm = nn.LayerNorm(width)
        _fill(norm, folder, "norm.")
        return norm
    linear = nn.Linear(width, config.integer("out_features"), bias=config.flag("bias", True))
    name = config.word("activation_function") if config.has("activation_function") else "Tanh"
    kind_of_activation = name.rpartition(".")[2]
    if kind_of_activation not in ACTIVATIONS:
        raise UserError(f"{file}: there is no activation {name!r}; {nearest(kind_of_activation, ACTIVATIONS)}")
    for key in ("module_input_name", "module_output_name"):
        config.fixed(key, "sentence_embedding", "the vector that it reads or writes")
    config.finish(())
    _fill(linear, folder, "linear.")
    return nn.Sequential(linear, ACTIVATIONS[kind_of_activation]())


@torch.no_grad()
def _fill(layer: nn.Module, folder: Path, prefix: str) -> None:
    """Copy the weights in ``folder`` to ``layer`` as fp32. Raises ``UserError`` if names or shapes differ."""
    stored = stored_tensors(folder, pickles=True)
    expected = {f"{prefix}{name}": tensor for name, tensor in layer.state_dict().items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    shapes_there = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    if shapes != shapes_there:
        raise UserError(f"{folder} holds tensors of the shapes {shapes_there}, but its config requires {shapes}")
    for name, tensor in expected.items():
        tensor.copy_(stored[name].read())
