"""Quantising the weights of a model in place, by the layers that hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qkv.frontends.text import TextFrontend
from qkv.layers.linear import Linear
from qkv.layers.quantized import QuantizedLinear, QuantizedTable
from qkv.models.assign import Place, places_of
from qkv.models.heads import LanguageModelHead
from qkv.spec.errors import UserError
from qkv.spec.quantization import Quantization
from qkv.system.allowance import free_memory

_TABLES = ((TextFrontend, "table"), (LanguageModelHead, "weight"))
"""Modules, and their attributes, that can hold a quantised matrix besides linear layers."""
_PLAIN = (Linear, nn.Linear)
"""Linear layers that are replaced; their subclasses use their weights in ways of their own."""
_LEAST = 8
"""Fewest bits of a table: an error in an embedding, or in the output matrix, is not averaged over other layers."""


def quantize(model: nn.Module, part: Quantization) -> None:
    """Replace the linear layers, embedding tables and output matrices of ``model`` by quantised ones, in place.

    A tied output matrix stays the embedding table: both read the same bytes. Weights that modules of other kinds use,
    such as those of convolutions and experts, are not quantised; they are in fp32 afterwards, as activations are.
    Raises ``UserError`` for weights that are not finite.
    """
    for name, places in places_of(model).items():
        owner, leaf = places[0]
        weight = getattr(owner, leaf)
        if isinstance(weight, QuantizedTable):  # the other name of a tied matrix
            continue
        if all(_holds_table(place) for place in places):
            _check(name, weight)
            _place(places, QuantizedTable(weight, max(part.bits, _LEAST), 0))
        elif leaf == "weight" and isinstance(owner, nn.Linear) and type(owner) in _PLAIN and len(places) == 1:
            _check(name, weight)
            model.set_submodule(name.rpartition(".")[0], QuantizedLinear(owner, part.bits, part.size))
    for module in model.modules():
        if not isinstance(module, QuantizedTable):
            _widen(module)


def compute_in_fp32(model: nn.Module) -> None:
    """Let a model with weights in bf16 or fp16 compute in fp32, in place, for inference on the CPU.

    Matrices in bf16 stay as they are stored, without a copy: the kernels widen them while they read them. Weights in
    fp16, which no kernel reads, are widened if half of the free memory is enough; otherwise the model stays as it is.
    """
    held = Counter[torch.dtype]()
    for weight in model.parameters():
        held[weight.dtype] += weight.numel()
    if not held:
        return
    (most, count), *_ = held.most_common()
    if most == torch.bfloat16:
        quantize(model, Quantization.parse({"bits": 16}))
    elif most == torch.float16:
        free = free_memory()
        if free is None or count * torch.float32.itemsize < free // 2:
            model.to(torch.float32)


def _widen(module: nn.Module) -> None:
    """Let the weights that ``module`` itself holds in bf16 or fp16 be in fp32."""
    for owned in (module._parameters, module._buffers):
        for tensor in owned.values():
            if tensor is not None and tensor.dtype in (torch.bfloat16, torch.float16):
                tensor.data = tensor.data.to(torch.float32)


def _holds_table(place: Place) -> bool:
    return any(isinstance(place[0], kind) and place[1] == leaf for kind, leaf in _TABLES)


def _place(places: Sequence[Place], table: QuantizedTable) -> None:
    for owner, leaf in places:
        owner._parameters.pop(leaf, None)
        setattr(owner, leaf, table)


def _check(name: str, weight: Tensor) -> None:
    if not weight.is_meta and not bool(torch.isfinite(weight).all()):
        raise UserError(f"{name} has weights that are not finite numbers, which cannot be quantised")
