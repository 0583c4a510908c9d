"""Detection of cached decoding steps that are stale, or that must not be used in a call.

A step is stale if modules or tensors of the model were replaced. It must not be used if gradients, a compiler, autocast
or a dispatch mode require that the modules are called one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch

from qkv.models.fast.frozen_weights import promised


class Fingerprint:
    """Record of the direct submodules, parameters and buffers of ``modules``, and of the tensors' addresses."""

    def __init__(self, modules: Sequence[nn.Module]):
        owners = [owner for m in modules for owner in (m._modules, m._parameters, m._buffers)]
        entries = list(_entries(owners))
        self._all, self._number = owners, len(entries)
        self._owners = [owner for owner, _, _ in entries]
        self._names, self._held = [name for _, name, _ in entries], [value for _, _, value in entries]
        self._tensors = [value for value in self._held if isinstance(value, Tensor)]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        self._hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self._compared, self._heard = promised(), any(self._hooks)

    def current(self) -> bool:
        """Return True if ``modules`` still hold exactly the recorded submodules and tensors, at the same addresses.

        Inside the context manager ``unchanged``, the comparison runs at most once; later calls return True.
        """
        promise = promised()
        if promise is not None and promise is self._compared:
            return True
        self._compared, self._heard = promise, any(self._hooks)
        return (
            sum(map(len, self._all)) == self._number
            and all(map(operator.is_, map(dict.get, self._owners, self._names), self._held))
            and list(map(Tensor.data_ptr, self._tensors)) == self._addresses
        )

    def heard(self) -> bool:
        """Return True if any module had a forward hook or pre-hook at the last comparison by ``current``.

        A hook runs only when its module is called, so a cached step would skip it.
        """
        return self._heard


def _entries(owners: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield (owner, name, entry) for each entry of the owners: a module, a tensor or None."""
    for owner in owners:
        yield from ((owner, name, entry) for name, entry in owner.items())


def observed(kind: str) -> bool:
    """Return True if something other than a tap requires that the modules are called one by one.

    Gradients, a compiler and a torch dispatch mode, such as a FLOP counter, read intermediate values; only the modules
    implement autocast. kind: device type, such as "cpu".
    """
    return (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled(kind)
        or _python_dispatch._get_current_dispatch_mode() is not None
    )
