"""Sharing of equal weights between models: a base model and its adapters hold the base weights in memory only once.

base       W ──┐
adapter 1  W ──┼── W        each adapter adds only its matrices A and B
adapter 2  W ──┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qkv.layers.linear.lora import adapters
from qkv.models.fast.layout import lay_out

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by element size in bytes, to compare tensors of any dtype bit by bit."""


def share_weights(models: Sequence[nn.Module]) -> int:
    """Let models share one tensor wherever they have equal bits at the same path; return the size of the duplicates in
    bytes.

    An adapter is merged into its base weight if no other model shares the weight. Shared weights are copied to huge
    pages (``lay_out``) immediately, because each model may later run in a thread of its own. For inference only: a
    change of a shared weight affects all models that share it.
    """
    saved = _join_equal(models)
    holders = Counter(place for model in models for place in {id(weight) for *_, weight in _places(model)})
    for model in models:
        _settle(model, holders)
    lay_out(*(model for model in models if any(holders[id(weight)] > 1 for *_, weight in _places(model))))
    return saved


def weight_bytes(models: Iterable[nn.Module]) -> int:
    """Return the size in bytes of the weights of all models; a tensor that several models hold is counted once."""
    return sum({id(weight): weight.nbytes for model in models for *_, weight in _places(model)}.values())


def _join_equal(models: Iterable[nn.Module]) -> int:
    """Replace equal tensors by the first of them; return the size in bytes of the replaced tensors."""
    groups: dict[Hashable, list[Tensor]] = {}
    given_up: dict[int, Tensor] = {}
    for model in models:
        for owner, path, name, weight in _places(model):
            alike = groups.setdefault((path, weight.shape, weight.dtype, weight.device), [])
            first = next((other for other in alike if other is weight or _same_bits(other, weight)), None)
            if first is None:
                alike.append(weight)
            elif first is not weight:
                owner[name], given_up[id(weight)] = first, weight
    return sum(weight.nbytes for weight in given_up.values())


def _settle(model: nn.Module, holders: Counter[int]) -> None:
    """Merge an adapter if no other model holds its base weight; multiply the scale of the other adapters into B."""
    for path, layer in adapters(model).items():
        if holders[id(layer.stored)] == 1:
            model.set_submodule(path, layer.plain())
        else:
            layer.absorb_scale()


def _places(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, str, Tensor]]:
    """Yield (module's dictionary, path, name, tensor) for each parameter and buffer; a tied tensor once per path."""
    for path, module in model.named_modules():
        for owner in (module._parameters, module._buffers):
            yield from (
                (owner, f"{path}.{name}", name, weight)
                for name, weight in list(owner.items())
                if weight is not None and weight.layout == torch.strided
            )


def _same_bits(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors of the same shape and dtype have equal bits; NaNs with equal bits are equal."""
    kind = _INTEGERS.get(first.element_size())
    return kind is not None and torch.equal(first.detach().view(kind), second.detach().view(kind))
