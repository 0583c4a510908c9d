"""Quantisation of the weights of a model, layer by layer and in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qkv.frontends.text import TextFrontend
from qkv.layers.linear.linear import Linear
from qkv.layers.linear.lora import LowRank
from qkv.layers.linear.quantized import QuantizedLinear, QuantizedTable
from qkv.models.edit.assign import Place, places_of
from qkv.models.heads.head import LanguageModelHead
from qkv.ops.quantized.packed import PackedMatrix
from qkv.ops.quantized.reference import pack, unpack
from qkv.spec.models.quantization import Quantization
from qkv.system.allowance import free_memory
from qkv.system.errors import UserError

_TABLES = ((TextFrontend, "table"), (LanguageModelHead, "weight"))
"""Pairs (module class, attribute) that can hold a quantised matrix, besides linear layers."""
_PLAIN = (Linear, nn.Linear)
"""Classes of linear layers that are replaced; subclasses use their weights differently and are not."""
M = TypeVar("M", bound=nn.Module)
_LEAST = 8
"""Minimum number of bits of a table: errors in an embedding or output matrix are not averaged over other layers."""


def quantize(model: nn.Module, part: Quantization, apart: Collection[str] = ()) -> None:
    """Replace the linear layers, embedding tables and output matrices of ``model`` by quantised ones, in place.

    A tied output matrix stays the embedding table: both read the same bytes. Matrices of experts are linear layers,
    too. Adapters stay beside the quantised weights. Other weights, such as convolutions, are not quantised but
    converted to fp32, the dtype of activations. ``apart``: names of parameters that are not quantised, because they are
    trained. Raises ``UserError`` for weights that are not finite.
    """
    for name, places in places_of(model).items():
        owner, leaf = places[0]
        weight = owner._parameters.get(leaf)
        if weight is None or name in apart:  # a buffer, or another name of a tied matrix, which is already quantised
            continue
        if _are_tables(places):
            _check(name, weight)
            hold_packed(model, name, places, pack(weight.detach(), max(part.bits, _LEAST)))
        elif can_hold_packed(places):
            _check(name, weight)
            hold_packed(model, name, places, pack(weight.detach(), part.bits, part.size))
    for module in model.modules():
        if not isinstance(module, QuantizedTable):
            _widen(module)


def widened(model: M) -> M:
    """Replace quantised matrices of ``model`` by matrices in fp32, in place, into which adapters beside them are
    merged; return the model. A tied output matrix stays the embedding table.
    """
    tables: dict[int, nn.Parameter] = {}
    for path, module in list(model.named_modules()):
        if type(module) is QuantizedLinear or (type(module) is LowRank and module.matrix is not None):
            layer: Any = Linear(module.in_features, module.out_features, module.bias is not None, device="meta")
            layer.weight, layer.bias = nn.Parameter(module.weight.detach()), module.bias
            model.set_submodule(path, layer.train(module.training))
        for kind, leaf in _TABLES:
            table = getattr(module, leaf, None) if isinstance(module, kind) else None
            if isinstance(table, QuantizedTable):
                dense = tables.setdefault(id(table), nn.Parameter(unpack(table.packed)))
                delattr(module, leaf)
                setattr(module, leaf, dense)
    return model


def can_hold_packed(places: Sequence[Place]) -> bool:
    """Return whether the tensor at ``places`` belongs to a linear layer or a table whose class has a quantised form."""
    owner, leaf = places[0]
    return _are_tables(places) or (leaf == "weight" and type(owner) in (*_PLAIN, LowRank) and len(places) == 1)


def hold_packed(model: nn.Module, name: str, places: Sequence[Place], matrix: PackedMatrix) -> None:
    """Replace the tensor ``name`` of ``model``, which is at ``places``, by a quantised matrix."""
    if not _are_tables(places):
        owner: Any = places[0][0]
        if type(owner) is LowRank:
            owner.hold(matrix)
            return
        model.set_submodule(name.rpartition(".")[0], QuantizedLinear(owner, matrix))
        return
    table = QuantizedTable(matrix)
    for owner, leaf in places:
        owner._parameters.pop(leaf, None)
        setattr(owner, leaf, table)


def compute_in_fp32(model: nn.Module) -> None:
    """Make a model with weights in bf16 or fp16 compute in fp32, in place, for inference on the CPU.

    Matrices in bf16 stay in bf16, without a copy: kernels convert them as they read them. No kernel reads fp16, so fp16
    weights are converted to fp32 if that takes less than half of the free memory; otherwise the model is unchanged.
    """
    counts = Counter[torch.dtype]()
    for weight in model.parameters():
        counts[weight.dtype] += weight.numel()
    if not counts:
        return
    (most, count), *_ = counts.most_common()
    if most == torch.bfloat16:
        quantize(model, Quantization.parse({"bits": 16}))
    elif most == torch.float16:
        free = free_memory()
        if free is None or count * torch.float32.itemsize < free // 2:
            model.to(torch.float32)


def _widen(module: nn.Module) -> None:
    """Convert the bf16 and fp16 tensors of ``module`` itself, not of its children, to fp32."""
    for owned in (module._parameters, module._buffers):
        for tensor in owned.values():
            if tensor is not None and tensor.dtype in (torch.bfloat16, torch.float16):
                tensor.data = tensor.data.to(torch.float32)


def _are_tables(places: Sequence[Place]) -> bool:
    return all(
        any(isinstance(owner, kind) and attribute == leaf for kind, attribute in _TABLES) for owner, leaf in places
    )


def _check(name: str, weight: Tensor) -> None:
    if not weight.is_meta and not bool(torch.isfinite(weight).all()):
        raise UserError(f"{name} has weights that are not finite numbers, which cannot be quantised")
