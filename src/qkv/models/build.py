"""Construction of an initialised model from a spec."""

from __future__ import annotations

import torch
from torch import nn

from qkv.layers.linear.linear import Linear
from qkv.layers.positions import Positions
from qkv.models.construct import construct
from qkv.models.stack.layered import Layered
from qkv.models.transformer import Stack, Transformer
from qkv.spec.model import Model
from qkv.spec.models.start import ConstructedStart, Start
from qkv.system.allocator import keep_freed_memory
from qkv.system.allowance import limit_threads
from qkv.system.errors import UserError
from qkv.system.torch_settings import usual_settings


def build(spec: Model, seed: int = 0, start: Start | None = None) -> Transformer:
    """Build the module of ``spec`` in fp32 on the current default device; random weights depend only on ``seed``.

    start: source of the weights. The seed of a ``RandomStart``, if it has one, replaces ``seed``; a
    ``ConstructedStart`` writes values into weights by name. A start from a checkpoint is refused: ``qkv.training``
    copies its weights.

    Matrices are drawn from N(0, init_std²), divided by √(number of branches) for output projections of branches (GPT-2,
    Radford et al. 2019); biases are 0, norms 1. Raises ``UserError`` if the vocabulary size is unknown, or if the model
    lacks a weight that ``start`` names.
    """
    if start is not None and start.checkpoint is not None:
        raise UserError(
            "start: qkv.build reads no checkpoint; leave start out, or use qkv.load or qkv.train for "
            f"{start.checkpoint!r}"
        )
    limit_threads()
    keep_freed_memory()
    with usual_settings(device=False), torch.random.fork_rng(devices=[]):
        start_seed = getattr(start, "seed", None)
        torch.manual_seed(seed if start_seed is None else start_seed)
        model = Transformer(spec)
        _initialise(model, spec)
    if isinstance(start, ConstructedStart):
        construct(model, start)
    return model


def _initialise(model: Transformer, spec: Model) -> None:
    for module in model.modules():
        if isinstance(module, Linear):
            nn.init.normal_(module.weight, std=spec.init_std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Positions):
            module.initialise(spec.init_std)
    for stack in (model.encoder, model.latents, model.segmentation and model.segmentation.inner, model):
        if stack is not None:
            _initialise_stack(stack, spec.init_std)
    model.head.initialise(spec.init_std)


def _initialise_stack(stack: Layered, std: float) -> None:
    if isinstance(stack, Stack):
        stack.frontend.initialise(std)
    for block in stack.blocks:
        if block.merge is not None:
            block.merge.initialise(std)  # type: ignore[operator,union-attr]
    endings = [branch.ending() for branch in stack.branches]
    for layer in (layer for ending in endings if ending is not None for layer in ending.modules()):
        if isinstance(layer, Linear):
            nn.init.normal_(layer.weight, std=std / len(endings) ** 0.5)
