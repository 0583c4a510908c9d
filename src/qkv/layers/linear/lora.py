"""Low-rank adapters (LoRA, Hu et al. 2021) that wrap linear layers by module path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.layers.linear.linear import Linear
from qkv.layers.linear.quantized import QuantizedTable
from qkv.ops.at_least_single import single_or_wider
from qkv.ops.dropout import dropout
from qkv.ops.linear.choose import linear
from qkv.ops.linear.low_rank import LowRankMap, low_rank
from qkv.ops.quantized.packed import PackedMatrix
from qkv.ops.quantized.reference import unpack
from qkv.spec.models.adapt import LoRA

A, B = "lora_a", "lora_b"
"""Parameter names of A and B; ``weight`` and ``bias`` keep their names."""


def merged_weight(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Compute W + s B A in fp32 or wider; return it in the dtype of W. W (O, I), A (R, I), B (O, R)."""
    wide = single_or_wider(weight.dtype)
    return torch.addmm(weight.to(wide), b.to(wide), a.to(wide), alpha=scale).to(weight.dtype)


class LowRank(Linear):
    """Linear layer with a low-rank adapter: y = x W^T + b + s dropout(x) A^T B^T.

    x (…, I), W (O, I), A (R, I), B (O, R), y (…, O). The attribute ``weight`` is W + s B A, so that the adapter also
    applies in code that reads the matrix without calling the layer (without dropout). A state dict always stores W
    itself as ``weight``, or as ``matrix`` if it is quantised.
    """

    def __init__(self, base: nn.Linear, part: LoRA):
        """Take W and b from ``base`` and freeze them. A ~ U(-1/√I, 1/√I) as in the authors' code, B = 0."""
        nn.Module.__init__(self)
        self.matrix: QuantizedTable | None
        self.in_features, self.out_features, self.scale, self.dropout = (
            base.in_features,
            base.out_features,
            part.scale,
            part.dropout,
        )
        base.requires_grad_(False)
        # Not by attribute assignment, because ``weight`` is a property.
        weight: Any = base.weight
        self._parameters["weight"] = weight
        self.register_parameter("bias", base.bias)
        self.lora_a = nn.Parameter(torch.empty(part.rank, base.in_features).to(base.weight))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, part.rank).to(base.weight))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.register_buffer("base", None, persistent=False)
        self.register_module("matrix", None)
        self.train(base.training)

    @property
    def stored(self) -> Tensor:
        """Parameter registered as ``weight``: W, or W + s B A while the adapter is merged; the numbers of a quantised
        W.
        """
        weight = self._parameters["weight"] if self.matrix is None else self.matrix.packed.stored
        assert weight is not None
        return weight

    @property
    def frozen(self) -> Tensor | PackedMatrix:
        """W in the form that operators accept, or W + s B A while the adapter is merged."""
        return self.stored if self.matrix is None else self.matrix.packed

    @property
    def merged(self) -> bool:
        """True while W is replaced by W + s B A, see ``merge``."""
        return self.base is not None

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Effective weight, W + s B A."""
        weight = self.stored if self.matrix is None else unpack(self.matrix.packed)
        return weight if self.merged else merged_weight(weight, self.lora_a, self.lora_b, self.scale)

    def forward(self, x: Tensor) -> Tensor:
        if self.merged:
            return linear(x, self.stored, self.bias)
        if self.training and self.dropout:
            y = linear(x, self.frozen, self.bias)
            return y + self.scale * linear(linear(dropout(x, self.dropout, True), self.lora_a), self.lora_b)
        return low_rank(_same, (x,), self._map)

    @property
    def _map(self) -> LowRankMap:
        return LowRankMap(self.frozen, self.bias, self.lora_a, self.lora_b, self.scale)

    def hold(self, matrix: PackedMatrix) -> None:
        """Replace W by ``matrix``, its quantised form. The adapter then stays apart: ``merge`` does nothing."""
        self._parameters["weight"] = None
        self.matrix = QuantizedTable(matrix)

    @torch.no_grad()
    def merge(self) -> None:
        """Replace the weight by W + s B A and keep a copy of W. A and B get no gradients until ``unmerge``."""
        if not self.merged and self.matrix is None:
            base = self.stored.data
            self.stored.data = merged_weight(base, self.lora_a, self.lora_b, self.scale)
            self.base = base

    @torch.no_grad()
    def unmerge(self) -> None:
        """Undo ``merge``: restore W exactly."""
        if self.base is not None:
            self.stored.data, self.base = self.base, None

    @torch.no_grad()
    def absorb_scale(self) -> None:
        """Replace B by s B and s by 1. For inference only, because further training would then use s = 1."""
        self.lora_b, self.scale = nn.Parameter(self.scale * self.lora_b), 1.0

    def plain(self) -> Linear:
        """Return an equivalent linear layer without adapter; with a quantised W, this layer with its scale in B."""
        if self.matrix is not None:
            self.absorb_scale()
            return self
        with torch.device("meta"):
            layer = Linear(self.in_features, self.out_features, bias=self.bias is not None)
        layer.weight = nn.Parameter(self.weight.detach())
        if self.bias is not None:
            layer.bias = nn.Parameter(self.bias.detach())
        return layer.train(self.training)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.base is not None:
            destination[f"{prefix}weight"] = self.base

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.unmerge()
        super()._load_from_state_dict(*args, **kwargs)


def _same(x: Tensor) -> Tensor:
    return x


def call_on(layer: nn.Module, make: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """Compute layer(make(*parts)); an adapter in training remembers ``parts`` in place of what ``make`` computes.

    make: deterministic function without parameters that takes little time.
    """
    observed = layer._forward_hooks or layer._forward_pre_hooks
    if not isinstance(layer, LowRank) or layer.merged or (layer.training and layer.dropout) or observed:
        return layer(make(*parts))  # type: ignore[no-any-return]
    return low_rank(make, parts, layer._map)


def wrap(model: nn.Module, paths: Iterable[str], part: LoRA) -> None:
    """Wrap the linear layer at each of ``paths`` in an adapter, in place."""
    for path in paths:
        base = model.get_submodule(path)
        assert isinstance(base, nn.Linear)
        model.set_submodule(path, LowRank(base, part))


def adapters(model: nn.Module) -> dict[str, LowRank]:
    """Return all adapters of ``model`` by module path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, LowRank)}


