"""FLOPs of torch's operators: those that torch's FLOP counter knows, products with vectors, and fused CPU attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from qkv.costs.counting.arguments import tensors

_aten = torch.ops.aten


def flops(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Return the FLOPs of one call; 0 for operators other than products.

    Formulas added by torch's ``register_flop_formula`` are used, too.
    """
    packet = func.overloadpacket
    if packet in _MORE:
        return _MORE[packet](args)
    formula = flop_registry.get(packet)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


def gradients(func: Any, args: Any) -> int:
    """Return the number of factors of a product that require a gradient; computing each gradient takes as many FLOPs as
    the product.

    Operators other than products of two factors, such as fused attention, count 2 if any input requires a gradient.
    """
    factors = _FACTORS.get(func.overloadpacket)
    if factors is None:
        return 2 * any(tensor.requires_grad for tensor in tensors(args))
    return sum(bool(args[i].requires_grad) for i in factors)


def _vector(args: Any) -> int:
    return 2 * args[-2].numel()


def _attention(args: Any) -> int:
    q, k, v = args[:3]
    return 2 * q.shape[:3].numel() * k.shape[2] * (q.shape[3] + v.shape[3])


_MORE: dict[Any, Callable[[Any], int]] = {
    _aten.mv: _vector,
    _aten.addmv: _vector,
    _aten.dot: _vector,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
}

_FACTORS: dict[Any, tuple[int, int]] = {
    **dict.fromkeys((_aten.mm, _aten.bmm, _aten.mv, _aten.dot, _aten.convolution), (0, 1)),
    **dict.fromkeys((_aten.addmm, _aten.baddbmm, _aten.addmv), (1, 2)),
}
"""Indices of the factors among the arguments of a product."""
