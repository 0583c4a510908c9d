"""Tensors without values, with which a model runs without memory or arithmetic.

A ``Blank`` has shape, strides, dtype and autograd history, and reports the CPU as its device. Autocast, the selection
of kernels and the tensors that autograd saves are therefore the same as in a real run. Small integer and boolean
tensors (positions, lengths, masks) keep their values, so that code may read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from qkv.costs.counting.arguments import map_tensors, tensors
from qkv.system.errors import UserError

SMALL = 1 << 16
"""Maximum number of elements of an integer or boolean tensor that keeps its values."""
_aten = torch.ops.aten


class Blank(Tensor):
    """CPU tensor without values. ``body``: tensor with the same shape, strides and dtype on the meta device."""

    body: Tensor
    is_meta = True  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, body: Tensor) -> Blank:
        layout = {
            "strides": body.stride(),
            "storage_offset": body.storage_offset(),
            "dtype": body.dtype,
            "layout": body.layout,
        }
        blank = Tensor._make_wrapper_subclass(
            cls, body.size(), device=torch.device("cpu"), requires_grad=False, **layout
        )
        blank.body = body
        return blank

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Blank({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator without values; with values if no input is a ``Blank`` and the inputs and the result are
    small.
    """
    inputs = tensors((args, kwargs))
    if not inputs:
        return _create(func, args, kwargs)
    if not any(isinstance(t, Blank) for t in inputs) and all(t.numel() <= SMALL for t in inputs):
        shape = _broadcast(inputs) if torch.Tag.pointwise in func.tags else ()
        if shape.numel() <= SMALL if shape else True:
            return func(*args, **kwargs)
    if func in _READS:
        raise UserError(
            f"a part of the model reads values of a tensor ({func.overloadpacket.__name__}), "
            "but its tensors have no values while costs are counted; where x.is_meta is True, use only their shapes"
        )
    name = func.overloadpacket.__name__
    if name.endswith("_") and not name.endswith("__") and name not in _RESHAPES:
        return args[0]
    rule = _RULES.get(func)
    if rule is None and torch.Tag.pointwise in func.tags and not func._schema.is_mutable and "out" not in kwargs:
        rule = _pointwise
    if rule is not None and (result := rule(func, args, kwargs)) is not None:
        return map_tensors(Blank, result)
    return _by_meta_kernel(func, args, kwargs)


_READS = {_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default}
_RESHAPES = {"t_", "transpose_", "squeeze_", "unsqueeze_", "resize_", "swapaxes_"}