def fold(model: nn.Module) -> None:
    """Replace each adapted layer of ``model`` by an equivalent linear layer with weight W + s B A, in place. Adapters
    beside quantised weights stay, because rounding W + s B A would undo a part of what they learned.
    """
    for path, module in adapters(model).items():
        model.set_submodule(path, module.plain())


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Context manager in which the layers of ``model`` compute with W alone, exactly as before they were adapted."""
    modules = list(adapters(model).values())
    together = [module for module in modules if module.merged]
    scales = [module.scale for module in modules]
    for module in modules:
        module.unmerge()
        module.scale = 0.0
    try:
        yield
    finally:
        for module, scale in zip(modules, scales, strict=True):
            module.scale = scale
        for module in together:
            module.merge()


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Context manager that merges the adapters of ``model`` into the weights, and restores W exactly on exit."""
    modules = [module for module in adapters(model).values() if not module.merged]
    try:
        for module in modules:
            module.merge()
        yield
    finally:
        for module in modules:
            module.unmerge()


def folded(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Copy a state dict without adapters: replace each W by W + ``scale`` B A, and drop A and B."""
    weights = {name: tensor for name, tensor in tensors.items() if not name.endswith((f".{A}", f".{B}"))}
    for name in tensors:
        path, dot, leaf = name.rpartition(".")
        if leaf == A and dot:
            weights[f"{path}.weight"] = merged_weight(
                weights[f"{path}.weight"], tensors[name], tensors[f"{path}.{B}"], scale
            )
    return weights
