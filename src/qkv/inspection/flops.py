"""FLOPs of torch's operators: those its counter knows, products with vectors, and the fused attention of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten


def flops(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """FLOPs of one call; 0 for operators other than products. Formulas added by ``register_flop_formula`` count."""
    packet = func.overloadpacket
    if packet in _MORE:
        return _MORE[packet](args)
    known = flop_registry.get(packet)
    return 0 if known is None else int(known(*args, **kwargs, out_val=out))


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