def _create(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function that creates a tensor. The result has values if it is a small integer or boolean tensor, or a
    single number; else it is a ``Blank``.
    """
    shape = args[0] if args and isinstance(args[0], (list, tuple)) else None
    if func in _RANDOM_INTEGERS:
        shape = next(arg for arg in args if isinstance(arg, (list, tuple)))
    if shape is None or torch.Size(shape).numel() <= SMALL:
        result = func(*args, **kwargs)
        if (
            not isinstance(result, Tensor)
            or result.numel() <= 1
            or not (result.is_floating_point() or result.is_complex())
        ):
            return result
        return Blank(torch.empty(result.shape, dtype=result.dtype, device="meta"))
    dtype = kwargs.get("dtype") or (torch.int64 if func in _RANDOM_INTEGERS else _filled(args, func))
    return Blank(torch.empty(shape, dtype=dtype, device="meta"))


_RANDOM_INTEGERS = {
    overload
    for packet in (_aten.randint,)
    for overload in (packet.default, packet.generator, packet.low, packet.low_generator)
}


def _filled(args: tuple[Any, ...], func: Any) -> torch.dtype:
    """Return the dtype of the result of a factory function that is called without a dtype."""
    if func is _aten.full.default:
        return torch.tensor(args[1]).dtype
    return torch.get_default_dtype()


def _broadcast(tensors: Sequence[Tensor]) -> torch.Size:
    """Return the broadcast shape of ``tensors``. ``torch.broadcast_shapes`` is avoided because it imports a package for
    symbolic shapes.
    """
    axes = zip_longest(*(reversed(t.shape) for t in tensors), fillvalue=1)
    return torch.Size([next((size for size in sizes if size != 1), 1) for sizes in axes][::-1])


def body(t: Tensor) -> Tensor:
    """Return a tensor on the meta device with the shape, strides and dtype of ``t``; for a ``Blank``, its body."""
    return t.body if isinstance(t, Blank) else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")


def _pointwise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Infer the result of a pointwise operator: its shape by broadcasting, its dtype by running the operator on
    one-element tensors.
    """
    inputs = tensors((args, kwargs))
    shape = _broadcast(inputs)
    one = func(*map_tensors(_single, args), **map_tensors(_single, kwargs))
    if not isinstance(one, Tensor):
        return None
    whole = next((t for t in inputs if t.shape == shape), None)
    if whole is None:
        return torch.empty(shape, dtype=one.dtype, device="meta")
    plain = kwargs.get("memory_format") not in (None, torch.preserve_format)
    return _like(whole, one.dtype) if not plain else torch.empty(shape, dtype=one.dtype, device="meta")


def _like(t: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``empty_like(t)`` on the meta device: dense, with the axes of ``t`` in the same memory order."""
    if t.is_contiguous() or 0 in t.stride():
        return torch.empty(t.shape, dtype=dtype or t.dtype, device="meta")
    order = sorted(range(t.dim()), key=lambda axis: t.stride(axis), reverse=True)
    empty = torch.empty([t.shape[axis] for axis in order], dtype=dtype or t.dtype, device="meta")
    return empty.permute([order.index(axis) for axis in range(t.dim())])


def _single(t: Tensor) -> Tensor:
    return torch.ones((1,) * t.dim(), dtype=t.dtype)


def _like_first(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _like(args[0], kwargs.get("dtype"))


def _new(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return torch.empty(args[1], dtype=kwargs.get("dtype") or args[0].dtype, device="meta")


def _reduced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Infer the result of a reduction over some axes; its dtype by running the operator on a one-element tensor."""
    x = args[0]
    one = func(_single(x), *args[1:], **kwargs)
    if one.dim() == x.dim():  # with keepdim, or for a scalar
        axes = args[1] if len(args) > 1 else []
    else:
        axes = args[1] if len(args) > 1 and args[1] else range(x.dim())
    gone = {axis % x.dim() for axis in ([axes] if isinstance(axes, int) else axes)} if x.dim() else set()
    keepdim = one.dim() == x.dim()
    shape = [1 if i in gone else size for i, size in enumerate(x.shape) if keepdim or i not in gone]
    return torch.empty(shape, dtype=one.dtype, device="meta")


def _joined(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Infer the result of torch.cat; None if the dtypes differ or all inputs are empty vectors."""
    parts = [t for t in args[0] if t.numel() or t.dim() > 1]
    if not parts or any(t.dtype != parts[0].dtype for t in parts):
        return None
    axis, shape = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % parts[0].dim(), list(parts[0].shape)
    shape[axis] = sum(t.shape[axis] for t in parts)
    return torch.empty(shape, dtype=parts[0].dtype, device="meta")


def _product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Infer the result of mm, bmm, addmm or baddbmm."""
    left, right = args[-2:]
    return torch.empty((*left.shape[:-1], right.shape[-1]), dtype=left.dtype, device="meta")


def _alias(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    inside = body(args[0])
    return inside.as_strided(args[1], args[2], inside.storage_offset())


def _layer_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Infer output, mean and reciprocal standard deviation of layer norm; the two statistics are in fp32 or wider."""
    x, axes = args[0], len(args[1])
    each = torch.empty(
        (*x.shape[:-axes], *(1,) * axes), dtype=torch.promote_types(x.dtype, torch.float32), device="meta"
    )
    return (
        torch.empty(x.shape, dtype=x.dtype, device="meta"),
        each,
        torch.empty(each.shape, dtype=each.dtype, device="meta"),
    )


def _layer_norm_gradient(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor | None, ...]:
    _, x, _, _, _, weight, bias, output_mask = args
    pairs = zip((x, weight, bias), output_mask, strict=True)
    return tuple(
        torch.empty(t.shape, dtype=t.dtype, device="meta") if want and t is not None else None for t, want in pairs
    )


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Infer output and log-sum-exp of torch's fused attention, whose memory order has the position axis before the head
    axis.
    """
    q, v = args[0], args[2]
    rows, heads, count = q.shape[:3]
    out = torch.empty((rows, count, heads, v.shape[-1]), dtype=q.dtype, device="meta").transpose(1, 2)
    sums = torch.empty(
        (rows, count, heads), dtype=torch.promote_types(q.dtype, torch.float32), device="meta"
    ).transpose(1, 2)
    return out, sums


def _attention_gradient(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    return tuple(_by_position(t) for t in args[1:4])


def _by_position(t: Tensor) -> Tensor:
    rows, heads, count, width = t.shape
    return torch.empty((rows, count, heads, width), dtype=t.dtype, device="meta").transpose(1, 2)


def _target_loss(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Infer loss and number of targets of nll_loss with sum or mean reduction; None without reduction."""
    x, reduction = args[0], args[3]
    if reduction == 0:
        return None
    return torch.empty((), dtype=x.dtype, device="meta"), torch.empty((), dtype=x.dtype, device="meta")


def _like_second(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _like(args[1])


def _nonzero(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return one index for every element, an upper bound because the values are unknown."""
    return torch.empty((args[0].numel(), args[0].dim()), dtype=torch.int64, device="meta")


def _indexed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Infer the result of indexing. A mask with values selects its true elements, a ``Blank`` mask all elements."""
    x, places = args[0], []
    for index in args[1]:
        if index is None or index.dtype != torch.bool:
            places.append(index if index is None else body(index))
        else:
            places += body(index.nonzero()).unbind(1)
    return body(x)[tuple(slice(None) if place is None else place for place in places)]


def _embedding(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    table, index = args[:2]
    return torch.empty((*index.shape, table.shape[1]), dtype=table.dtype, device="meta")


def _embedding_gradient(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    grad, _, rows = args[:3]
    return torch.empty((rows, grad.shape[-1]), dtype=grad.dtype, device="meta")


_RULES: dict[Any, Any] = {
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default), _product),
    **dict.fromkeys(
        (_aten._softmax.default, _aten._log_softmax.default, _aten._softmax_backward_data.default), _like_first
    ),
    _aten._log_softmax_backward_data.default: _like_first,
    _aten._reshape_alias.default: _alias,
    _aten.cat.default: _joined,
    _aten.tril.default: _like_first,
    _aten.nonzero.default: _nonzero,
    _aten.index.Tensor: _indexed,
    _aten.nll_loss_forward.default: _target_loss,
    _aten.nll_loss_backward.default: _like_second,
    **dict.fromkeys(
        (_aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default, _aten.mean.dim, _aten.amax.default), _reduced
    ),
    **dict.fromkeys((_aten.any.dim, _aten.all.dim, _aten.argmax.default, _aten.logsumexp.default), _reduced),
    **dict.fromkeys(
        (_aten.empty_like.default, _aten.zeros_like.default, _aten.ones_like.default, _aten.full_like.default),
        _like_first,
    ),
    **dict.fromkeys(
        (_aten.new_empty.default, _aten.new_zeros.default, _aten.new_ones.default, _aten.new_full.default), _new
    ),
    _aten._safe_softmax.default: _like_first,
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_gradient,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_layer_norm_backward.default: _layer_norm_gradient,
    _aten.embedding.default: _embedding,
    _aten.embedding_dense_backward.default: _embedding_gradient,
}
"""Functions that infer the results of frequent operators.

They avoid torch's own meta kernels, whose first call imports torch's compiler and takes over a second.
"""


def _by_meta_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run torch's meta kernel of an operator; views and in-place results share the storage of the input."""
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "meta"}
    originals: dict[int, Tensor] = {}

    def opened(t: Tensor) -> Tensor:
        inside = body(t)
        originals[id(inside)] = t
        return inside

    result = func(*map_tensors(opened, args), **map_tensors(opened, kwargs))
    return map_tensors(lambda t: originals[id(t)] if id(t) in originals else Blank(t), result)
